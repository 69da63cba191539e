//! The documentation describes the actual layout: every key, its type, and every field.

mod stage;

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Action, Address, Attempts, Consumer, Delivery, Due, Envelope, OnConflict, Outcome, Settle, Timestamp,
    Transport, wire,
};
use dwell_redis::Redis;
use stage::{PATIENCE, connect, mail, note, order, said, send, subscribed};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

const PAGE: &str = include_str!("../../../docs/transports/redis.md");
const LATER: Due = Due::After(Duration::from_secs(3600));

/// Returns the words between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns the keys of the table, each with its type. Names that users choose are `*`.
fn documented() -> BTreeMap<String, &'static str> {
    let layout = PAGE.split("## Layout").nth(1).unwrap();
    let rows = layout.lines().filter(|line| line.starts_with("| `dwell:"));
    let mut all = BTreeMap::new();
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        if cells[1] == "as above" {
            continue;
        }
        let names = quoted(cells[0]);
        let (stem, _) = names[0].rsplit_once(':').unwrap();
        let types: Vec<_> = cells[1].split(", ").filter(|of| !of.starts_with("group")).collect();
        for (index, name) in names.iter().enumerate() {
            let key = if index == 0 { (*name).to_owned() } else { format!("{stem}:{name}") };
            let kind = match *types.get(index).unwrap_or(&types[0]) {
                "sorted set" => "zset",
                "text" | "number" => "string",
                kind => kind,
            };
            all.insert(plain(&key), kind);
        }
    }
    all
}

/// Replaces the names that users choose in a key.
fn plain(key: &str) -> String {
    if key.starts_with("dwell:inbox:{") {
        return "dwell:inbox:*".to_owned();
    }
    let Some((_, rest)) = key.split_once('}') else { return key.to_owned() };
    let rest = rest.trim_start_matches(".dlq").trim_start_matches(".invalid");
    let parts: Vec<_> = rest.splitn(3, ':').collect();
    match parts[..] {
        ["", what, _] => format!("{what}:*"),
        _ => rest.trim_start_matches(':').to_owned(),
    }
}

/// Returns the documented fields of stream entries, pending entries and finished records.
fn documented_fields() -> BTreeSet<&'static str> {
    let start = PAGE.find("Stream entries and pending entries").unwrap();
    quoted(PAGE[start..].split("To inspect ready messages").next().unwrap()).into_iter().collect()
}

struct Stage {
    server: RedisServer,
    redis: Redis,
    consumer: Arc<dyn Consumer>,
}

impl Stage {
    async fn receive(&self, lease: Duration) -> Delivery {
        self.consumer.receive(1, PATIENCE, Some(lease)).await.unwrap().remove(0)
    }

    async fn settle(&self, delivery: Delivery, action: Action, outcome: Outcome) {
        let mut note = note();
        (note.outcome, note.error) = (outcome, Some("why".into()));
        let unsettled = self.consumer.settle(vec![Settle { delivery, action, note }]).await;
        assert!(unsettled.is_empty(), "{unsettled:?}");
    }

    /// Sends a message, and receives it.
    async fn one(&self, id: &str) -> Delivery {
        let mut envelope = order(id);
        envelope.message.key = Some("key".into());
        envelope.message.content_type = "text/plain".into();
        envelope.message.sent_at = Some(Timestamp(1));
        envelope.message.headers.set("a", "b");
        send(&self.redis, envelope).await.unwrap();
        self.receive(PATIENCE * 10).await
    }
}

/// Creates every kind of key once.
async fn everything() -> Stage {
    let server = RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    let stage = Stage { server, redis, consumer };

    send(&stage.redis, Envelope { copy: true, ..order("copy").due(LATER) }).await.unwrap();
    let done = stage.one("done").await;
    stage.settle(done, Action::Ack { result: Some("42".into()) }, Outcome::Handled).await;
    let mut failed = stage.one("failed").await;
    failed.message.attempts = Attempts { handled: 1, failed: 1 };
    stage.settle(failed, Action::Move { to: mail().address(), due: LATER }, Outcome::Failed).await;
    let mut lost = stage.one("lost").await;
    lost.message.headers.set(wire::LOST_COUNT, "1");
    stage.settle(lost, Action::Move { to: mail().address(), due: LATER }, Outcome::Released).await;
    let mut dead = stage.one("dead").await;
    dead.message.headers.set(wire::ORIGINAL_TOPIC, "orders");
    let to = Address::topic("orders.dlq");
    stage.settle(dead, Action::Move { to, due: Due::NOW }, Outcome::Exhausted).await;
    drop(stage.one("held").await);
    send(&stage.redis, order("crashes")).await.unwrap();
    let crashed = stage.receive(Duration::from_millis(1)).await;
    assert_eq!(stage.receive(PATIENCE * 10).await.message.id, crashed.message.id);

    let chosen = |id: &str| Envelope { once: Some(OnConflict::Fail), ..order(id) };
    send(&stage.redis, chosen("chosen")).await.unwrap();
    send(&stage.redis, chosen("chosen-later").due(LATER)).await.unwrap();
    drop(stage.receive(PATIENCE * 10).await);
    let put = ["xadd", "dwell:{orders}:incoming", "*", "type", "orders.placed", "body", "{}"];
    for fields in [&["id", "foreign", "delay", "900000"][..], &["delay", "soon"][..]] {
        said(&stage.server, &[&put, fields].concat());
    }
    drop(stage.receive(PATIENCE * 10).await);
    said(&stage.server, &put);

    let spread = connect(&format!("{}?shards=2", stage.server.url())).await.unwrap();
    send(&spread, order("spread").due(LATER)).await.unwrap();
    let inbox = stage.redis.inbox().unwrap();
    inbox.done("orders/mail", &"a".into(), PATIENCE).await.unwrap();
    let sure = connect(&format!("{}?replicas=1&timeout=2s", stage.server.url())).await.unwrap();
    send(&sure, order("unconfirmed").due(LATER)).await.unwrap_err();
    stage
}

#[tokio::test]
async fn every_key_and_field_is_documented() {
    let (stage, documented, mut seen) = (everything().await, documented(), BTreeSet::new());
    let keys = said(&stage.server, &["keys", "dwell:*"]);
    let mut streams = vec![];
    for key in keys.lines() {
        let kind = said(&stage.server, &["type", key]);
        assert_eq!(documented.get(&plain(key)).copied(), Some(&*kind), "{key} is a {kind}: {documented:?}");
        seen.insert(plain(key));
        if key.contains(":ready:") {
            streams.push(key);
        }
    }
    let shown: BTreeSet<_> = documented.keys().cloned().collect();
    assert_eq!(
        shown.difference(&seen).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "documented keys that do not exist"
    );

    let lua = "local names = {} \
               local function note(item) for i = 1, #item, 2 do names[item[i]] = true end end \
               for _, key in ipairs(KEYS) do \
                 if redis.call('TYPE', key)['ok'] == 'stream' then \
                   for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do note(entry[2]) end \
                 else \
                   for _, raw in ipairs(redis.call('HVALS', key)) do note(cmsgpack.unpack(raw)) end \
                 end \
               end \
               local all = {} for name in pairs(names) do all[#all + 1] = name end return all";
    let packed = keys.lines().filter(|key| key.ends_with(":waiting") || key.ends_with(":over"));
    let places: Vec<_> = streams.into_iter().chain(packed).collect();
    let count = places.len().to_string();
    let fields = said(&stage.server, &[&["eval", lua, &count], &places[..]].concat());
    let fields: BTreeSet<_> = fields.lines().collect();
    assert_eq!(fields, documented_fields());
}
