//! Life of a simulated process: all its tasks run, pause or end together.

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use dwell_core::BoxFuture;

/// One life of one process: the number of the process, and the number of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who {
    /// Number of the process.
    pub process: usize,
    /// Number of the life, from 1.
    pub life: u32,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}.{}", self.process, self.life)
    }
}

/// State shared by all tasks of one life.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) who: Who,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    alive: bool,
    paused: bool,
    next: u64,
    /// Ordered by their spawning, so that they are always woken in the same order.
    tasks: BTreeMap<u64, Waker>,
}

impl Life {
    pub(crate) fn new(who: Who) -> Arc<Self> {
        let state = State { alive: true, paused: false, next: 0, tasks: BTreeMap::new() };
        Arc::new(Self { who, state: Mutex::new(state) })
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.lock().alive
    }

    /// Ends this life: no task of it is polled again. Returns whether it was alive.
    pub(crate) fn end(&self) -> bool {
        let lived = std::mem::replace(&mut self.lock().alive, false);
        self.wake_all();
        lived
    }

    /// Pauses this life: no task of it is polled until it is resumed.
    pub(crate) fn pause(&self) {
        self.lock().paused = true;
    }

    pub(crate) fn resume(&self) {
        self.lock().paused = false;
        self.wake_all();
    }

    /// Returns a task that belongs to this life.
    pub(crate) fn task(self: &Arc<Self>, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let mut state = self.lock();
        state.next += 1;
        Box::pin(Mortal { life: self.clone(), number: state.next, task: Some(task) })
    }

    /// Runs `work`, which stops with this life even if its task is being polled at that moment.
    pub(crate) async fn while_alive<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|cx| match self.is_alive() {
            true => work.as_mut().poll(cx),
            false => Poll::Pending,
        })
        .await
    }

    fn wake_all(&self) {
        let wakers: Vec<_> = self.lock().tasks.values().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Task that ends with its process, wherever it is suspended.
struct Mortal {
    life: Arc<Life>,
    number: u64,
    task: Option<BoxFuture<'static, ()>>,
}

impl Future for Mortal {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (alive, paused) = {
            let number = self.number;
            let mut state = self.life.lock();
            state.tasks.insert(number, cx.waker().clone());
            (state.alive, state.paused)
        };
        if !alive {
            self.task = None;
            return Poll::Ready(());
        }
        if paused {
            return Poll::Pending;
        }
        match &mut self.task {
            Some(task) => task.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.task = None;
        let number = self.number;
        self.life.lock().tasks.remove(&number);
    }
}
