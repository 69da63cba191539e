//! Jobs of the writer thread.

use crate::{fault::Sql, tx::Tx};
use dwell_core::{Busy, Error, Result};
use tokio::sync::oneshot;

/// Size of a job.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    /// Approximate number of messages.
    pub(crate) messages: usize,
    /// Approximate number of bytes to write.
    pub(crate) bytes: usize,
    /// Set for new messages of users: these wait where room is scarce, and nothing is removed for
    /// them.
    pub(crate) is_new: bool,
}

impl From<usize> for Weight {
    /// Returns the weight of this number of existing messages.
    fn from(messages: usize) -> Self {
        Self { messages, ..Self::default() }
    }
}

/// Job to be run within a transaction.
pub(crate) trait Job: Send {
    fn weight(&self) -> Weight;

    /// Returns whether the caller no longer waits for the answer.
    fn is_abandoned(&self) -> bool;

    fn run(&mut self, tx: &mut Tx<'_>) -> Sql<()>;

    /// Answers with the result of `run`, or with an error.
    fn finish(self: Box<Self>, failed: Option<Error>);
}

/// Job made of a closure.
pub(crate) struct Task<T, U, F, C> {
    weight: Weight,
    work: F,
    /// Converts the result of the work to the answer, once it is committed.
    committed: C,
    result: Option<T>,
    answer: oneshot::Sender<Result<U>>,
    busy: Busy,
}

impl<T, U, F, C> Task<T, U, F, C> {
    /// Creates a job, and the receiver of its answer.
    pub(crate) fn new(
        weight: Weight,
        work: F,
        committed: C,
        busy: Busy,
    ) -> (Self, oneshot::Receiver<Result<U>>) {
        let (answer, answered) = oneshot::channel();
        (Self { weight, work, committed, result: None, answer, busy }, answered)
    }
}

impl<T, U, F, C> Job for Task<T, U, F, C>
where
    T: Send,
    U: Send,
    F: FnMut(&mut Tx<'_>) -> Sql<T> + Send,
    C: FnOnce(T) -> U + Send,
{
    fn weight(&self) -> Weight {
        self.weight
    }

    fn is_abandoned(&self) -> bool {
        self.answer.is_closed()
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Sql<()> {
        self.result = Some((self.work)(tx)?);
        Ok(())
    }

    fn finish(self: Box<Self>, failed: Option<Error>) {
        let Task { work, committed, result, answer, busy, .. } = *self;
        // Values held by the work must be the caller's alone when the answer arrives.
        drop(work);
        if let Some(answered) = failed.map(Err).or(result.map(|result| Ok(committed(result)))) {
            // The caller may be gone: a result that must be undone then does so when dropped.
            let _ = answer.send(answered);
        }
        drop(busy);
    }
}
