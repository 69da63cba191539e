//! Answering: to wake a thousand callers takes about as long as to write a third of what they asked for, so a thread of
//! its own does that while the next group is written.

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

    /// Answers to those whose work is committed.
    pub(crate) fn give(&self, group: Vec<Box<dyn Job>>) {
        if group.len() <= FEW {
            return answer(group);
        }
        if let Err(unsent) = self.queue.send(group) {
            answer(unsent.0);
        }
    }

    /// Returns when everyone has their answer.
    pub(crate) fn finish(self) {
        drop(self.queue);
        // If it has panicked, those who wait see that nobody will answer.
        let _ = self.thread.join();
    }
}

fn answer(group: Vec<Box<dyn Job>>) {
    group.into_iter().for_each(|job| job.finish(None));
}
