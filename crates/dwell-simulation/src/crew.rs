//! Tasks of a world, polled one after the other in an order drawn from the dice.
//!
//! The order in which a runtime polls tasks that became runnable at the same time is arbitrary;
//! some of tokio's channels even wake their receivers at random. Here the order is drawn from the
//! seed, so that it can be repeated, and so that each seed tries a different one.

use crate::dice::Dice;
use dwell_core::BoxFuture;
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
};

/// All tasks of a world.
pub(crate) struct Crew {
    state: Mutex<State>,
    dice: Dice,
}

#[derive(Default)]
struct State {
    next: u64,
    tasks: BTreeMap<u64, Task>,
    /// Tasks to be polled in the next turn.
    ready: BTreeSet<u64>,
    driver: Option<Waker>,
}

struct Task {
    /// Absent while it is being polled.
    work: Option<BoxFuture<'static, ()>>,
    /// Waker of the task that waits for the end of this one.
    waiting: Option<Waker>,
}

impl Crew {
    pub(crate) fn new(dice: Dice) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), dice })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task. The returned future completes with the task, and ends it when dropped.
    pub(crate) fn take_on(self: &Arc<Self>, work: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let number = {
            let mut state = self.lock();
            state.next += 1;
            let number = state.next;
            // The runtime's budget for one task must not apply to all of them together.
            let work: BoxFuture<'static, ()> = Box::pin(tokio::task::unconstrained(work));
            state.tasks.insert(number, Task { work: Some(work), waiting: None });
            number
        };
        self.wake(number);
        Box::pin(Ticket { crew: self.clone(), number })
    }

    fn wake(&self, number: u64) {
        let mut state = self.lock();
        state.ready.insert(number);
        let driver = state.driver.take();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Polls the runnable tasks, turn by turn, without end.
    pub(crate) fn drive(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::poll_fn(move |cx| {
            let turn = {
                let mut state = self.lock();
                state.driver = Some(cx.waker().clone());
                std::mem::take(&mut state.ready)
            };
            for number in self.shuffle(turn) {
                self.poll(number);
            }
            // Tasks that became runnable in this turn are polled in the next one, after the others
            // had theirs.
            if !self.lock().ready.is_empty() {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        }))
    }

    fn shuffle(&self, turn: BTreeSet<u64>) -> Vec<u64> {
        let mut turn: Vec<_> = turn.into_iter().collect();
        for last in (1..turn.len()).rev() {
            turn.swap(last, self.dice.below(last as u64 + 1) as usize);
        }
        turn
    }

    fn poll(self: &Arc<Self>, number: u64) {
        let Some(mut work) = self.lock().tasks.get_mut(&number).and_then(|task| task.work.take()) else {
            return;
        };
        let waker = Waker::from(Arc::new(WakeTask { crew: self.clone(), number }));
        let poll = work.as_mut().poll(&mut Context::from_waker(&waker));
        let mut state = self.lock();
        match state.tasks.get_mut(&number) {
            Some(task) if poll.is_pending() => task.work = Some(work),
            Some(_) => {
                let ended = state.tasks.remove(&number).and_then(|task| task.waiting);
                drop(state);
                drop(work);
                if let Some(waiting) = ended {
                    waiting.wake();
                }
            }
            // The task was ended while it was polled.
            None => {
                drop(state);
                drop(work);
            }
        }
    }

    fn end(&self, number: u64) {
        let ended = self.lock().tasks.remove(&number);
        drop(ended);
    }
}

struct WakeTask {
    crew: Arc<Crew>,
    number: u64,
}

impl Wake for WakeTask {
    fn wake(self: Arc<Self>) {
        self.crew.wake(self.number);
    }
}

/// Handle that represents a task in tokio.
struct Ticket {
    crew: Arc<Crew>,
    number: u64,
}

impl Future for Ticket {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.crew.lock().tasks.get_mut(&self.number) {
            Some(task) => {
                task.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.crew.end(self.number);
    }
}
