//! Connection from one process to one service, and the faults of calls on it.

use super::{timeout, unavailable};
use crate::{
    dice::Dice,
    life::{Life, Who},
    scene::Scene,
    trace::{Event, Fault, Service, Touched},
};
use dwell_core::{Address, Consumer, Error, Result};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::oneshot;

/// Probability of each fault at each call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) refused: f64,
    pub(crate) partly_refused: f64,
    pub(crate) unconfirmed: f64,
    pub(crate) short_answer: f64,
    pub(crate) lost_request: f64,
    pub(crate) lost_delivery: f64,
    pub(crate) hung: f64,
    pub(crate) slow: f64,
    pub(crate) detached: f64,
    pub(crate) crash: f64,
    /// Share of calls with a small latency, which is not a fault.
    pub(crate) latency: f64,
}

/// Call to a service.
pub(super) struct Call<'a> {
    pub(super) name: &'static str,
    /// Messages that the call concerns.
    pub(super) touched: &'a [Touched],
    /// Subscription whose leases are not renewed while this call is slow.
    pub(super) renews: Option<&'a Address>,
}

impl<'a> Call<'a> {
    pub(super) fn new(name: &'static str, touched: &'a [Touched]) -> Self {
        Self { name, touched, renews: None }
    }
}

/// Result of a call.
pub(super) enum Carried<T> {
    Answered(T),
    /// The call had no effect.
    NotDone(Error),
    /// The call took effect, but its caller gets an error.
    Doubtful(T, Error),
}

impl<T> Carried<Result<T>> {
    /// Returns the result for the caller.
    pub(super) fn answer(self) -> Result<T> {
        match self {
            Self::Answered(result) => result,
            Self::NotDone(error) | Self::Doubtful(_, error) => Err(error),
        }
    }
}

pub(crate) struct Link {
    pub(super) scene: Arc<Scene>,
    pub(super) life: Arc<Life>,
    pub(super) service: Service,
    pub(super) dice: Dice,
    /// Consumers of this process at the broker itself: after a crash, the broker notices a while
    /// later.
    open: Mutex<Open>,
    /// Number of times that the broker declared this process dead.
    sessions_lost: AtomicU64,
}

#[derive(Default)]
struct Open {
    next: u64,
    consumers: Vec<(u64, Address, Arc<dyn Consumer>)>,
}

impl Link {
    /// Creates the `attempt`th link of this life. Each has its own dice; otherwise a failing one
    /// would fail forever.
    pub(crate) fn new(scene: &Arc<Scene>, life: &Arc<Life>, service: Service, attempt: usize) -> Arc<Self> {
        let dice = scene.plan.dice.fork(&format!("link {} {service} {attempt}", life.who));
        Arc::new(Self {
            scene: scene.clone(),
            life: life.clone(),
            service,
            dice,
            open: Mutex::default(),
            sessions_lost: AtomicU64::new(0),
        })
    }

