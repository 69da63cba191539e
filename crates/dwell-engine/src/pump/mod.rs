//! The pumps: from a broker to a handler and back.
//!
//! A pump is all that one process does for one subscription: some performers, each a consumer and a loop, under a
//! supervisor each. The proactor (async handlers) and the reactor (blocking ones on threads of their own) are the same
//! loop over the same rule book; they differ in their [`Work`] alone.

mod counters;
mod executor;
mod lanes;
mod limits;
mod performer;
mod renew;
mod run;
pub(crate) mod slots;
mod supervisor;
mod threads;

pub use counters::Counts;
pub use executor::{BlockingRun, Work, drop_caught, or_panic};

use crate::{delay::Delay, inside::Runs, observe::Observer, settings::SubscriptionSettings, spawn::spawn};
use counters::Counters;
use dwell_core::{Address, Capabilities, Result, Seams, Text, Transport};
use limits::Rate;
use slots::{Abandoned, Slots};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// What a pump is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Run,
    /// Finish what runs, start and receive nothing.
    Pause,
    /// Stop in order.
    Drain,
    /// Stop at once.
    StopNow,
}

/// How a performer is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is being started.
    Starting,
    /// It receives and runs.
    Running,
    /// It was paused.
    Paused,
    /// It stopped because too many messages were unacceptable. [`Pump::restart`] starts it again.
    LimitExceeded,
    /// It stopped because its pipeline cannot work. It is not started again by itself.
    Misconfigured(Text),
    /// It ended unexpectedly, and is started again after a pause.
    Restarting(Text),
    /// It was stopped.
    Stopped,
}

/// What the performers of one pump share.
pub(crate) struct PumpShared {
    pub(crate) settings: SubscriptionSettings,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) capabilities: Capabilities,
    pub(crate) delay: Delay,
    pub(crate) seams: Seams,
    pub(crate) work: Work,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) quarantine: Option<u32>,
    pub(crate) runs: Runs,
    counters: Counters,
    rate: Rate,
    performers: Vec<Seat>,
    error: Mutex<Option<String>>,
}

/// The place of one performer: who sits there may change, its slots and status stay.
pub(crate) struct Seat {
    pub(crate) slots: Arc<Slots>,
    pub(crate) abandoned: Arc<Abandoned>,
    status: watch::Sender<Status>,
}

impl PumpShared {
    /// Remembers why receiving fails, or that it no longer does.
    fn set_error(&self, error: Option<String>) {
        let mut last = self.error();
        if *last != error {
            *last = error;
        }
    }

    fn error(&self) -> MutexGuard<'_, Option<String>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn seats(&self) -> &[Seat] {
        &self.performers
    }
}

/// A subscription being worked on. Dropping it stops nothing: the engine holds it, too.
#[derive(Clone)]
pub struct Pump {
    pub(crate) shared: Arc<PumpShared>,
    control: watch::Sender<Control>,
    restart: watch::Sender<u64>,
}

impl Pump {
    /// Starts the performers. Topics and queues must be there.
    pub(crate) fn start(
        settings: SubscriptionSettings,
        transport: Arc<dyn Transport>,
        delay: Delay,
        seams: Seams,
        work: Work,
        observer: Option<Arc<dyn Observer>>,
        runs: Runs,
    ) -> Result<Self> {
        let capabilities = transport.capabilities();
        settings.validate(&capabilities)?;
        delay
            .check(settings.longest_delay(), &format!("subscription {}/{}", settings.topic, settings.name))?;
        let seat = || Seat {
            slots: Arc::default(),
            abandoned: Arc::default(),
            status: watch::Sender::new(Status::Starting),
        };
        let shared = Arc::new(PumpShared {
            quarantine: settings.quarantine(&capabilities),
            rate: Rate::new(settings.rate),
            performers: (0..settings.performers).map(|_| seat()).collect(),
            counters: Counters::default(),
            error: Mutex::default(),
            settings,
            transport,
            capabilities,
            delay,
            seams,
            work,
            observer,
            runs,
        });
        let pump = Self { shared, control: watch::Sender::new(Control::Run), restart: watch::Sender::new(0) };
        for seat in 0..pump.shared.performers.len() {
            let supervisor = supervisor::supervise_performer(
                pump.shared.clone(),
                seat,
                pump.control.subscribe(),
                pump.restart.subscribe(),
            );
            spawn(&*pump.shared.seams.clock, supervisor);
        }
        Ok(pump)
    }

