//! The end that takes messages in. Sends that are made at the same time go to the server together.

use crate::{accept::accept, store::Store};
use dwell_core::{BoxFuture, Envelope, Error, ErrorKind, Producer, Result, Sent};
use std::sync::{Arc, Weak};
use tokio::sync::{mpsc, oneshot};

/// How many sends of their own go together at most.
const TOGETHER: usize = 500;

/// A batch of this size is worth a script of its own.
const LARGE: usize = 50;

struct Order {
    batch: Vec<Envelope>,
    answer: oneshot::Sender<Vec<Result<Sent>>>,
}

pub(crate) struct RedisProducer {
    store: Arc<Store>,
    orders: mpsc::UnboundedSender<Order>,
}

impl RedisProducer {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        tokio::spawn(work(Arc::downgrade(&store), inbox));
        Self { store, orders }
    }
}

/// Whatever was ordered while the last group was on its way is the next group. Ends with the producer.
async fn work(store: Weak<Store>, mut inbox: mpsc::UnboundedReceiver<Order>) {
    let mut group = vec![];
    while inbox.recv_many(&mut group, TOGETHER).await > 0 {
        let Some(store) = store.upgrade() else { return };
        let envelopes: Vec<_> = group.iter().flat_map(|order| &order.batch).collect();
        let mut results = accept(&store, &envelopes).await.into_iter();
        for order in group.drain(..) {
            let answers = results.by_ref().take(order.batch.len()).collect();
            // Whoever has gone does not want to know.
            let _ = order.answer.send(answers);
        }
    }
}

impl Producer for RedisProducer {
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>> {
        Box::pin(async move {
            if let Err(error) = self.store.open() {
                return batch.iter().map(|_| Err(error.again())).collect();
            }
            if batch.len() >= LARGE {
                return accept(&self.store, &batch.iter().collect::<Vec<_>>()).await;
            }
            let (answer, answers) = oneshot::channel();
            let sent = self.orders.send(Order { batch: batch.to_vec(), answer });
            match (sent, answers.await) {
                (Ok(()), Ok(results)) => results,
                _ => {
                    let text = "the sender was stopped: it may or may not have been sent";
                    batch.iter().map(|_| Err(Error::new(ErrorKind::Timeout, text))).collect()
                }
            }
        })
    }
}
