//! Consistency: counts, lists and single records agree after any sequence of operations, and
//! nothing is left over.

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Action, Address, Change, Consumer, Delivery, Due, Envelope, Ledger, Message, Note, Of, OnConflict,
    OnMissing, Outcome, Random, RecordQuery, Seams, SeededRandom, Settle, State, Subscription, Transport,
    TransportUrl, wire,
};
use dwell_redis::Redis;
use futures_util::future::join_all;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const STEPS: usize = 600;

struct Play {
    topic: &'static str,
    redis: Redis,
    dice: SeededRandom,
    consumers: Vec<Arc<dyn Consumer>>,
    held: Vec<(usize, Delivery)>,
    sent: u64,
}

fn dead_letters(topic: &str) -> String {
    format!("{topic}.dlq")
}

fn subscriptions(topic: &str) -> [Subscription; 3] {
    let lease = Duration::from_millis(300);
    [(topic.to_owned(), "mail"), (topic.to_owned(), "stock"), (dead_letters(topic), "audit")]
        .map(|(topic, name)| Subscription { lease, ..Subscription::new(topic, name) })
}

impl Play {
    fn below(&self, end: u64) -> u64 {
        self.dice.next() % end
    }

    fn due(&self) -> Due {
        match self.below(3) {
            0 => Due::NOW,
            1 => Due::After(Duration::from_millis(self.below(50))),
            _ => Due::After(Duration::from_secs(3600)),
        }
    }

    async fn step(&mut self) {
        match self.below(10) {
            0..=3 => self.send().await,
            4..=5 => self.receive().await,
            6..=7 => self.settle().await,
            8 => self.change().await,
            _ => Seams::system("test").clock.sleep(Duration::from_millis(self.below(20))).await,
        }
    }

    async fn send(&mut self) {
        // Some ids are used again.
        let id = if self.below(4) == 0 { self.below(self.sent + 1) } else { self.sent };
        self.sent += 1;
        let message = Message::new(format!("m{id}"), "orders.placed", format!("body {}", id % 7));
        let mut envelope = Envelope::new(Address::topic(self.topic), message).due(self.due());
        envelope.once = [None, Some(OnConflict::Fail), Some(OnConflict::Replace)][self.below(3) as usize];
        if self.below(4) == 0 {
            envelope.to = Address::subscription(self.topic, "mail");
        }
        self.redis.producer().await.unwrap().send(&[envelope]).await.pop().unwrap().unwrap();
    }

    async fn receive(&mut self) {
        let index = self.below(self.consumers.len() as u64) as usize;
        let batch = self.consumers[index].receive(3, Duration::ZERO, None).await.unwrap();
        self.held.extend(batch.into_iter().map(|delivery| (index, delivery)));
    }

