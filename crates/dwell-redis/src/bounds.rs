//! Limits of one script, in bytes: each script runs once, and the rest is checked.

use crate::{
    Redis,
    places::number,
    script::{GIVE_BACK, PROMOTE, Script, TIDY},
};
use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Action, Address, Consumer, Delivery, Due, Envelope, Message, Note, OnMissing, Outcome, Seams, Settle,
    Subscription, Text, Transport, TransportUrl,
};
use redis::Cmd;
use std::{sync::Arc, time::Duration};

/// Three of them are the maximum that a script moves.
const LARGE: usize = 100 << 10;
const MANY: i64 = 20;

struct Stage {
    _server: RedisServer,
    redis: Redis,
    consumer: Arc<dyn Consumer>,
}

impl Stage {
    async fn new(options: &str) -> Self {
        let server = RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap();
        let url = TransportUrl::parse(&format!("{}?promoter=elsewhere{options}", server.url())).unwrap();
        let redis = crate::connect(&url, Seams::system("test")).await.unwrap();
        let mail = Subscription { lease: Duration::from_secs(300), ..Subscription::new("orders", "mail") };
        redis.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
        let consumer = redis.consumer(mail).await.unwrap();
        Self { _server: server, redis, consumer }
    }

    async fn send(&self, due: Due) {
        let large = |n| Message::new(format!("m{n}"), "orders.placed", vec![b'x'; LARGE]);
        let batch: Vec<_> =
            (0..MANY).map(|n| Envelope::new(Address::topic("orders"), large(n)).due(due)).collect();
        let sent = self.redis.producer().await.unwrap().send(&batch).await;
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    }

    async fn receive(&self) -> Vec<Delivery> {
        let mut held = vec![];
        while held.len() < MANY as usize {
            held.extend(self.consumer.receive(100, Duration::from_secs(20), None).await.unwrap());
        }
        held
    }

    async fn ask(&self, command: &[&str]) -> i64 {
        let mut asked = redis::cmd(command[0]);
        command[1..].iter().for_each(|argument| _ = asked.arg(argument));
        number(&self.redis.store.link.query(&asked).await.unwrap())
    }

    /// Runs a script once. Returns whether there is more to do.
    async fn once(&self, script: &Script, with: impl Fn(&mut Cmd)) -> i64 {
        let topics = [Text::from("orders")];
        let answer = self.redis.store.run(script, &topics, |_, command| with(command)).await.unwrap();
        number(&answer[0])
    }
}

#[tokio::test]
async fn promotion_of_large_messages_is_limited_per_script() {
    let stage = Stage::new("").await;
    stage.send(Due::After(Duration::from_millis(1))).await;
    assert_eq!(stage.once(&PROMOTE, |command| _ = command.arg(200)).await, 1);
    assert_eq!(stage.ask(&["XLEN", "dwell:{orders}:ready:mail"]).await, 3);
    assert_eq!(stage.ask(&["ZCARD", "dwell:{orders}:due"]).await, MANY - 3);
    assert_eq!(stage.ask(&["HLEN", "dwell:{orders}:waiting"]).await, MANY - 3);
}

#[tokio::test]
async fn intake_of_large_foreign_messages_is_limited_per_script() {
    let stage = Stage::new("").await;
    let lua = "for _ = 1, 20 do redis.call('XADD', KEYS[1], '*', 'body', string.rep('x', 102400)) end";
    stage.ask(&["EVAL", lua, "1", "dwell:{orders}:incoming"]).await;
    assert_eq!(stage.once(&PROMOTE, |command| _ = command.arg(200)).await, 1);
    assert_eq!(stage.ask(&["XLEN", "dwell:{orders}:ready:mail"]).await, 3);
    assert_eq!(stage.ask(&["XLEN", "dwell:{orders}:incoming"]).await, MANY - 3);
}

#[tokio::test]
async fn recovery_of_large_messages_is_limited_per_script() {
    let stage = Stage::new("").await;
    stage.send(Due::NOW).await;
    stage.receive().await;
    let lua =
        "for _, e in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, e) end";
    stage.ask(&["EVAL", lua, "1", "dwell:{orders}:leases:mail"]).await;
    assert_eq!(stage.once(&PROMOTE, |command| _ = command.arg(200)).await, 1);
    assert_eq!(stage.ask(&["ZCARD", "dwell:{orders}:leases:mail"]).await, MANY - 3);
}

#[tokio::test]
async fn release_of_large_messages_on_close_is_limited_per_script() {
    let stage = Stage::new("").await;
    stage.send(Due::NOW).await;
    let held = stage.receive().await;
    let lua = "return redis.call('XPENDING', KEYS[1], 'dwell', '-', '+', 1)[1][2]";
    let owner = redis::cmd("EVAL").arg(lua).arg(1).arg("dwell:{orders}:ready:mail").to_owned();
    let owner = crate::places::text(&stage.redis.store.link.query(&owner).await.unwrap());
    let given = stage.once(&GIVE_BACK, |command| _ = command.arg("mail").arg(&owner).arg(20)).await;
    assert_eq!((given, stage.ask(&["ZCARD", "dwell:{orders}:leases:mail"]).await), (3, MANY - 3));
    // The later ones, by their fences.
    let leases: Vec<_> = held.iter().skip(3).map(|delivery| delivery.receipt.lease()).collect();
    let entries = crate::entries::Entries::default();
    let given = stage.once(&GIVE_BACK, |command| {
        command.arg("mail").arg(&owner);
        leases.iter().for_each(|lease| _ = command.arg(entries.of(*lease)).arg(lease.fence));
    });
    assert_eq!((given.await, stage.ask(&["ZCARD", "dwell:{orders}:leases:mail"]).await), (3, MANY - 6));
    stage.consumer.close().await.unwrap();
    assert_eq!(stage.ask(&["ZCARD", "dwell:{orders}:leases:mail"]).await, 0);
    assert_eq!(stage.ask(&["XLEN", "dwell:{orders}:ready:mail"]).await, MANY);
}

#[tokio::test]
async fn expiry_of_large_records_is_limited_per_script() {
    let stage = Stage::new("&done=1ms").await;
    stage.send(Due::NOW).await;
    let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
    let acked = stage.receive().await.into_iter();
    let acked = acked.map(|delivery| Settle { delivery, action: Action::ACK, note: note.clone() });
    assert!(stage.consumer.settle(acked.collect()).await.is_empty());
    stage.redis.store.seams.clock.sleep(Duration::from_millis(5)).await;
    let more = stage.once(&TIDY, |command| _ = command.arg(200).arg(600_000).arg(60_000)).await;
    assert_eq!((more, stage.ask(&["HLEN", "dwell:{orders}:over"]).await), (1, MANY - 3));
}
