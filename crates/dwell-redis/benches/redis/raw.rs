//! The bare client: the same scripts with the same keys and arguments, and nothing else.

use dwell_conformance::servers::redis::RedisServer;
use dwell_core::{Due, Envelope};
use redis::{Cmd, Script, Value, aio::MultiplexedConnection};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! script {
    ($first:literal, $file:literal) => {
        concat!($first, "\n", include_str!("../../src/scripts/prelude.lua"), include_str!($file))
    };
}

pub(crate) const ACCEPT: &str = script!("#!lua", "../../src/scripts/accept.lua");
pub(crate) const CLAIM: &str = script!("#!lua flags=allow-oom", "../../src/scripts/claim.lua");
pub(crate) const SETTLE: &str = script!("#!lua flags=allow-oom", "../../src/scripts/settle.lua");
pub(crate) const PROMOTE: &str = script!("#!lua flags=allow-oom", "../../src/scripts/promote.lua");

/// Returns the name of a script with this hash.
pub(crate) fn script_of(hash: &str) -> Option<&'static str> {
    let all = [
        ("accept", ACCEPT),
        ("claim", CLAIM),
        ("settle", SETTLE),
        ("promote", PROMOTE),
        ("give_back", script!("#!lua flags=allow-oom", "../../src/scripts/give_back.lua")),
        ("tidy", script!("#!lua flags=allow-oom", "../../src/scripts/tidy.lua")),
    ];
    all.into_iter().find(|(_, text)| Script::new(text).get_hash() == hash).map(|(name, _)| name)
}

/// Number of messages in one script, as in Dwell.
pub(crate) const CHUNK: usize = 200;

#[derive(Clone)]
pub(crate) struct Raw(MultiplexedConnection);

impl Raw {
    pub(crate) async fn connect(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).expect("the URL is valid");
        let mut connection = client.get_multiplexed_async_connection().await.expect("the server answers");
        for text in [ACCEPT, CLAIM, SETTLE, PROMOTE] {
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async::<Value>(&mut connection).await;
            load.expect("the script is loaded");
        }
        Self(connection)
    }

    pub(crate) async fn run(&self, command: &Cmd) -> Value {
        command.query_async(&mut self.0.clone()).await.expect("the script runs")
    }
}

/// Returns a call of a script on the topic `orders` with the subscription `mail`, up to the
/// script's own arguments.
pub(crate) fn call(text: &str, version: &str) -> Cmd {
    let mut keys: Vec<String> = vec![];
    let names = "sequence records places ids over ended counts calls:raw topic waiting due wake known forget aliases \
                 incoming";
    keys.extend(names.split(' ').map(|name| format!("dwell:{{orders}}:{name}")));
    keys.extend(["ready", "leases", "held"].map(|name| format!("dwell:{{orders}}:{name}:mail")));
    let mut command = redis::cmd("EVALSHA");
    command.arg(Script::new(text).get_hash()).arg(keys.len()).arg(keys);
    // Each is a separate call.
    static CALLS: AtomicU64 = AtomicU64::new(1);
    let call = CALLS.fetch_add(1, Ordering::Relaxed).to_string();
    command.arg(&["", "1", "86400000", "3600000", "1", &call, &call]);
    command.arg(&["orders", version, "", "0", "1", "mail"]);
    command
}

fn text(packed: &mut Vec<u8>, text: &[u8]) {
    match text.len() {
        length @ 0..=31 => packed.push(0xa0 | length as u8),
        length => packed.extend([0xd9, u8::try_from(length).expect("short")]),
    }
    packed.extend(text);
}

/// Returns commands that send all of them.
pub(crate) fn accepts(version: &str, envelopes: &[Envelope]) -> Vec<Cmd> {
    let chunks = envelopes.chunks(CHUNK).map(|chunk| {
        let mut command = call(ACCEPT, version);
        for envelope in chunk {
            let message = &envelope.message;
            let mut packed = vec![0x96];
            let fields: [&[u8]; 6] =
                [b"id", message.id.0.as_bytes(), b"type", message.kind.as_bytes(), b"body", &message.body];
            fields.into_iter().for_each(|field| text(&mut packed, field));
            let (mode, value, content, name) = match envelope.due {
                Due::At(at) => ("a", at.0, "0".repeat(32), message.id.to_string()),
                Due::After(_) => ("n", 0, String::new(), String::new()),
            };
            command
                .arg("")
                .arg(mode)
                .arg(value)
                .arg("")
                .arg(content)
                .arg(name)
                .arg("scheduled")
                .arg("")
                .arg("")
                .arg(packed);
        }
        command
    });
    chunks.collect()
}

pub(crate) fn claim(version: &str, most: usize) -> Cmd {
    let mut command = call(CLAIM, version);
    command.arg("mail").arg(most).arg(30_000).arg("raw").arg(1).arg(200).arg(16 << 20);
    command
}

/// Returns the elements of a list.
pub(crate) fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        _ => vec![],
    }
}

/// Acknowledges the deliveries of a claim. Returns their number.
pub(crate) async fn settle(raw: &Raw, version: &str, claimed: Value) -> usize {
    let found = list(list(claimed).swap_remove(1));
    for chunk in found.chunks(CHUNK) {
        let mut command = call(SETTLE, version);
        command.arg("mail").arg("raw");
        for delivery in chunk {
            let parts = list(delivery.clone());
            let (Value::BulkString(entry), Value::Int(fence)) = (&parts[0], &parts[1]) else {
                panic!("{parts:?}")
            };
            command.arg(entry).arg(*fence).arg("done").arg("raw");
            (0..12).for_each(|_| _ = command.arg(""));
        }
        raw.run(&command).await;
    }
    found.len()
}
