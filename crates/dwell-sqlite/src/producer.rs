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
                // Memory of the thread that writes would be given back by another, and each would wait for the other's.
                let mut room = Vec::with_capacity(chunk.len());
                let job = file.write(chunk.len(), move |tx| {
                    let mut sent = std::mem::take(&mut room);
                    for (envelope, content) in &chunk {
                        sent.push(item(tx.accept(envelope, By::Producer(*content)))?);
                    }
                    Ok(sent)
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
