//! A broker that can be away, and outcomes as they come.

use dwell::extend::{Decided, Observer, Seams, Transport};
use dwell_core::{
    BoxFuture, Capabilities, Consumer, Envelope, Error, ErrorKind, Inbox, Ledger, OnMissing, Outcome,
    Producer, Result, Scheduler, Sent, Subscription, Topic, TransportUrl,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// A broker in memory that holds messages no longer than `delay`, and answers so many questions about topics.
pub struct Away {
    inner: Arc<dyn Transport>,
    delay: Duration,
    answers: AtomicUsize,
    refuses: AtomicBool,
}

impl Away {
    pub fn new(seams: &Seams, delay: Duration) -> Arc<Self> {
        let url = TransportUrl::parse("memory://").unwrap();
        let inner = Arc::new(dwell_engine::memory::connect(&url, seams.clone()).unwrap());
        Arc::new(Self {
            inner,
            delay,
            answers: AtomicUsize::new(usize::MAX),
            refuses: AtomicBool::new(false),
        })
    }

    pub fn leave(&self) {
        self.leave_after(0);
    }

    pub fn leave_after(&self, answers: usize) {
        self.answers.store(answers, SeqCst);
    }

    /// Says of every topic that it is there in a way that nobody can use.
    pub fn refuse(&self) {
        self.refuses.store(true, SeqCst);
    }

    pub fn come_back(&self) {
        self.refuses.store(false, SeqCst);
        self.leave_after(usize::MAX);
    }
}

impl Transport for Away {
    fn capabilities(&self) -> Capabilities {
        Capabilities { delay: self.delay, ..self.inner.capabilities() }
    }
    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        if self.answers.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err() {
            return dwell_core::ready(Err(Error::new(ErrorKind::Unavailable, "the broker is away")));
        }
        if self.refuses.load(SeqCst) {
            return dwell_core::ready(Err(Error::new(ErrorKind::Conflict, "made by a later version")));
        }
        self.inner.provision(topics, subscriptions, on_missing)
    }
    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        self.inner.producer()
    }
    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        self.inner.consumer(of)
    }
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        self.inner.scheduler()
    }
    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        self.inner.ledger()
    }
    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        self.inner.inbox()
    }
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

/// Tells outcomes as they come.
pub struct Outcomes(UnboundedSender<Outcome>);

impl Outcomes {
    pub fn new() -> (Arc<Self>, UnboundedReceiver<Outcome>) {
        let (tell, told) = mpsc::unbounded_channel();
        (Arc::new(Self(tell)), told)
    }
}

impl Observer for Outcomes {
    fn sent(&self, _: &Envelope, _: &Sent) {}
    fn decided(&self, decided: &Decided<'_>) {
        let _ = self.0.send(decided.settle.note.outcome);
    }
}