    pub(super) fn who(&self) -> Who {
        self.life.who
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a consumer. Returns its number.
    pub(super) fn opened(&self, of: Address, consumer: Arc<dyn Consumer>) -> u64 {
        let mut open = self.open();
        open.next += 1;
        let number = open.next;
        open.consumers.push((number, of, consumer));
        number
    }

    /// Removes a consumer. Returns whether it was registered.
    pub(super) fn closed(&self, number: u64) -> bool {
        let closed: Vec<_> = self.open().consumers.extract_if(.., |(of, ..)| *of == number).collect();
        !closed.is_empty()
    }

    /// Records that the broker declared this process dead: its consumers join again.
    pub(crate) fn lose_session(&self) {
        self.sessions_lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn sessions_lost(&self) -> u64 {
        self.sessions_lost.load(Ordering::Relaxed)
    }

    /// Returns the consumers that the broker still considers connected.
    pub(crate) fn take_open(&self) -> Vec<(Address, Arc<dyn Consumer>)> {
        self.open().consumers.drain(..).map(|(_, of, consumer)| (of, consumer)).collect()
    }

    /// Draws whether a fault of this kind happens.
    pub(super) fn happens(&self, rate: impl Fn(&Rates) -> f64) -> bool {
        let rate = rate(&self.scene.plan.rates);
        rate > 0.0 && self.scene.is_troubled() && self.dice.chance(rate)
    }

    pub(super) fn fault(&self, fault: Fault, call: &Call<'_>) {
        self.scene.fault(fault, Some(self.who()), call.name, call.touched.to_vec());
    }

    /// Lets the process crash here, between two steps.
    pub(super) async fn crash_point(&self) {
        if self.happens(|rates| rates.crash) {
            self.scene.crash(&self.life);
            std::future::pending::<()>().await;
        }
    }

    /// Lets a little time pass, or much time, which is a fault.
    pub(super) async fn latency(&self, call: &Call<'_>) {
        if self.happens(|rates| rates.slow) {
            self.fault(Fault::Slow, call);
            self.impair(call, self.scene.sleep(self.slow())).await;
        } else if self.dice.chance(self.scene.plan.rates.latency) {
            self.scene.sleep(self.dice.millis(1, 20)).await;
        }
    }

    fn slow(&self) -> Duration {
        let plan = &self.scene.plan;
        self.dice
            .millis(plan.shortest_lease.as_millis() as u64 / 10, plan.longest_lease.as_millis() as u64 * 2)
    }

    /// Runs `work`, during which the leases that the call should renew are not renewed.
    async fn impair<T>(&self, call: &Call<'_>, work: impl Future<Output = T>) -> T {
        let _impaired = call.renews.map(|of| Impaired::begin(self, of));
        work.await
    }

    /// Returns the error if the service is unavailable.
    pub(super) fn refusal(&self, call: &Call<'_>) -> Option<Error> {
        if self.scene.is_out(self.service) || self.happens(|rates| rates.refused) {
            self.fault(Fault::Refused, call);
            return Some(unavailable(call.name));
        }
        None
    }

    /// Passes a call to the service and its result back, or injects a fault.
    pub(super) async fn carry<T: Send + 'static>(
        &self,
        call: Call<'_>,
        act: impl Future<Output = T> + Send + 'static,
    ) -> Carried<T> {
        self.life.while_alive(self.carry_on(&call, act)).await
    }

    async fn carry_on<T: Send + 'static>(
        &self,
        call: &Call<'_>,
        act: impl Future<Output = T> + Send + 'static,
    ) -> Carried<T> {
        self.crash_point().await;
        self.latency(call).await;
        if let Some(error) = self.refusal(call) {
            return Carried::NotDone(error);
        }
        if self.happens(|rates| rates.lost_request) {
            self.fault(Fault::LostRequest, call);
            self.impair(call, self.scene.sleep(self.slow())).await;
            return Carried::NotDone(timeout(call.name));
        }
        let value = if self.happens(|rates| rates.detached) {
            self.fault(Fault::Detached, call);
            self.impair(call, self.detached(act)).await
        } else {
            act.await
        };
        self.crash_point().await;
        if self.happens(|rates| rates.hung) {
            self.fault(Fault::Hung, call);
            self.impair(call, self.hang()).await;
        }
        self.latency(call).await;
        if self.happens(|rates| rates.unconfirmed) {
            self.fault(Fault::Unconfirmed, call);
            return Carried::Doubtful(value, timeout(call.name));
        }
        Carried::Answered(value)
    }

    /// Runs the call independently of its sender.
    async fn detached<T: Send + 'static>(&self, act: impl Future<Output = T> + Send + 'static) -> T {
        let (answer, answered) = oneshot::channel();
        let (scene, pause) = (self.scene.clone(), self.slow());
        self.scene.spawn(async move {
            scene.sleep(pause).await;
            // The receiver is gone if the process is.
            let _ = answer.send(act.await);
        });
        match answered.await {
            Ok(value) => value,
            Err(_) => std::future::pending().await,
        }
    }

    /// Never returns; the process is ended after a while.
    async fn hang(&self) {
        let (scene, life, pause) = (self.scene.clone(), self.life.clone(), self.dice.millis(5_000, 300_000));
        self.scene.spawn(async move {
            scene.sleep(pause).await;
            scene.crash(&life);
        });
        std::future::pending().await
    }
}

/// Reports to the checker that a process cannot renew its leases.
struct Impaired<'a> {
    link: &'a Link,
    of: &'a Address,
}

impl<'a> Impaired<'a> {
    fn begin(link: &'a Link, of: &'a Address) -> Self {
        link.scene.record(Event::Impaired(link.who(), of.clone(), true));
        Self { link, of }
    }
}

impl Drop for Impaired<'_> {
    fn drop(&mut self) {
        self.link.scene.record(Event::Impaired(self.link.who(), self.of.clone(), false));
    }
}