    async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (index, mut delivery) = self.held.swap_remove(self.below(self.held.len() as u64) as usize);
        let of = &subscriptions(self.topic)[index];
        let (mut outcome, action) = match self.below(6) {
            0 => (Outcome::Released, Action::Release),
            1 => (Outcome::Deferred, Action::Move { to: of.address(), due: self.due() }),
            2 => (Outcome::Failed, Action::Move { to: of.address(), due: self.due() }),
            3 if index < 2 => (
                Outcome::Rejected,
                Action::Move { to: Address::topic(dead_letters(self.topic)), due: Due::NOW },
            ),
            4 => (Outcome::Handled, Action::Ack { result: Some("42".into()) }),
            _ => return,
        };
        if let Action::Move { to, .. } = &action {
            delivery.message.attempts.handled += 1;
            if **to.topic_name() == *dead_letters(self.topic) && index < 2 {
                delivery.message.headers.set(wire::ORIGINAL_TOPIC, self.topic);
                delivery.message.headers.set(wire::SUBSCRIPTION, of.name.to_string());
            } else if index == 2 {
                outcome = Outcome::Deferred;
            }
        }
        let note = Note { outcome, error: None, worker: "test".into(), moved_to: None };
        let unsettled = self.consumers[index].settle(vec![Settle { delivery, action, note }]).await;
        let stale =
            |unsettled: &dwell_core::Unsettled| unsettled.error.kind() == dwell_core::ErrorKind::Stale;
        assert!(unsettled.iter().all(stale), "{unsettled:?}");
    }

    async fn change(&mut self) {
        let id = format!("m{}", self.below(self.sent + 1));
        let change = match self.below(4) {
            0 => Change::Cancel,
            1 => Change::Reschedule(self.due()),
            2 => Change::Replay(None),
            _ => Change::Discard,
        };
        if self.below(2) == 0 {
            self.redis.scheduler().unwrap().cancel(&id.as_str().into()).await.unwrap();
        } else {
            self.redis
                .ledger()
                .unwrap()
                .change(&id.as_str().into(), Of::All, change, "somebody")
                .await
                .unwrap();
        }
    }

    /// Checks that counts, lists and single records agree.
    async fn check(&self) -> usize {
        let ledger = self.redis.ledger().unwrap();
        let (listed, counted) = (list(&*ledger).await, ledger.counts().await.unwrap());
        let mut by_state = BTreeMap::new();
        for (_, topic, subscription, state) in &listed {
            *by_state.entry((topic.clone(), subscription.clone(), *state)).or_insert(0_u64) += 1;
        }
        let counted: BTreeMap<_, _> = counted
            .into_iter()
            .map(|of| {
                ((of.topic.to_string(), of.subscription.map(|name| name.to_string()), of.state), of.count)
            })
            .collect();
        assert_eq!(counted, by_state, "counts and list");
        let mut single = vec![];
        let ids: std::collections::BTreeSet<_> = listed.iter().map(|(id, ..)| id.clone()).collect();
        let gets = ids.iter().map(async |id| (id, ledger.get(&id.as_str().into()).await.unwrap()));
        for (id, records) in join_all(gets).await {
            for record in records {
                assert_eq!(record.history.last().map(|last| last.state), Some(record.state), "{record:?}");
                let subscription = record.subscription.map(|name| name.to_string());
                single.push((id.clone(), record.topic.to_string(), subscription, record.state));
            }
        }
        let mut listed_in_order = listed.clone();
        listed_in_order.sort();
        single.sort();
        assert_eq!(single, listed_in_order, "single records and list");
        listed.len()
    }
}

type Line = (String, String, Option<String>, State);

async fn list(ledger: &dyn Ledger) -> Vec<Line> {
    let (mut found, mut after) = (vec![], None);
    loop {
        let page = ledger.list(RecordQuery { after, limit: 37, ..RecordQuery::default() }).await.unwrap();
        found.extend(page.items.into_iter().map(|record| {
            let subscription = record.subscription.map(|name| name.to_string());
            (record.message.id.to_string(), record.topic.to_string(), subscription, record.state)
        }));
        after = match page.next {
            Some(next) => Some(next),
            None => return found,
        };
    }
}

async fn play(topic: &'static str, options: &str, seed: u64) {
    let server = RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap();
    let url = TransportUrl::parse(&format!("{}?{options}", server.url())).unwrap();
    let redis = dwell_redis::connect(&url, Seams::system("test")).await.unwrap();
    redis.provision(&[], &subscriptions(topic), OnMissing::Create).await.unwrap();
    let mut consumers = vec![];
    for of in subscriptions(topic) {
        consumers.push(redis.consumer(of).await.unwrap());
    }
    let mut play = Play { topic, redis, dice: SeededRandom::new(seed), consumers, held: vec![], sent: 0 };
    for _ in 0..STEPS {
        play.step().await;
    }
    // Waits until short delays and leases have expired.
    play.held.clear();
    for consumer in &play.consumers {
        consumer.close().await.unwrap();
    }
    Seams::system("test").clock.sleep(Duration::from_millis(500)).await;
    let records = play.check().await;
    assert!(records > 100, "only {records}");
    let said = |arguments: &[&str]| {
        String::from_utf8_lossy(&server.cli(arguments).unwrap().stdout).trim().parse::<usize>().unwrap()
    };
    let hands = ["held:mail", "held:stock", "leases:mail", "leases:stock"]
        .map(|key| format!("dwell:{{{topic}}}:{key}"));
    for key in &hands {
        assert_eq!(said(&["exists", key]), 0, "no message is leased: {key}");
    }
}

#[tokio::test]
async fn counts_lists_and_records_agree_after_any_operations() {
    for seed in 1..=3 {
        play("orders", "", seed).await;
    }
}

#[tokio::test]
async fn counts_lists_and_records_agree_with_shards() {
    play("orders", "shards=3&bucket=1s", 4).await;
}

#[tokio::test]
async fn counts_lists_and_records_agree_for_jobs() {
    play("job.orders", "", 5).await;
    play("job.orders", "shards=3&bucket=1s", 6).await;
}
