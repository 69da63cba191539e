//! Randomised test: nothing is lost, early, out of order or miscounted.

use super::*;
use dwell_core::{Random, SeededRandom};
use std::collections::{BTreeMap, BTreeSet};

struct Life {
    broker: Broker,
    random: SeededRandom,
    consumers: Vec<Arc<dyn Consumer>>,
    /// Leased deliveries of each consumer.
    hands: Vec<Vec<Delivery>>,
    sent: BTreeMap<String, Timestamp>,
    seen: BTreeSet<String>,
    acked: BTreeSet<String>,
    /// For each key, the last message that was delivered for the first time.
    last: BTreeMap<String, u64>,
}

impl Life {
    async fn new(seed: u64) -> Self {
        let broker = Broker::new().await;
        let topic = Topic::named("jobs").keep();
        broker.memory.provision(&[topic], &[], OnMissing::Create).await.unwrap();
        let kept = Subscription::new("jobs", "jobs");
        let mut consumers = Vec::new();
        for _ in 0..3 {
            consumers.push(broker.memory.consumer(kept.clone()).await.unwrap());
        }
        Self {
            broker,
            random: SeededRandom::new(seed),
            hands: consumers.iter().map(|_| Vec::new()).collect(),
            consumers,
            sent: BTreeMap::new(),
            seen: BTreeSet::new(),
            acked: BTreeSet::new(),
            last: BTreeMap::new(),
        }
    }

    fn pick(&self, below: usize) -> usize {
        (self.random.next() % below as u64) as usize
    }

    async fn send(&mut self) {
        let n = self.sent.len();
        let mut envelope = Envelope { to: Address::topic("jobs"), ..order(&n.to_string()) };
        match self.pick(4) {
            0 => envelope.due = after(MILLI * self.pick(60_000) as u32),
            1 => {}
            key => envelope.message.key = Some(key.to_string().into()),
        }
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
            if let Some(key) = &message.key {
                let key = String::from_utf8(key.to_vec()).unwrap();
                let others = (0..self.hands.len()).filter(|other| *other != who);
                let held = others
                    .flat_map(|other| &self.hands[other])
                    .filter(|held| held.message.key == message.key);
                for held in held {
                    // Allowed only if that lease has expired, which only the broker knows.
                    let lease = held.receipt.lease();
                    let lost = self.consumers[0].extend(vec![lease], Some(LEASE)).await.unwrap();
                    assert_eq!(lost, [lease], "{id} and {} have one key and two consumers", held.message.id);
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
            let action = match self.pick(4) {
                0 => Action::Release,
                1 => {
                    delivery.message.attempts.handled += 1;
                    delivery.message.key = None;
                    let to = Address::subscription("jobs", "jobs");
                    Action::Move { to, due: after(MILLI * self.pick(40_000) as u32) }
                }
                _ => Action::ACK,
            };
            batch.push(settlement(delivery, action));
        }
        let acks: Vec<_> = batch
            .iter()
            .map(|settle| {
                (
                    settle.delivery.receipt.lease(),
                    settle.delivery.message.id.to_string(),
                    settle.action == Action::ACK,
                )
            })
            .collect();
        let unsettled = self.consumers[who].settle(batch).await;
        for (lease, id, is_ack) in acks {
            let is_lost =
                unsettled.iter().any(|unsettled| unsettled.settle.delivery.receipt.lease() == lease);
            if is_ack && !is_lost {
                assert!(self.acked.insert(id.clone()), "{id} was acked twice");
            }
        }
    }

    /// Compares the numbers of messages from three sources.
    async fn check(&self) {
        let held = self.broker.memory.held();
        let counts = self.broker.memory.ledger().unwrap().counts().await.unwrap();
        let counted: u64 = counts.iter().map(|count| count.count).sum();
        let total = (held.waiting + held.ready + held.leased) as u64;
        assert_eq!((counted, self.sent.len() - self.acked.len()), (total, total as usize));
    }

    async fn drain(&mut self) {
        let adopter = self.broker.subscribe(Subscription::new("jobs", "adopter")).await;
        self.check().await;
        for consumer in &self.consumers {
            consumer.close().await.unwrap();
        }
        self.broker.clock.advance(SECOND * 120).await;
        for delivery in adopter.receive(10_000, Duration::ZERO, None).await.unwrap() {
            assert!(self.acked.insert(delivery.message.id.to_string()));
            ack(&adopter, delivery).await;
        }
        assert_eq!(self.acked.len(), self.sent.len());
        assert!(self.broker.memory.held().is_empty());
    }
}

#[tokio::test]
async fn random_operations_lose_nothing_and_keep_order() {
    for seed in 0..60 {
        let mut life = Life::new(seed).await;
        for _ in 0..300 {
            match life.pick(9) {
                0..3 => life.send().await,
                3..6 => life.receive().await,
                6..8 => life.settle().await,
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