    /// The subscription.
    pub fn address(&self) -> Address {
        Address::subscription(self.shared.settings.topic.clone(), self.shared.settings.name.clone())
    }

    /// Its settings.
    pub fn settings(&self) -> &SubscriptionSettings {
        &self.shared.settings
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }

    /// How each performer is doing.
    pub fn status(&self) -> Vec<Status> {
        let paused = *self.control.borrow() == Control::Pause;
        let shown =
            |status: Status| if paused && status == Status::Running { Status::Paused } else { status };
        self.shared.performers.iter().map(|seat| shown(seat.status.borrow().clone())).collect()
    }

    /// Why receiving fails at the moment, if it does.
    pub fn last_error(&self) -> Option<String> {
        self.shared.error().clone()
    }

    /// Receives and starts nothing more, until [`Pump::resume`]. What runs, ends.
    pub fn pause(&self) {
        self.set(Control::Run, Control::Pause);
    }

    /// Goes on after [`Pump::pause`].
    pub fn resume(&self) {
        self.set(Control::Pause, Control::Run);
    }

    fn set(&self, from: Control, to: Control) {
        self.control.send_if_modified(|control| {
            let fits = *control == from;
            if fits {
                *control = to;
            }
            fits
        });
    }

    /// Starts performers again that stopped by themselves (`LimitExceeded`, `Misconfigured`).
    pub fn restart(&self) {
        self.restart.send_modify(|count| *count += 1);
    }

    /// Stops in order: receives nothing more, lets what runs end within `shutdown_timeout`, gives back the rest,
    /// settles, closes. Completes when that is done.
    pub async fn stop(&self) {
        self.control.send_if_modified(|control| {
            let fits = *control != Control::StopNow && *control != Control::Drain;
            if fits {
                *control = Control::Drain;
            }
            fits
        });
        self.stopped().await;
    }

    /// Stops at once: what runs is dropped, and redelivered by the broker.
    pub fn stop_now(&self) {
        self.control.send_replace(Control::StopNow);
    }

    /// Whether every performer has stopped.
    pub fn has_stopped(&self) -> bool {
        self.shared.performers.iter().all(|seat| *seat.status.borrow() == Status::Stopped)
    }

    /// Completes when every performer has stopped.
    pub async fn stopped(&self) {
        for seat in &self.shared.performers {
            let _ = seat.status.subscribe().wait_for(|status| *status == Status::Stopped).await;
        }
    }

    /// Completes when a performer has a status that `is` accepts, as [`Pump::status`] shows it.
    pub async fn until(&self, is: impl Fn(&Status) -> bool) {
        let mut control = self.control.subscribe();
        let mut statuses: Vec<_> =
            self.shared.performers.iter().map(|seat| seat.status.subscribe()).collect();
        loop {
            // Seen before they are looked at: what changes afterwards is heard.
            control.borrow_and_update();
            statuses.iter_mut().for_each(|status| _ = status.borrow_and_update());
            if self.status().iter().any(&is) {
                return;
            }
            let changes = statuses.iter_mut().map(|status| Box::pin(status.changed()));
            tokio::select! {
                _ = control.changed() => {}
                _ = futures_util::future::select_all(changes) => {}
            }
        }
    }
}

impl fmt::Debug for Pump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump").field("address", &self.address()).field("status", &self.status()).finish()
    }
}
