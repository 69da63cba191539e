//! State shared by everything in one world: the time, the trace with its checker, and current
//! outages.

use crate::{
    checker::{Checker, Violation},
    crew::Crew,
    life::{Life, Who},
    plan::Plan,
    trace::{Entry, Event, Fault, Service, Stage, Touched},
};
use dwell_core::{BoxFuture, Clock, VirtualClock};
use std::{
    cell::Cell,
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::{Notify, mpsc};

pub(crate) struct Scene {
    pub(crate) clock: VirtualClock,
    pub(crate) crew: Arc<Crew>,
    pub(crate) plan: Arc<Plan>,
    record: Mutex<Record>,
    outages: [Outage; 2],
    crashes: mpsc::UnboundedSender<Who>,
}

/// Outage of a service.
#[derive(Default)]
struct Outage {
    out: AtomicBool,
    begun: Notify,
}

/// Everything that happened, and the checker.
pub(crate) struct Record {
    pub(crate) trace: Vec<Entry>,
    pub(crate) checker: Checker,
    next_run: usize,
    counts: BTreeMap<String, u64>,
}

impl Scene {
    /// Returns the scene, and the receiver of crashed processes.
    pub(crate) fn new(plan: Arc<Plan>) -> (Arc<Self>, mpsc::UnboundedReceiver<Who>) {
        let (crashes, told) = mpsc::unbounded_channel();
        let clock = VirtualClock::new();
        let checker = Checker::new(&plan, clock.now());
        let record = Mutex::new(Record { trace: vec![], checker, next_run: 0, counts: BTreeMap::new() });
        let crew = Crew::new(plan.dice.fork("crew"));
        tokio::spawn(clock.track(crew.clone().drive()));
        (Arc::new(Self { clock, crew, plan, record, outages: Default::default(), crashes }), told)
    }

    pub(crate) fn record(&self, event: Event) {
        let entry = Entry { at: self.clock.elapsed(), wall: self.clock.now(), event };
        let mut record = self.lock();
        record.checker.observe(&entry);
        record.trace.push(entry);
    }

    pub(crate) fn fault(&self, fault: Fault, who: Option<Who>, call: &'static str, touched: Vec<Touched>) {
        self.record(Event::Fault { fault, who, call, touched });
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_run(&self) -> usize {
        let mut record = self.lock();
        record.next_run += 1;
        record.next_run
    }

    /// Returns how often this name was counted before.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let mut record = self.lock();
        let count = record.counts.entry(name.to_owned()).or_default();
        *count += 1;
        *count - 1
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.lock().checker.violation().cloned()
    }

    /// Returns whether faults may still be injected.
    pub(crate) fn is_troubled(&self) -> bool {
        self.clock.elapsed() < self.plan.horizon
    }

    /// Ends a process immediately.
    pub(crate) fn crash(&self, life: &Life) {
        if life.end() {
            self.record(Event::Life(life.who, Stage::Crashed));
            // The receiver is gone at the end of the world.
            let _ = self.crashes.send(life.who);
        }
    }

    pub(crate) fn set_outage(&self, service: Service, out: bool) {
        let outage = &self.outages[service as usize];
        outage.out.store(out, Ordering::SeqCst);
        if out {
            outage.begun.notify_waiters();
        }
    }

    pub(crate) fn is_out(&self, service: Service) -> bool {
        self.outages[service as usize].out.load(Ordering::SeqCst)
    }

    /// Completes when the service becomes unavailable.
    pub(crate) async fn until_out(&self, service: Service) {
        self.outages[service as usize].begun.notified().await;
    }

    /// Spawns a task that belongs to no process.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.clock.track(self.crew.take_on(Box::pin(task))));
    }

    pub(crate) async fn sleep(&self, delay: Duration) {
        if !delay.is_zero() {
            self.clock.sleep(delay).await;
        }
    }
}

thread_local! {
    /// Request of the workload that is currently being processed.
    static REQUEST: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns the request of the workload that is currently being processed, if any.
pub(crate) fn current_request() -> Option<usize> {
    REQUEST.get()
}

/// Attributes everything that happens while `work` is polled to a request. A world runs on one
/// thread.
pub(crate) fn as_request<T: 'static>(
    number: usize,
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send + 'static {
    AsRequest { number, work: Box::pin(work) }
}

struct AsRequest<T> {
    number: usize,
    work: BoxFuture<'static, T>,
}

impl<T> Future for AsRequest<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let before = REQUEST.replace(Some(self.number));
        let poll = self.work.as_mut().poll(cx);
        REQUEST.set(before);
        poll
    }
}
