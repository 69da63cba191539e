//! Tests with small parts.

use super::*;
use crate::{Sqlite, SqliteSettings, directory::Directory};
use dwell_core::{
    Action, Address, Changed, Clock, Consumer, Due, Envelope, Message, Note, OnMissing, Outcome, Query,
    Random, Seams, SeededRandom, Settle, Subscription, Timestamp, Transport, VirtualClock,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    slice::from_ref,
    sync::Arc,
    time::Duration,
};

/// Invariants of a file, shared with the behaviour tests.
#[path = "../../tests/rig/invariants.rs"]
mod invariants;

struct Stage {
    clock: VirtualClock,
    sqlite: Sqlite,
    mail: Arc<dyn Consumer>,
    sent: usize,
}

impl Stage {
    async fn new() -> Self {
        let clock = VirtualClock::new();
        let seams = Seams::virtual_time(clock.clone(), 1);
        let sqlite = Sqlite::open(SqliteSettings::memory(), seams).unwrap();
        let lease = Duration::from_secs(3600);
        let mail = Subscription { lease, ..Subscription::new("orders", "mail") };
        sqlite.provision(&[], from_ref(&mail), OnMissing::Create).await.unwrap();
        let mail = sqlite.consumer(mail).await.unwrap();
        Self { clock, sqlite, mail, sent: 0 }
    }

    async fn send(&mut self, count: usize, seconds: u64) {
        for _ in 0..count {
            let message = Message::new(format!("{:02}", self.sent), "orders.placed", "42");
            let envelope = Envelope::new(Address::topic("orders"), message)
                .due(Due::After(Duration::from_secs(seconds)));
            self.sqlite.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();
            self.sent += 1;
        }
    }

    /// Returns the number of entries of each part.
    async fn parts(&self) -> Vec<(i64, i64)> {
        let look = |tx: &mut Tx<'_>| -> Sql<Vec<(i64, i64)>> {
            let mut parts = tx.sql("SELECT in_part, count(*) FROM waiting GROUP BY 1 ORDER BY 1")?;
            let parts = parts.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            parts.collect()
        };
        self.sqlite.0.file().write(1, look).await.unwrap()
    }

    async fn receive(&self) -> Vec<String> {
        let received = self.mail.receive(100, Duration::ZERO, None).await.unwrap();
        received.iter().map(|delivery| delivery.message.id.to_string()).collect()
    }
}

fn names(numbers: impl Iterator<Item = usize>) -> Vec<String> {
    numbers.map(|n| format!("{n:02}")).collect()
}

#[tokio::test]
async fn entries_fill_one_part_after_another_and_reuse_an_empty_part() {
    let mut stage = Stage::new().await;
    stage.send(FULL, 10).await;
    stage.send(FULL, 30).await;
    stage.send(2, 20).await;
    assert_eq!(stage.parts().await, [(0, 8), (1, 8), (2, 2)]);
    stage.clock.advance(Duration::from_secs(10)).await;
    assert_eq!(stage.receive().await, names(0..8));
    stage.send(FULL - 2, 5).await;
    assert_eq!(stage.parts().await, [(1, 8), (2, 8)], "the current part is filled up first");
    stage.send(FULL, 1).await;
    assert_eq!(stage.parts().await, [(0, 8), (1, 8), (2, 8)], "an empty part is reused before a new one");
    stage.send(1, 40).await;
    assert_eq!(stage.parts().await, [(0, 8), (1, 8), (2, 8), (3, 1)]);
    let scheduler = stage.sqlite.scheduler().unwrap();
    let pending = scheduler.pending(Query { limit: 17, ..Query::default() }).await.unwrap();
    let pending: Vec<_> = pending.iter().map(|pending| pending.envelope.message.id.to_string()).collect();
    assert_eq!(pending, names((24..32).chain(18..24).chain(16..18).chain(8..9)), "across all parts");
    stage.clock.advance(Duration::from_secs(40)).await;
    let in_order = (24..32).chain(18..24).chain(16..18).chain(8..16).chain(32..33);
    assert_eq!(stage.receive().await, names(in_order), "ordered by due time across all parts");
    assert_eq!(stage.parts().await, []);
}

#[tokio::test]
async fn topic_with_few_pending_messages_keeps_one_part() {
    let mut stage = Stage::new().await;
    for _ in 0..10 {
        stage.send(FEW, 1).await;
        assert_eq!(stage.parts().await.len(), 1);
        stage.clock.advance(Duration::from_secs(1)).await;
        assert_eq!(stage.receive().await.len(), FEW);
    }
}

#[tokio::test]
async fn waiting_receiver_wakes_up_for_the_first_due_message_of_any_part() {
    let mut stage = Stage::new().await;
    stage.send(FULL + 1, 100).await;
    let (mail, clock) = (stage.mail.clone(), stage.clock.clone());
    let (tell, told) = tokio::sync::oneshot::channel();
    let waits = async move {
        let received = mail.receive(1, Duration::from_secs(3600), None).await.unwrap();
        tell.send(received[0].message.id.to_string()).unwrap();
    };
    tokio::spawn(clock.track(Box::pin(waits)));
    stage.clock.advance(Duration::from_secs(1)).await;
    stage.send(1, 5).await;
    assert_eq!(stage.parts().await, [(0, 8), (1, 2)]);
    stage.clock.advance(Duration::from_secs(5)).await;
    assert_eq!(told.await.unwrap(), "09");
}

