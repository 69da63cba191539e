//! Random operations: in any order, no message is lost, early, out of order or miscounted.

use super::*;
use bytes::Bytes;
use dwell_core::{Change, Changed, Of, Random, SeededRandom, State, wire};
use std::collections::{BTreeMap, BTreeSet};

struct Life {
    broker: Broker,
    is_declared: bool,
    random: SeededRandom,
    consumers: Vec<Arc<dyn Consumer>>,
    /// Deliveries held by each consumer.
    hands: Vec<Vec<Delivery>>,
    sent: BTreeMap<String, Timestamp>,
    seen: BTreeSet<String>,
    acked: BTreeSet<String>,
    cancelled: BTreeSet<String>,
    /// Dead letters, which may be replayed.
    dead: BTreeSet<String>,
    /// Last message of each key that was delivered for the first time.
    last: BTreeMap<String, u64>,
}

impl Life {
    /// Uses the kept messages of a topic; or a single subscription, which gets due messages
    /// directly, with records that are kept.
    async fn new(seed: u64, is_declared: bool) -> Self {
        let done = if is_declared { SECOND * 3600 } else { Duration::ZERO };
        let broker = Broker::with(SqliteSettings { done, ..settings() }).await;
        let topics = ["jobs", "jobs.dlq"].map(|name| Topic::named(name).keep());
        broker.sqlite.provision(&topics, &[], OnMissing::Create).await.unwrap();
        let kept = Subscription::new("jobs", "jobs");
        if is_declared {
            broker.sqlite.provision(&[], from_ref(&kept), OnMissing::Create).await.unwrap();
        }
        let mut consumers = Vec::new();
        for _ in 0..3 {
            consumers.push(broker.sqlite.consumer(kept.clone()).await.unwrap());
        }
        Self {
            broker,
            is_declared,
            random: SeededRandom::new(seed),
            hands: consumers.iter().map(|_| Vec::new()).collect(),
            consumers,
            sent: BTreeMap::new(),
            seen: BTreeSet::new(),
            acked: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            dead: BTreeSet::new(),
            last: BTreeMap::new(),
        }
    }

    fn pick(&self, below: usize) -> usize {
        (self.random.next() % below as u64) as usize
    }

    /// Returns a short or a long body, which are stored in different tables.
    fn body(&self) -> Bytes {
        vec![b'x'; [2, 1024, 1025, 5000][self.pick(4)]].into()
    }

    async fn send(&mut self) {
        let n = self.sent.len();
        let mut envelope = Envelope { to: Address::topic("jobs"), ..order(&n.to_string()) };
        match self.pick(4) {
            0 => envelope.due = after(MILLI * self.pick(60_000) as u32),
            1 => {}
            key => envelope.message.key = Some(key.to_string().into()),
        }
        envelope.message.body = self.body();
        let sent = self.broker.send(envelope).await.unwrap();
        self.sent.insert(n.to_string(), sent.due.unwrap_or(self.broker.now()));
    }

    async fn receive(&mut self) {
        let who = self.pick(self.consumers.len());
        let max = self.pick(5);
        let got = self.consumers[who].receive(max, Duration::ZERO, None).await.unwrap();
        for delivery in &got {
            let message = &delivery.message;
            let id = message.id.to_string();
            assert!(self.broker.now() >= self.sent[&id], "{id} is early");
            assert!(!self.acked.contains(&id), "{id} was acked");
            assert!(!self.cancelled.contains(&id), "{id} was cancelled");
            if let Some(key) = &message.key {
                let key = String::from_utf8(key.to_vec()).unwrap();
                let others = (0..self.hands.len()).filter(|other| *other != who);
                let held = others
                    .flat_map(|other| &self.hands[other])
                    .filter(|held| held.message.key == message.key);
                for held in held {
                    // Unless its lease has expired, which only the broker knows.
                    let lease = held.receipt.lease();
                    let lost = self.consumers[0].extend(vec![lease], Some(LEASE)).await.unwrap();
                    assert_eq!(lost, [lease], "{id} and {} are leased by two consumers", held.message.id);
                }
                if self.seen.insert(id.clone()) {
                    let n: u64 = id.parse().unwrap();
                    let last = self.last.entry(key).or_insert(n);
                    assert!(*last <= n, "{last} was delivered before {n}");
                    *last = n;
                }
            }
        }
        self.hands[who].extend(got);
    }

    async fn settle(&mut self) {
        let who = self.pick(self.consumers.len());
        let count = self.pick(self.hands[who].len() + 1);
        let from = self.pick(self.hands[who].len() - count + 1);
        let mut batch = Vec::new();
        for mut delivery in self.hands[who].drain(from..from + count).collect::<Vec<_>>() {
            let action = match self.pick(5) {
                0 => Action::Release,
                1 => {
                    delivery.message.attempts.handled += 1;
                    delivery.message.key = None;
                    let to = Address::subscription("jobs", "jobs");
                    Action::Move { to, due: after(MILLI * self.pick(40_000) as u32) }
                }
                2 => {
                    delivery.message.headers.append(wire::ORIGINAL_TOPIC, "jobs");
                    delivery.message.headers.append(wire::SUBSCRIPTION, "jobs");
                    let due = [Due::NOW, after(MILLI * self.pick(40_000) as u32)][self.pick(2)];
                    Action::Move { to: Address::topic("jobs.dlq"), due }
                }
                _ => Action::ACK,
            };
            batch.push(settlement(delivery, action));
        }
        let asked: Vec<_> = batch
            .iter()
            .map(|settle| {
                (
                    settle.delivery.receipt.lease(),
                    settle.delivery.message.id.to_string(),
                    settle.action.clone(),
                )
            })
            .collect();
        let unsettled = self.consumers[who].settle(batch).await;
        for (lease, id, action) in asked {
            let is_lost =
                unsettled.iter().any(|unsettled| unsettled.settle.delivery.receipt.lease() == lease);
            match action {
                _ if is_lost => {}
                Action::Ack { .. } => assert!(self.acked.insert(id.clone()), "{id} was acked twice"),
                Action::Move { to, .. } if to == Address::topic("jobs.dlq") => {
                    assert!(self.dead.insert(id.clone()), "{id} was dead-lettered twice");
                }
                _ => {}
            }
        }
    }

