//! Comparison with apalis on SQLite, for the same durable work: push, fetch, handle and ack.
//!
//! Apalis runs in a separate program, in alternation with Dwell, because the two need different
//! versions of SQLite's C library.

use crate::{
    Scale,
    disk::Place,
    ours::{self, Count, TOPIC, envelopes},
};
use dwell_bench::Output;
use dwell_core::{Envelope, OnMissing, Seams, Topic, Transport};
use dwell_engine::{Engine, SubscriptionSettings, Work};
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Instant,
};

const ROUNDS: usize = 3;
const NAME: &str = "dwell-bench-apalis-sqlite";

pub(crate) async fn run(output: &Output, scale: &Scale) {
    let Some(messages) = scale.other else { return };
    let program = build();
    let shapes = [(1000, 1), (4, 500)];
    let mut rates = [vec![], vec![]];
    for _ in 0..ROUNDS {
        for ((senders, batch), rates) in shapes.into_iter().zip(&mut rates) {
            rates.push((ours(messages, senders, batch).await, other(&program, messages, senders, batch)));
        }
    }
    for ((senders, batch), rates) in shapes.into_iter().zip(rates) {
        let how = if batch == 1 { format!("{senders} senders") } else { format!("batches of {batch}") };
        output.rates(&format!("push, fetch and ack, {how} / apalis on SQLite"), rates);
    }
}

async fn ours(messages: usize, senders: usize, batch: usize) -> f64 {
    let (place, seams) = (Place::new(), Seams::system("bench"));
    let sqlite: Arc<dyn Transport> = Arc::new(ours::open(place.path(), &seams));
    let topics = [Topic::named(TOPIC).keep()];
    sqlite.provision(&topics, &[], OnMissing::Create).await.expect("the file is writable");
    let engine = Engine::builder(sqlite, seams.clone()).build().await.expect("SQLite needs no store");
    let shares: Vec<_> = (0..senders).map(|_| envelopes(&seams, messages / senders)).collect();
    let handled = Count::down_from(messages);

    let start = Instant::now();
    let senders: Vec<_> =
        shares.into_iter().map(|share| tokio::spawn(send(engine.clone(), share, batch))).collect();
    for sender in senders {
        sender.await.expect("the sender succeeds");
    }
    let settings = SubscriptionSettings { batch: 500, ..SubscriptionSettings::new(TOPIC, TOPIC) };
    engine.subscribe(settings, Work::Async(handled.clone())).await.expect("the settings are valid");
    handled.done().await;
    // The shutdown acknowledges the remaining messages.
    engine.shutdown().await.expect("closing the file succeeds");
    messages as f64 / start.elapsed().as_secs_f64()
}

async fn send(engine: Engine, share: Vec<Envelope>, batch: usize) {
    for batch in share.chunks(batch) {
        ours::send(&engine, batch).await;
    }
}

/// Builds the other program, which is not part of this workspace.
fn build() -> PathBuf {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/apalis-sqlite");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("apalis-sqlite");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--locked", "--target-dir"])
        .arg(&target)
        .current_dir(home)
        .status();
    assert!(built.is_ok_and(|status| status.success()), "building the apalis benchmark failed");
    target.join("release").join(NAME)
}

fn other(program: &Path, messages: usize, senders: usize, batch: usize) -> f64 {
    let place = Place::new();
    let numbers = [messages, senders, batch].map(|number| number.to_string());
    let output =
        Command::new(program).arg(place.path()).args(numbers).output().expect("the apalis benchmark starts");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| {
        panic!("the apalis benchmark printed no rate: {}", String::from_utf8_lossy(&output.stderr))
    })
}
