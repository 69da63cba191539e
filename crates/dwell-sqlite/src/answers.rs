//! Answers to callers. Waking a thousand callers takes about a third of the time of writing their
//! messages, so a separate thread does it while the next group is written. As long as no new order
//! arrives, the writer thread sends the answers itself, and can process the next orders of those
//! callers at once.

use crate::job::Job;
use std::{
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
};

/// Up to this number of answers are sent by the writer thread: waking another thread would take
/// longer.
const FEW: usize = 16;

pub(crate) struct Answers {
    queue: Sender<Vec<Box<dyn Job>>>,
    thread: JoinHandle<()>,
}

impl Answers {
    pub(crate) fn start() -> std::io::Result<Self> {
        let (queue, committed) = mpsc::channel::<Vec<Box<dyn Job>>>();
        let thread = thread::Builder::new()
            .name("dwell-sqlite-an".to_owned())
            .spawn(move || committed.into_iter().for_each(answer))?;
        Ok(Self { queue, thread })
    }

    /// Sends the answers of a committed group. Hands the rest to the other thread as soon as a new
    /// order arrives.
    pub(crate) fn give(&self, group: Vec<Box<dyn Job>>, mut is_asked: impl FnMut() -> bool) {
        let mut group = group.into_iter();
        while group.len() > FEW {
            if is_asked() {
                if let Err(unsent) = self.queue.send(group.collect()) {
                    answer(unsent.0);
                }
                return;
            }
            answer(group.next());
        }
        answer(group);
    }

    /// Returns when all answers are sent.
    pub(crate) fn finish(self) {
        drop(self.queue);
        // If the thread has panicked, the waiting callers see that their channel is closed.
        let _ = self.thread.join();
    }
}

fn answer(group: impl IntoIterator<Item = Box<dyn Job>>) {
    group.into_iter().for_each(|job| job.finish(None));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fault::Sql, job::Weight, tx::Tx};
    use dwell_core::Error;
    use std::thread::ThreadId;

    /// Job that reports which thread answers it.
    struct Caller(usize, Sender<(usize, ThreadId)>);

    impl Job for Caller {
        fn weight(&self) -> Weight {
            Weight::from(1)
        }

        fn is_abandoned(&self) -> bool {
            false
        }

        fn run(&mut self, _: &mut Tx<'_>) -> Sql<()> {
            Ok(())
        }

        fn finish(self: Box<Self>, _: Option<Error>) {
            self.1.send((self.0, thread::current().id())).unwrap();
        }
    }

    /// Returns the callers answered by the writer thread and those answered by the other thread, if
    /// an order arrives after this number of checks.
    fn give(callers: usize, looks: usize) -> (Vec<usize>, Vec<usize>) {
        let answers = Answers::start().unwrap();
        let (tell, told) = mpsc::channel();
        let group =
            (0..callers).map(|number| Box::new(Caller(number, tell.clone())) as Box<dyn Job>).collect();
        let mut left = looks;
        answers.give(group, || {
            left = left.saturating_sub(1);
            left == 0
        });
        answers.finish();
        drop(tell);
        let here = thread::current().id();
        let (own, others): (Vec<_>, Vec<_>) = told.into_iter().partition(|(_, who)| *who == here);
        let numbers = |all: Vec<(usize, ThreadId)>| all.into_iter().map(|(number, _)| number).collect();
        (numbers(own), numbers(others))
    }

    #[test]
    fn writer_answers_in_order_until_an_order_arrives() {
        assert_eq!(give(100, usize::MAX), ((0..100).collect(), vec![]));
        assert_eq!(give(100, 1), (vec![], (0..100).collect()));
        assert_eq!(give(100, 31), ((0..30).collect(), (30..100).collect()));
        assert_eq!(give(FEW, 1), ((0..FEW).collect(), vec![]), "a few answers do not need the other thread");
    }
}
