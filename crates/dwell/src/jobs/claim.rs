//! Taking jobs into one's own hands.

use super::{Claimed, Jobs, check_kind};
use dwell_core::{
    BoxFuture, Clock, Delivery, Error, ErrorKind, LeaseId, Receive, Result, Settle, Subscription, Text,
    Timestamp, Topic, Unsettled,
};
use dwell_engine::{Engine, Gaps, Rules, SubscriptionSettings, Verdict, decide, settle_with_gaps};
use futures_util::future::select_all;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{runtime::Handle, sync::oneshot, task::JoinHandle};

/// The first pause before a settlement is tried again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How much longer than `release_delay` a released job stays leased, at most. If its worker exits
/// in that time, the job is redelivered soon, however long the lease of the claim was.
const RELEASE_MARGIN: Duration = Duration::from_secs(10);

/// A claim of jobs that is being written. Nothing happens before it is awaited; then it is up to
/// `max` jobs, or none if none was due within `wait`.
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().start("memory://").await?;
/// # let jobs = bus.jobs()?;
/// # jobs.submit_raw("image.resize", "application/json", "{}").await?;
/// let claim = jobs.claim(["image.resize"]).max(10).worker("w1").lease(Duration::from_secs(60));
/// for job in claim.wait(Duration::from_secs(20)).await? {
///     println!("{} {}", job.id(), job.attempt());
///     job.complete(&"done").await?;
/// }
/// # assert!(jobs.claim(["image.resize"]).await?.is_empty());
/// # bus.shutdown().await }
/// ```
#[must_use = "nothing is claimed until it is awaited"]
#[derive(Debug)]
pub struct Claim {
    jobs: Jobs,
    kinds: Vec<Text>,
    max: usize,
    wait: Duration,
    lease: Option<Duration>,
    worker: Option<Text>,
}

impl Claim {
    pub(super) fn new(jobs: Jobs, kinds: Vec<Text>) -> Self {
        Self { jobs, kinds, max: 1, wait: Duration::ZERO, lease: None, worker: None }
    }

    /// At most so many; one unless set.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("other").await?;
    /// let jobs = jobs.claim(["sums.add"]).max(10).await?;
    /// assert_eq!(jobs.len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn max(mut self, max: usize) -> Self {
        self.max = max;
        self
    }

    /// How long to wait for the first; not at all unless set.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// # let jobs = bus.jobs()?;
    /// # let submit = jobs.submit_raw("sums.add", "application/json", "[20,22]");
    /// let claim = jobs.claim(["sums.add"]).wait(Duration::from_secs(20));
    /// let (claimed, submitted) = tokio::join!(claim, submit); // it comes a little later
    /// assert_eq!((claimed?.len(), submitted.is_ok()), (1, true));
    /// # bus.shutdown().await?;
    /// # Ok(()) }
    /// ```
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long they are ours without a heartbeat; the lease of their type unless set.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let minute = Duration::from_secs(60);
    /// let job = jobs.claim(["sums.add"]).lease(minute).await?.remove(0);
    /// assert_eq!(job.lease_until(), t.now().after(minute));
    /// # Ok(()) }
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Who works on them, for the record. It should be a new name at each start; unless set, it is
    /// one.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let job = jobs.claim(["sums.add"]).worker("w1").await?.remove(0);
    /// job.complete(&42).await?;
    /// assert_eq!(jobs.get("sum").await?.unwrap().worker.as_deref(), Some("w1"));
    /// # Ok(()) }
    /// ```
    pub fn worker(mut self, worker: impl Into<Text>) -> Self {
        self.worker = Some(worker.into());
        self
    }

    async fn claim(self) -> Result<Vec<Claimed>> {
        let engine = self.jobs.engine()?;
        let seams = engine.seams();
        let clock = seams.clock.clone();
        let default = || Text::from(format!("{}-{}", seams.instance, seams.incarnation));
        let worker = self.worker.clone().unwrap_or_else(default);
        let mut seats = vec![];
        for kind in &self.kinds {
            check_kind(kind)?;
            let claimer = self.jobs.book().claimer(engine, kind).await?;
            seats.push(claimer.seat(engine, &worker, self.lease).await?);
        }
        if seats.is_empty() || self.max == 0 {
            return Ok(vec![]);
        }
        // A type with many jobs must not be in the way of the others.
        let first = seams.random.next() as usize % seats.len();
        seats.rotate_left(first);
        let deadline = clock.elapsed().saturating_add(self.wait);
        loop {
            let left = deadline.saturating_sub(clock.elapsed());
            let received = self.receive(&seats, left).await?;
            let is_over = received.is_empty() && deadline <= clock.elapsed();
            // What has to wait or is given up is not for the caller.
            let (mut claimed, mut refused) = (vec![], vec![]);
            for Received { hold, delivery } in received {
                match hold.refuses(&delivery) {
                    None => claimed.push(Claimed::new(self.jobs.clone(), hold, delivery)),
                    Some(verdict) => refused.push((hold, delivery, verdict)),
                }
            }
            let settled = settle_apart(engine, refused);
            // Nothing is awaited while there is something for the caller: it would be lost with a
            // caller who goes away.
            if !claimed.is_empty() || is_over {
                return Ok(claimed);
            }
            if let Some(settled) = settled {
                let _ = settled.await;
            }
        }
    }

    /// What is due now, of any of them; else the first that comes.
    async fn receive(&self, seats: &[Seat], wait: Duration) -> Result<Vec<Received>> {
        let mut batch = Batch(vec![]);
        for seat in seats {
            match seat.receive(self.max - batch.0.len(), Duration::ZERO).await {
                Ok(received) => batch.0.extend(received),
                Err(error) if batch.0.is_empty() => return Err(error),
                Err(error) => {
                    let kind = seat.claimer.settings.topic.as_ref();
                    tracing::warn!(target: "dwell", kind, %error, "jobs of one type could not be claimed, those of others were");
                    break;
                }
            }
            if batch.0.len() >= self.max {
                break;
            }
        }
        if !batch.0.is_empty() || wait.is_zero() {
            return Ok(batch.finish());
        }
        let waiting = seats.iter().map(|seat| Box::pin(seat.receive(self.max, wait)));
        select_all(waiting).await.0
    }
}

