//! Bare SQLite behind a channel, as it would be written by hand: many senders that each wait for
//! the commit of their message, and one thread that writes all waiting messages in one transaction.

use crate::{
    disk::Place,
    ours::envelopes,
    raw::Raw,
    sends::{GROUP, raw_with, shares},
};
use dwell_core::{Envelope, Seams};
use std::{
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Instant,
};
use tokio::sync::oneshot;

type Order = (Envelope, oneshot::Sender<()>);

/// Returns the rate of durable single sends by these senders, in messages per second.
pub(crate) async fn rate(messages: usize, senders: usize) -> f64 {
    let (place, seams) = (Place::new(), Seams::system("bench"));
    let raw = raw_with(&place, &seams, messages);
    let shares = shares(envelopes(&seams, messages), senders, 1);
    let (queue, orders) = mpsc::channel();
    let start = Instant::now();
    let writer = thread::spawn(move || write(raw, &orders, &seams));
    let senders = shares.into_iter().map(|share| tokio::spawn(send(queue.clone(), share)));
    let senders: Vec<_> = senders.collect();
    for sender in senders {
        sender.await.expect("the sender succeeds");
    }
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    drop(queue);
    writer.join().expect("the writer thread does not panic");
    rate
}

async fn send(queue: Sender<Order>, share: Vec<Envelope>) {
    for envelope in &share {
        let (answer, answered) = oneshot::channel();
        queue.send((envelope.clone(), answer)).expect("the writer is running");
        answered.await.expect("the writer confirms the message");
    }
}

fn write(mut raw: Raw, orders: &Receiver<Order>, seams: &Seams) {
    while let Ok(first) = orders.recv() {
        let (group, answers): (Vec<_>, Vec<_>) =
            [first].into_iter().chain(orders.try_iter()).take(GROUP).unzip();
        raw.insert(&group, seams.clock.now());
        for answer in answers {
            answer.send(()).expect("the sender is waiting");
        }
    }
}
