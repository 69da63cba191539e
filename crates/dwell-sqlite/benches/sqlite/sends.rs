//! Benchmark of durable sends: single messages from very many senders, and batches. Both sides
//! start with equally many messages in the file, so that one-time costs, such as a growing log and
//! reserve, are not measured.

use crate::{
    Scale,
    disk::Place,
    ours::{self, envelopes},
    raw::Raw,
    raw_group_commit,
};
use dwell_bench::Output;
use dwell_core::{Envelope, Producer, Seams, Transport};
use std::{sync::Arc, time::Instant};

/// Maximum number of messages in one transaction of the transport.
pub(crate) const GROUP: usize = 1000;
const BATCH: usize = 500;
/// Number of concurrent senders of batches: enough that the next group is ready when the previous
/// one is done.
const SENDERS: usize = 4;

pub(crate) async fn run(output: &Output, scale: &Scale) {
    let messages = scale.messages;
    for senders in scale.senders {
        // Each sender has one message in flight, so no group is larger.
        let group = senders.min(GROUP);
        let (mut beside_one, mut beside_as_many) = (vec![], vec![]);
        for _ in 0..scale.rounds {
            let ours = ours(messages, senders, 1).await;
            beside_one.push((ours, raw(messages, group)));
            beside_as_many.push((ours, raw_group_commit::rate(messages, senders).await));
        }
        output.rates(&format!("durable sends, {senders} senders / bare, groups of {group}"), beside_one);
        output.rates(
            &format!(
                "durable sends, {senders} senders / bare with {senders} senders that wait for their commit"
            ),
            beside_as_many,
        );
    }
    let mut rounds = vec![];
    for _ in 0..scale.rounds {
        rounds.push((ours(messages, SENDERS, BATCH).await, raw(messages, GROUP)));
    }
    output.rates(&format!("durable sends, batches of {BATCH} / bare, groups of {GROUP}"), rounds);
}

async fn ours(messages: usize, senders: usize, batch: usize) -> f64 {
    let (place, seams) = (Place::new(), Seams::system("bench"));
    let (sqlite, _) = ours::open_subscribed(place.path(), &seams).await;
    let producer = sqlite.producer().await.expect("the file is open");
    for sent in producer.send(&envelopes(&seams, messages)).await {
        sent.expect("the send succeeds");
    }
    let shares = shares(envelopes(&seams, messages), senders, batch);
    let start = Instant::now();
    let senders = shares.into_iter().map(|share| tokio::spawn(send(producer.clone(), share, batch)));
    let senders: Vec<_> = senders.collect();
    for sender in senders {
        sender.await.expect("the sender succeeds");
    }
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    sqlite.close().await.expect("closing the file succeeds");
    rate
}

/// Divides the envelopes among the senders in alternation. Ids are generated when a message is
/// sent, so all senders use similar ids at the same time.
pub(crate) fn shares(all: Vec<Envelope>, senders: usize, batch: usize) -> Vec<Vec<Envelope>> {
    let mut shares = vec![vec![]; senders];
    for (at, envelope) in all.into_iter().enumerate() {
        shares[at / batch % senders].push(envelope);
    }
    shares
}

async fn send(producer: Arc<dyn Producer>, share: Vec<Envelope>, batch: usize) {
    for batch in share.chunks(batch) {
        for sent in producer.send(batch).await {
            sent.expect("the send succeeds");
        }
    }
}

/// Returns a bare file with this number of messages.
pub(crate) fn raw_with(place: &Place, seams: &Seams, messages: usize) -> Raw {
    let mut raw = Raw::open(place.path());
    for group in envelopes(seams, messages).chunks(GROUP) {
        raw.insert(group, seams.clock.now());
    }
    raw
}

fn raw(messages: usize, group: usize) -> f64 {
    let (place, seams) = (Place::new(), Seams::system("bench"));
    let mut raw = raw_with(&place, &seams, messages);
    let all = envelopes(&seams, messages);
    let start = Instant::now();
    for group in all.chunks(group) {
        raw.insert(group, seams.clock.now());
    }
    messages as f64 / start.elapsed().as_secs_f64()
}
