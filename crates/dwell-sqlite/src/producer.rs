//! Producer of messages.

use crate::{
    accept::{By, content},
    halt::item,
    handle::Handle,
    job::Weight,
    orders::LARGEST,
};
use dwell_core::{BoxFuture, Envelope, Producer, Result, Sent};
use std::sync::Arc;

/// Maximum number of envelopes in one job.
const BATCH: usize = 500;

pub(crate) struct SqliteProducer(pub(crate) Arc<Handle>);

impl Producer for SqliteProducer {
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>> {
        Box::pin(accept(&self.0, batch))
    }
}

/// Returns the envelopes for one job: limited in number and in bytes, but at least one.
fn first_of(batch: &[Envelope]) -> (&[Envelope], Weight) {
    let mut weight = Weight::default();
    for envelope in batch.iter().take(BATCH) {
        let bytes = envelope.message.body.len();
        if weight.messages > 0 && weight.bytes + bytes > LARGEST {
            break;
        }
        weight.messages += 1;
        weight.bytes += bytes;
        weight.is_new |= !envelope.copy;
    }
    (&batch[..weight.messages], weight)
}

/// Accepts a batch, one job at a time, so that other callers are served in between.
pub(crate) async fn accept(handle: &Handle, batch: &[Envelope]) -> Vec<Result<Sent>> {
    let mut results = Vec::with_capacity(batch.len());
    let mut rest = batch;
    while !rest.is_empty() {
        let (chunk, weight) = first_of(rest);
        rest = &rest[chunk.len()..];
        let sent = match handle.open() {
            Ok(file) => {
                let chunk: Vec<_> =
                    chunk.iter().map(|envelope| (envelope.clone(), content(envelope))).collect();
                // Allocated here: freeing memory of the writer thread in another thread would make
                // the threads contend.
                let mut room = Vec::with_capacity(chunk.len());
                let job = file.write(weight, move |tx| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_core::{Address, Message};

    #[test]
    fn job_is_limited_in_messages_and_bytes_but_takes_at_least_one() {
        let of =
            |bytes: usize| Envelope::new(Address::topic("orders"), Message::new("a", "", vec![0; bytes]));
        let takes = |batch: &[Envelope]| first_of(batch).0.len();
        assert_eq!(takes(&vec![of(10); BATCH + 1]), BATCH);
        assert_eq!(takes(&[of(2 * LARGEST), of(1)]), 1);
        assert_eq!(takes(&[of(1), of(LARGEST), of(1)]), 1);
        assert_eq!(takes(&vec![of(LARGEST / 4); 10]), 4);
        let copy = Envelope { copy: true, ..of(1) };
        let (copies, mixed) = ([copy.clone()], [copy, of(1)]);
        assert!(!first_of(&copies).1.is_new && first_of(&mixed).1.is_new);
    }
}
