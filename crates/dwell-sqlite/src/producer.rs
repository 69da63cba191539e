//! The end that takes messages in.

use crate::{
    accept::{By, content},
    halt::item,
    handle::Handle,
    job::Weight,
    orders::LARGEST,
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

/// What one job takes in of these: so many, or so much, and at least one.
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

/// Takes in a batch, a job at a time: others come in between.
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
                // Memory of the thread that writes would be given back by another, and each would wait for the other's.
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
    fn a_job_takes_so_many_messages_or_so_many_bytes_and_at_least_one() {
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
