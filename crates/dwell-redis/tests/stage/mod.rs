//! Common setup of tests with a separate server: a topic of orders, and its consumer.
#![allow(dead_code, reason = "no test uses all of it")]

use dwell_conformance::servers::redis::RedisServer;
use dwell_core::{
    Action, Address, Consumer, Delivery, Envelope, Message, Note, OnMissing, Outcome, Result, Seams, Sent,
    Settle, Subscription, Transport, TransportUrl,
};
use dwell_redis::Redis;
use std::{sync::Arc, time::Duration};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn connect(url: &str) -> Result<Redis> {
    dwell_redis::connect(&TransportUrl::parse(url)?, Seams::system("test")).await
}

/// A subscription with short leases, because some tests wait for one to expire.
pub(crate) fn mail() -> Subscription {
    Subscription { lease: Duration::from_secs(2), ..Subscription::new("orders", "mail") }
}

pub(crate) async fn subscribed(redis: &Redis) -> Arc<dyn Consumer> {
    redis.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    redis.consumer(mail()).await.unwrap()
}

pub(crate) fn order(id: &str) -> Envelope {
    Envelope::new(Address::topic("orders"), Message::new(id, "orders.placed", id.to_owned()))
}

pub(crate) async fn send(redis: &Redis, envelope: Envelope) -> Result<Sent> {
    redis.producer().await?.send(&[envelope]).await.pop().unwrap()
}

pub(crate) fn note() -> Note {
    Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None }
}

pub(crate) async fn settle(consumer: &Arc<dyn Consumer>, delivery: Delivery, action: Action) {
    let unsettled = consumer.settle(vec![Settle { delivery, action, note: note() }]).await;
    assert!(unsettled.is_empty(), "{unsettled:?}");
}

/// Returns the answer of the server.
pub(crate) fn said(server: &RedisServer, arguments: &[&str]) -> String {
    String::from_utf8_lossy(&server.cli(arguments).unwrap().stdout).trim().to_owned()
}

/// Whether a client is waiting for replicas now. Idle clients have a last command as well.
pub(crate) fn is_waiting(server: &RedisServer) -> bool {
    let clients = said(server, &["client", "list"]);
    clients.lines().any(|client| client.contains("cmd=wait") && client.contains("flags=b"))
}