    /// Replays a dead letter, with its own or another body.
    async fn replay(&mut self) {
        let Some(id) = self.dead.pop_first() else { return };
        let change = Change::Replay((self.pick(2) == 0).then(|| self.body()));
        let ledger = self.broker.sqlite.ledger().unwrap();
        let answers = ledger.change(&id.as_str().into(), Of::All, change, "ada").await.unwrap();
        assert_eq!(answers.iter().map(|answer| answer.changed).collect::<Vec<_>>(), [Changed::Done]);
    }

    /// Reschedules a message if it is pending, sometimes to the due time of another one.
    async fn reschedule(&mut self) {
        let Some(chosen) = (!self.sent.is_empty()).then(|| self.pick(self.sent.len())) else { return };
        let due = match self.pick(3) {
            0 => self.sent[&self.pick(self.sent.len()).to_string()].max(self.broker.now()),
            _ => self.broker.now().after(MILLI * self.pick(60_000) as u32),
        };
        let (id, ledger) = (chosen.to_string(), self.broker.sqlite.ledger().unwrap());
        let change = Change::Reschedule(Due::At(due));
        let answers = ledger.change(&id.as_str().into(), Of::All, change, "ada").await.unwrap();
        if answers.iter().any(|answer| answer.changed == Changed::Done) {
            self.sent.insert(id, due);
        }
    }

    /// Cancels a message if it is pending.
    async fn cancel(&mut self) {
        let Some(chosen) = (!self.sent.is_empty()).then(|| self.pick(self.sent.len())) else { return };
        let (id, ledger) = (chosen.to_string(), self.broker.sqlite.ledger().unwrap());
        let answers = ledger.change(&id.as_str().into(), Of::All, Change::Cancel, "ada").await.unwrap();
        if answers.iter().any(|answer| answer.changed == Changed::Done) {
            assert!(self.cancelled.insert(id.clone()), "{id} was cancelled twice");
        }
    }

    /// Moves the entries of pending messages to other parts, as if there were very many messages.
    /// Any assignment is valid.
    fn scatter(&self) {
        let connection = self.broker.file.connection();
        let scatter = format!(
            "BEGIN IMMEDIATE;
             UPDATE message SET part = (number * 7 + {by}) % 5 WHERE phase = 0 OR state IN (6, 7);
             UPDATE message SET was_part = 5 + number % 2 WHERE was_part IS NOT NULL;
             DELETE FROM waiting;
             INSERT INTO waiting SELECT topic, part, due, number FROM message WHERE phase = 0;
             INSERT INTO waiting SELECT topic, was_part, was_due, number FROM message WHERE was_part IS NOT NULL;
             COMMIT",
            by = self.pick(5)
        );
        connection.execute_batch(&scatter).unwrap();
    }

    /// Checks the counts of unfinished messages in two ways.
    async fn check(&self) {
        self.broker.file.check();
        let held = self.broker.held();
        let counts = self.broker.sqlite.ledger().unwrap().counts().await.unwrap();
        let is_over = |state| matches!(state, State::Done | State::Cancelled | State::Discarded);
        let counted: u64 = counts.iter().filter(|count| !is_over(count.state)).map(|count| count.count).sum();
        let total = (held.waiting + held.ready + held.leased) as u64;
        let over = self.acked.len() + self.cancelled.len();
        assert_eq!((counted, self.sent.len() - over), (total, total as usize));
    }

    async fn drain(&mut self) {
        while !self.dead.is_empty() {
            self.replay().await;
        }
        let name = if self.is_declared { "jobs" } else { "adopter" };
        let adopter = self.broker.subscribe(Subscription::new("jobs", name)).await;
        self.check().await;
        for consumer in &self.consumers {
            consumer.close().await.unwrap();
        }
        self.broker.clock.advance(SECOND * 120).await;
        for delivery in adopter.receive(10_000, Duration::ZERO, None).await.unwrap() {
            assert!(self.acked.insert(delivery.message.id.to_string()));
            ack(&adopter, delivery).await;
        }
        assert_eq!(self.acked.len() + self.cancelled.len(), self.sent.len());
        assert!(self.broker.held().is_empty());
        self.broker.file.check();
    }
}

#[tokio::test]
async fn random_operations_lose_and_miscount_nothing_and_keep_order() {
    for seed in 0..20 {
        let mut life = Life::new(seed, seed % 2 == 1).await;
        for _ in 0..300 {
            match life.pick(14) {
                0..3 => life.send().await,
                3..6 => life.receive().await,
                6..8 => life.settle().await,
                8 => life.replay().await,
                9..11 => life.reschedule().await,
                11 => life.cancel().await,
                12 => life.scatter(),
                _ => {
                    let by = MILLI * life.pick(20_000) as u32;
                    life.broker.clock.advance(by).await;
                    life.check().await;
                }
            }
        }
        life.drain().await;
    }
}
