//! `apalis` on its memory backend, which moves the struct without encoding.

use crate::{
    CAPACITY,
    message::{Left, Placed},
};
use apalis::prelude::{
    Data, MemorySink, MemoryStorage, MemoryStorageError, Task, TaskBuilder, WorkerBuilder,
};
use futures_channel::mpsc::{self, Sender};
use futures_util::{Sink, SinkExt, lock::Mutex};
use std::{sync::Arc, time::Instant};

async fn handle(_: Placed, left: Data<Left>) {
    left.handled();
}

/// Each producer has a separate sink: a shared one panics on concurrent use.
fn sink(send: Sender<Task<Placed>>) -> MemorySink<Placed> {
    let send: Box<dyn Sink<_, Error = MemoryStorageError> + Send + Sync + Unpin> =
        Box::new(send.sink_map_err(MemoryStorageError::from));
    MemorySink::new(Arc::new(Mutex::new(send)))
}

/// Messages per second, from push to handled.
pub(crate) async fn rate(messages: usize, producers: usize) -> f64 {
    let left = Left::new(messages);
    let (send, receive) = mpsc::channel(CAPACITY);
    let storage = MemoryStorage::new_with(sink(send.clone()), Box::pin(receive));
    let worker = WorkerBuilder::new("bench").backend(storage).data(left.clone()).build(handle);
    let start = Instant::now();
    let worker = tokio::spawn(worker.run());
    for producer in 0..producers {
        let mut sink = sink(send.clone());
        tokio::spawn(async move {
            for number in (producer..messages).step_by(producers) {
                sink.send(TaskBuilder::new(Placed::new(number)).build()).await.expect("the worker listens");
            }
        });
    }
    left.none().await;
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    worker.abort();
    rate
}