/// Settles these in a task of their own, that a caller who goes away does not stop.
fn settle_apart(engine: &Engine, all: Vec<(Hold, Delivery, Verdict)>) -> Option<JoinHandle<()>> {
    if all.is_empty() {
        return None;
    }
    // Without a runtime, they come back when their leases run out.
    let runtime = Handle::try_current().ok()?;
    // Those of one consumer together: a worker that dies may leave thousands.
    let mut groups: Vec<(Hold, Vec<Settle>)> = vec![];
    for (hold, delivery, verdict) in all {
        let settle = hold.decide(delivery, verdict);
        match groups.iter_mut().find(|(of, _)| Arc::ptr_eq(&of.gaps, &hold.gaps)) {
            Some((_, group)) => group.push(settle),
            None => groups.push((hold, vec![settle])),
        }
    }
    let settle = async move {
        for (hold, group) in groups {
            for Unsettled { settle, error } in hold.carry_out(group).await {
                // Its lease runs out once more, and then this is tried again.
                let id = &settle.delivery.message.id;
                tracing::warn!(target: "dwell", %id, %error, "a job that was not handed out could not be put back");
            }
        }
    };
    Some(runtime.spawn(engine.seams().clock.track(Box::pin(settle))))
}

impl IntoFuture for Claim {
    type Output = Result<Vec<Claimed>>;
    type IntoFuture = BoxFuture<'static, Result<Vec<Claimed>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.claim())
    }
}

/// Who claims jobs of one type for this process.
pub(crate) struct Claimer {
    settings: SubscriptionSettings,
    subscription: Subscription,
    /// Consumers that nobody receives with at the moment: each serves one claim at a time, and what
    /// it received until it is settled.
    idle: Mutex<Vec<Arc<Gaps>>>,
}