#[tokio::test]
async fn short_lived_processes_fill_the_part_of_their_predecessor() {
    let directory = Directory::new();
    let (clock, path) = (VirtualClock::new(), directory.path().join("dwell.db"));
    let open =
        |seed| Sqlite::open(SqliteSettings::file(&path), Seams::virtual_time(clock.clone(), seed)).unwrap();
    let first = open(0);
    let mail = Subscription::new("orders", "mail");
    first.provision(&[], from_ref(&mail), OnMissing::Create).await.unwrap();
    let send = async |sqlite: &Sqlite, n: usize| {
        let message = Message::new(format!("{n}"), "orders.placed", "42");
        let envelope =
            Envelope::new(Address::topic("orders"), message).due(Due::After(Duration::from_secs(3600)));
        sqlite.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();
    };
    let (full, processes) = (8 * FULL, 60);
    for n in 0..full {
        send(&first, n).await;
    }
    first.close().await.unwrap();
    for n in 0..processes {
        let other = open(1 + n as u64);
        send(&other, full + n).await;
        other.close().await.unwrap();
    }
    let last = open(100);
    let parts = last.0.file().read(all_parts).await.unwrap();
    // Each part is filled until it has more than `FEW` entries.
    assert!(parts.len() <= 8 + processes.div_ceil(FEW + 1), "{} parts", parts.len());
}

/// Expected state of the messages.
#[derive(Default)]
struct Model {
    waits: BTreeMap<String, Timestamp>,
    hands: BTreeSet<String>,
}

#[tokio::test]
async fn messages_across_many_parts_are_delivered_once_and_on_time() {
    for seed in 0..10 {
        let (mut stage, mut model) = (Stage::new().await, Model::default());
        let random = SeededRandom::new(seed);
        let pick = |below: u64| random.next() % below;
        let scheduler = stage.sqlite.scheduler().unwrap();
        let mut most = 0;
        for _ in 0..600 {
            let seconds = pick(90);
            let any = model.waits.keys().nth(pick(model.waits.len().max(1) as u64) as usize).cloned();
            match (pick(10), any) {
                (0..5, _) => {
                    let due = stage.clock.now().after(Duration::from_secs(seconds + 1));
                    model.waits.insert(format!("{:02}", stage.sent), due);
                    stage.send(1, seconds + 1).await;
                }
                (5..7, Some(id)) => {
                    // Often back to its former due time.
                    let due = stage.clock.now().after(Duration::from_secs(1 + seconds / 30));
                    let changed = scheduler.reschedule(&id.as_str().into(), Due::At(due)).await;
                    assert_eq!(changed.unwrap(), Changed::Done, "{id}");
                    model.waits.insert(id, due);
                }
                (7, Some(id)) => {
                    let changed = scheduler.cancel(&id.as_str().into()).await;
                    assert_eq!(changed.unwrap(), Changed::Done, "{id}");
                    model.waits.remove(&id);
                }
                _ => {
                    stage.clock.advance(Duration::from_secs(seconds / 20)).await;
                    stage.receive_due(&mut model).await;
                }
            }
            most = most.max(stage.parts().await.len());
            let check = |tx: &mut Tx<'_>| invariants::broken(tx.connection());
            assert_eq!(
                stage.sqlite.0.file().write(1, check).await.unwrap(),
                Vec::<&str>::new(),
                "seed {seed}"
            );
        }
        assert!(most > 3, "there were {most} parts");
        stage.clock.advance(Duration::from_secs(100)).await;
        stage.receive_due(&mut model).await;
        assert!(model.waits.is_empty() && stage.receive().await.is_empty());
        assert_eq!(stage.parts().await, [], "seed {seed}");
    }
}

impl Stage {
    /// Receives and settles all due messages, and checks that nothing else is delivered.
    async fn receive_due(&self, model: &mut Model) {
        let now = self.clock.now();
        let mut due: Vec<_> =
            model.waits.extract_if(.., |_, due| *due <= now).map(|(id, due)| (due, id)).collect();
        due.sort();
        let received = self.mail.receive(1000, Duration::ZERO, None).await.unwrap();
        let mut got: Vec<_> = received
            .iter()
            .map(|delivery| (delivery.due.unwrap(), delivery.message.id.to_string()))
            .collect();
        assert!(got.is_sorted_by_key(|(due, _)| *due), "{got:?}");
        got.sort();
        assert_eq!(got, due);
        for (_, id) in got {
            assert!(model.hands.insert(id.clone()), "{id} was delivered twice");
        }
        let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
        let settle = |delivery| Settle { delivery, action: Action::ACK, note: note.clone() };
        assert!(self.mail.settle(received.into_iter().map(settle).collect()).await.is_empty());
    }
}
