//! The end that takes messages in.

use crate::{
    accept::{By, content},
    halt::item,
    handle::Handle,
};
use dwell_core::{BoxFuture, Envelope, Producer, Result, Sent};
use std::sync::Arc;

/// How many envelopes one job takes in.
const BATCH: usize = 500;

pub(crate) struct SqliteProducer(pub(crate) Arc<Handle>);

impl Producer for SqliteProducer {
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>> {
        Box::pin(accept(&self.0, batch))
    }
}

/// Takes in a batch, a job at a time: others come in between.
pub(crate) async fn accept(handle: &Handle, batch: &[Envelope]) -> Vec<Result<Sent>> {
    let mut results = Vec::with_capacity(batch.len());
    for chunk in batch.chunks(BATCH) {
        let sent = match handle.open() {
            Ok(file) => {
                let chunk: Vec<_> =
                    chunk.iter().map(|envelope| (envelope.clone(), content(envelope))).collect();
                let job = file.write(chunk.len(), move |tx| {
                    chunk
                        .iter()
                        .map(|(envelope, content)| item(tx.accept(envelope, By::Producer(*content))))
                        .collect()
                });
                job.await
            }
            Err(error) => Err(error),
        };
        match sent {
            Ok(sent) => results.extend::<Vec<_>>(sent),
            Err(error) => results.extend(chunk.iter().map(|_| Err(error.again()))),
        }
    }
    results
}
