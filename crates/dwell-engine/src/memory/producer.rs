//! The producer of a memory transport.

use super::{
    accept::content,
    flow::CHUNK,
    shared::{Shared, closed},
};
use crate::spawn::{take_turns, yield_now};
use dwell_core::{BoxFuture, Envelope, Producer, Result, SendAtOnce, Sent};
use std::{borrow::Cow, sync::Arc};

pub(super) struct MemoryProducer(pub(super) Arc<Shared>);

impl Producer for MemoryProducer {
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>> {
        Box::pin(accept(&self.0, batch))
    }

    fn at_once(&self) -> Option<&dyn SendAtOnce> {
        Some(self)
    }
}

impl SendAtOnce for MemoryProducer {
    fn send_at_once(&self, envelope: Envelope) -> Result<Sent> {
        let (content, now) = (content(&envelope), self.0.moment());
        // The spent message is dropped after the lock is released.
        let (sent, _spent) = self.0.with(|state| match state.is_closed {
            true => (Err(closed()), None),
            false => (state.accept(Cow::Owned(envelope), content, now), state.spent.pop()),
        });
        sent
    }
}

/// Accepts a batch, one chunk at a time.
pub(super) async fn accept(shared: &Shared, batch: &[Envelope]) -> Vec<Result<Sent>> {
    take_turns().await;
    let mut results = Vec::with_capacity(batch.len());
    for (index, chunk) in batch.chunks(CHUNK).enumerate() {
        if index > 0 {
            yield_now().await;
        }
        let any_chosen = chunk.iter().any(|envelope| envelope.once.is_some());
        let contents: Vec<_> = if any_chosen { chunk.iter().map(content).collect() } else { Vec::new() };
        let now = shared.moment();
        shared.with(|state| {
            for (index, envelope) in chunk.iter().enumerate() {
                let content = contents.get(index).copied().flatten();
                results.push(match state.is_closed {
                    true => Err(closed()),
                    false => state.accept(Cow::Borrowed(envelope), content, now),
                });
            }
        });
    }
    results
}