impl Claimer {
    pub(super) async fn open(engine: &Engine, settings: SubscriptionSettings) -> Result<Self> {
        settings.validate(&engine.capabilities())?;
        let what = format!("jobs on {}", settings.topic);
        engine.check_delay(settings.longest_delay(), &what)?;
        let topic = Topic::named(settings.topic.clone()).keep();
        let subscription = settings.subscription();
        let subscriptions = std::slice::from_ref(&subscription);
        engine.transport().provision(&[topic], subscriptions, settings.on_missing).await?;
        Ok(Self { settings, subscription, idle: Mutex::default() })
    }

    /// A consumer for `worker` to receive with.
    async fn seat(self: Arc<Self>, engine: &Engine, worker: &Text, lease: Option<Duration>) -> Result<Seat> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let gaps = match idle {
            Some(gaps) => gaps,
            None => {
                let consumer = engine.transport().consumer(self.subscription.clone()).await?;
                Arc::new(engine.gaps(self.subscription.clone(), consumer))
            }
        };
        let (engine, worker) = (engine.clone(), worker.clone());
        Ok(Seat { claimer: self, gaps, engine, worker, lease })
    }
}

/// A consumer in use. It goes back when this is dropped, with what it may have fetched for a claim
/// that was given up.
struct Seat {
    claimer: Arc<Claimer>,
    gaps: Arc<Gaps>,
    engine: Engine,
    worker: Text,
    lease: Option<Duration>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.claimer.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.gaps.clone());
    }
}

impl Seat {
    async fn receive(&self, max: usize, wait: Duration) -> Result<Vec<Received>> {
        let receive = Receive { max, wait, lease: self.lease, worker: Some(self.worker.clone()) };
        let batch = self.gaps.consumer.receive_with(receive).await?;
        Ok(batch.into_iter().map(|delivery| Received { hold: self.hold(), delivery }).collect())
    }

    fn hold(&self) -> Hold {
        let settings = &self.claimer.settings;
        Hold {
            gaps: self.gaps.clone(),
            engine: self.engine.clone(),
            rules: Rules::new(settings, self.worker.clone()),
            quarantine: settings.quarantine(&self.engine.capabilities()),
            lease: self.lease.unwrap_or(settings.lease),
            release_delay: settings.release_delay,
        }
    }
}

/// A delivery, and what holds it.
struct Received {
    hold: Hold,
    delivery: Delivery,
}

/// What was received so far. If the claim is given up before it is complete, it goes back: nobody
/// has lost it.
struct Batch(Vec<Received>);

impl Batch {
    fn finish(mut self) -> Vec<Received> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let Some(engine) = self.0.first().map(|received| received.hold.engine.clone()) else { return };
        let release = |Received { hold, delivery }| {
            (hold, delivery, Verdict::Release("the claim was given up before it was complete".into()))
        };
        settle_apart(&engine, self.0.drain(..).map(release).collect());
    }
}

/// What it takes to hold one job, and to say what became of it.
#[derive(Clone)]
pub(super) struct Hold {
    gaps: Arc<Gaps>,
    engine: Engine,
    rules: Rules,
    quarantine: Option<u32>,
    lease: Duration,
    release_delay: Duration,
}

impl Hold {
    /// What is to become of it instead of a run: it cannot be read, or was lost by others before.
    fn refuses(&self, delivery: &Delivery) -> Option<Verdict> {
        match &delivery.problem {
            Some(problem) => Some(Verdict::Invalid(problem.clone())),
            None => self.rules.before_run(delivery, self.quarantine),
        }
    }

    pub(super) fn worker(&self) -> &Text {
        &self.rules.worker
    }

    pub(super) fn until(&self) -> Timestamp {
        self.engine.seams().clock.now().after(self.lease)
    }

    /// Holds it for longer. `Stale` if it is somebody else's by now.
    pub(super) async fn extend(&self, lease: LeaseId, by: Option<Duration>) -> Result<Timestamp> {
        let by = by.unwrap_or(self.lease);
        let lost = self.gaps.consumer.extend(vec![lease], Some(by)).await?;
        match lost.is_empty() {
            true => Ok(self.engine.seams().clock.now().after(by)),
            false => {
                let text =
                    "this attempt was settled before, or its lease ran out: stop, the job is in other hands";
                Err(Error::new(ErrorKind::Stale, text))
            }
        }
    }

