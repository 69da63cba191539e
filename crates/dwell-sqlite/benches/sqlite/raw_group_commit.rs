//! Bare SQLite behind a channel, as one writes it by hand: many senders who each wait until their own message is committed,
//! and one thread that takes all who wait into one transaction.

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

/// Durable sends, one by one by each of the senders: messages per second.
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
        sender.await.expect("the sender has sent");
    }
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    drop(queue);
    writer.join().expect("the writer ends when nobody sends");
    rate
}

async fn send(queue: Sender<Order>, share: Vec<Envelope>) {
    for envelope in &share {
        let (answer, answered) = oneshot::channel();
        queue.send((envelope.clone(), answer)).expect("the writer listens");
        answered.await.expect("the writer answers");
    }
}

fn write(mut raw: Raw, orders: &Receiver<Order>, seams: &Seams) {
    while let Ok(first) = orders.recv() {
        let (group, answers): (Vec<_>, Vec<_>) =
            [first].into_iter().chain(orders.try_iter()).take(GROUP).unzip();
        raw.insert(&group, seams.clock.now());
        for answer in answers {
            answer.send(()).expect("the sender waits");
        }
    }
}
