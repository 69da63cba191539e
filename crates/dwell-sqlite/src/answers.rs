//! Answering: to wake a thousand callers takes about as long as to write a third of what they asked for, so a thread of
//! its own does that while the next group is written. As long as there is none, those who were answered are waited for: then
//! the thread that wrote begins with it at once.

use crate::job::Job;
use std::{
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
};

/// So few are answered sooner by the thread that wrote than by another that must wake up first.
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

    /// Answers to those whose work is committed; leaves that to the other thread as soon as there is something else to do.
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

    /// Returns when everyone has their answer.
    pub(crate) fn finish(self) {
        drop(self.queue);
        // If it has panicked, those who wait see that nobody will answer.
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

    /// Says who answers.
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

    /// Who is answered by the thread that wrote, if somebody asks for more after so many looks; and who by the other.
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
    fn everyone_is_answered_once_and_in_order_by_the_thread_that_wrote_until_somebody_asks_for_more() {
        assert_eq!(give(100, usize::MAX), ((0..100).collect(), vec![]));
        assert_eq!(give(100, 1), (vec![], (0..100).collect()));
        assert_eq!(give(100, 31), ((0..30).collect(), (30..100).collect()));
        assert_eq!(give(FEW, 1), ((0..FEW).collect(), vec![]), "few are not worth another thread");
    }
}