    /// Carries out what the rule book says. A fault of the moment is tried again as long as the
    /// lease may last; then it is an error, and the job comes back by itself. `runtime` is that of
    /// the bus, if it has one.
    pub(super) async fn settle(
        &self,
        delivery: Delivery,
        verdict: Verdict,
        runtime: Option<&Handle>,
    ) -> Result<()> {
        if matches!(verdict, Verdict::Release(_)) && !self.release_delay.is_zero() {
            match runtime.cloned().or_else(|| Handle::try_current().ok()) {
                Some(runtime) => return self.release_later(&runtime, delivery, verdict).await,
                None => {
                    let id = &delivery.message.id;
                    tracing::warn!(target: "dwell", %id, "no runtime to wait for `release_delay` on; job released at once");
                }
            }
        }
        match self.carry_out(vec![self.decide(delivery, verdict)]).await.pop() {
            None => Ok(()),
            Some(unsettled) => Err(unsettled.error),
        }
    }

    /// Holds a released job for `release_delay`, as a pump does. The caller does not wait: it
    /// learns whether the attempt was still its own.
    async fn release_later(&self, runtime: &Handle, delivery: Delivery, verdict: Verdict) -> Result<()> {
        let (hold, clock) = (self.clone(), self.engine.seams().clock.clone());
        let (tell, told) = oneshot::channel();
        let release = async move {
            let extended = hold.extend_for_release(delivery.receipt.lease()).await;
            let is_ours = extended.is_ok();
            // A caller that has gone away changes nothing.
            let _ = tell.send(extended);
            if !is_ours {
                return;
            }
            hold.engine.seams().clock.sleep(hold.release_delay).await;
            let settle = hold.decide(delivery, verdict);
            for Unsettled { settle, error } in hold.carry_out(vec![settle]).await {
                // It comes back when its lease runs out.
                let id = &settle.delivery.message.id;
                tracing::warn!(target: "dwell", %id, %error, "a released job could not be given back");
            }
        };
        runtime.spawn(clock.track(Box::pin(release)));
        told.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the runtime of the bus is gone")))
    }

    /// Extends the lease over `release_delay`. A fault of the moment is tried again, as in a
    /// settlement.
    async fn extend_for_release(&self, lease: LeaseId) -> Result<()> {
        let until_released = self.release_delay.saturating_add(self.lease.min(RELEASE_MARGIN));
        let mut retries = Retries::new(self);
        loop {
            match self.extend(lease, Some(until_released)).await {
                Err(error) if error.is_retryable() && !retries.is_late() => retries.pause().await,
                extended => return extended.map(drop),
            }
        }
    }

    fn decide(&self, delivery: Delivery, verdict: Verdict) -> Settle {
        let seams = self.engine.seams();
        decide(delivery, verdict, &self.rules, seams.clock.now(), seams.random.symmetric()).settle
    }

    /// Returns those that could not be settled for as long as their leases may last.
    async fn carry_out(&self, mut batch: Vec<Settle>) -> Vec<Unsettled> {
        let (mut given_up, mut retries) = (vec![], Retries::new(self));
        loop {
            let unsettled = settle_with_gaps(&self.gaps, batch).await;
            let is_late = retries.is_late();
            let (again, rest): (Vec<_>, Vec<_>) =
                unsettled.into_iter().partition(|unsettled| unsettled.error.is_retryable() && !is_late);
            given_up.extend(rest);
            if again.is_empty() {
                return given_up;
            }
            batch = again.into_iter().map(|unsettled| unsettled.settle).collect();
            retries.pause().await;
        }
    }
}

/// The pauses between calls that a fault of the moment made fail.
struct Retries<'a> {
    clock: &'a Arc<dyn Clock>,
    /// When the lease may be over, in elapsed time.
    give_up: Duration,
    pause: Duration,
}

impl<'a> Retries<'a> {
    fn new(of: &'a Hold) -> Self {
        let clock = &of.engine.seams().clock;
        Self { clock, give_up: clock.elapsed().saturating_add(of.lease), pause: FIRST_PAUSE }
    }

    /// Whether the lease may be over after the next pause.
    fn is_late(&self) -> bool {
        self.clock.elapsed().saturating_add(self.pause) >= self.give_up
    }

    async fn pause(&mut self) {
        self.clock.sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
