//! What the thread that writes is asked to do.

use crate::{fault::Sql, tx::Tx};
use dwell_core::{Busy, Error, Result};
use tokio::sync::oneshot;

/// What a job is about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    /// About how many messages.
    pub(crate) messages: usize,
    /// About how much they bring to be written, in bytes.
    pub(crate) bytes: usize,
    /// Users send them: where there is little room they wait, and nothing makes way for them.
    pub(crate) is_new: bool,
}

impl From<usize> for Weight {
    /// So many messages that are there.
    fn from(messages: usize) -> Self {
        Self { messages, ..Self::default() }
    }
}

/// Something to be done within a transaction.
pub(crate) trait Job: Send {
    fn weight(&self) -> Weight;

    /// Whether nobody waits for the answer any more.
    fn is_abandoned(&self) -> bool;

    fn run(&mut self, tx: &mut Tx<'_>) -> Sql<()>;

    /// Answers: with what `run` found, or with an error.
    fn finish(self: Box<Self>, failed: Option<Error>);
}

/// A job made of a closure.
pub(crate) struct Task<T, U, F, C> {
    weight: Weight,
    work: F,
    /// Makes the answer of what the work found, once it is committed.
    committed: C,
    result: Option<T>,
    answer: oneshot::Sender<Result<U>>,
    busy: Busy,
}

impl<T, U, F, C> Task<T, U, F, C> {
    /// A job, and where its answer comes.
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
        // What the work held is the caller's alone when the answer comes.
        drop(work);
        if let Some(answered) = failed.map(Err).or(result.map(|result| Ok(committed(result)))) {
            // Nobody may be there to hear it: what cannot be undone by forgetting it has a drop of its own.
            let _ = answer.send(answered);
        }
        drop(busy);
    }
}
