//! Detects whether any task is runnable, by counting wake-ups.
//!
//! A tracked task is *awake* from a wake-up until a poll returns `Pending` without another wake-up
//! since the poll began. The waker increments the number of awake tasks and busy threads before
//! anything else can run. The number is therefore never zero between a wake-up and the poll that
//! follows it.

use super::Busy;
use crate::BoxFuture;
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};
use tokio::task::consume_budget;

/// Number of awake tasks and busy threads, and the wakers to call when it reaches zero.
#[derive(Default)]
pub(super) struct Activity {
    awake: AtomicUsize,
    begun: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
}

impl Activity {
    pub(super) fn begin(&self) {
        // This order matters: a caller that reads `begun` and then finds no task awake has counted
        // every start.
        self.awake.fetch_add(1, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        if self.awake.fetch_sub(1, Ordering::SeqCst) == 1 {
            let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.awake.load(Ordering::SeqCst) == 0
    }

    pub(super) fn stirrings(&self) -> Option<u64> {
        let begun = self.begun.load(Ordering::SeqCst);
        self.is_idle().then_some(begun)
    }

    pub(super) fn track(self: &Arc<Self>, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        Box::pin(Tracked::new(self.clone(), task))
    }

    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        let activity = self.clone();
        activity.begin();
        Busy::until_dropped(move || activity.end())
    }

    /// Completes when no tracked task is runnable and no thread is busy.
    pub(super) async fn idle(&self) {
        // Gives untracked tasks, such as the test itself, time to run and to wake tracked ones.
        const QUIET_ROUNDS: usize = 3;
        let mut quiet = 0;
        while quiet < QUIET_ROUNDS {
            quiet = if self.is_idle() { quiet + 1 } else { 0 };
            poll_fn(|cx| self.poll_idle(cx)).await;
            yield_now().await;
            std::thread::yield_now();
        }
    }

    /// Returns `Ready` if idle, else wakes the caller once it is.
    pub(super) fn poll_idle(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_idle() {
            return Poll::Ready(());
        }
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(cx.waker().clone());
        // It may have become idle before the waker was registered.
        if self.is_idle() { Poll::Ready(()) } else { Poll::Pending }
    }
}

async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// State of one tracked task.
struct Task {
    activity: Arc<Activity>,
    state: Mutex<TaskState>,
}

struct TaskState {
    awake: bool,
    /// Set when the task has ended. Later wake-ups have no effect.
    ended: bool,
    waker: Option<Waker>,
}

impl Task {
    fn set_awake(&self, awake: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if awake && state.ended {
            return;
        }
        if std::mem::replace(&mut state.awake, awake) != awake {
            if awake { self.activity.begin() } else { self.activity.end() }
        }
    }

    fn end(&self) {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.ended = true;
            state.waker = None;
        }
        self.set_awake(false);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set_awake(true);
        let waker = self.state.lock().unwrap_or_else(PoisonError::into_inner).waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A task whose wake-ups are counted.
struct Tracked<F> {
    // `None` after the end. The task's state is dropped before the task counts as asleep.
    inner: Option<Pin<Box<F>>>,
    task: Arc<Task>,
}

impl<F> Tracked<F> {
    fn new(activity: Arc<Activity>, inner: F) -> Self {
        activity.begin();
        let task = Task { activity, state: Mutex::new(TaskState { awake: true, ended: false, waker: None }) };
        Self { inner: Some(Box::pin(inner)), task: Arc::new(task) }
    }
}

impl<F: Future<Output = ()>> Future for Tracked<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let task = self.task.clone();
        {
            let mut state = task.state.lock().unwrap_or_else(PoisonError::into_inner);
            if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.waker = Some(cx.waker().clone());
            }
        }
        // Keeps the count above zero during the poll, and detects wake-ups that happen meanwhile.
        let _polling = Polling::begin(&task.activity);
        task.set_awake(false);
        let waker = Waker::from(task.clone());
        let poll = match &mut self.inner {
            Some(inner) => inner.as_mut().poll(&mut Context::from_waker(&waker)),
            None => Poll::Ready(()),
        };
        if poll.is_ready() {
            self.inner = None;
            task.end();
        } else if pin!(consume_budget()).poll(&mut Context::from_waker(&waker)).is_pending() {
            // The task has spent its cooperative budget, so tokio delays its wake-ups, those of
            // futures inside it too. This waker joins them. Until they come, the task is runnable,
            // although no wake-up has been counted.
            task.set_awake(true);
        }
        poll
    }
}

impl<F> Drop for Tracked<F> {
    fn drop(&mut self) {
        // Drops the task's state first, because that may wake other tasks.
        self.inner = None;
        self.task.end();
    }
}

/// Counts as awake during a poll, even if the poll panics.
struct Polling<'a>(&'a Activity);

impl<'a> Polling<'a> {
    fn begin(activity: &'a Activity) -> Self {
        activity.begin();
        Self(activity)
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
