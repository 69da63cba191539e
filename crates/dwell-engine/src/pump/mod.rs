//! Pumps: from a broker to a handler and back.
//!
//! A pump is the work of one process for one subscription. It has performers, each with a consumer,
//! a loop and a supervisor. Async handlers and blocking handlers, which have their own threads, use
//! the same loop and the same rules. They differ only in their [`Work`].

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

/// Requested state of a pump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Run,
    /// Finish running handlers, and receive and start nothing more.
    Pause,
    /// Stop in order.
    Drain,
    /// Stop immediately.
    StopNow,
}

/// State of a performer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is starting.
    Starting,
    /// It receives and runs messages.
    Running,
    /// It is paused.
    Paused,
    /// It stopped because too many messages were unacceptable. [`Pump::restart`] restarts it.
    LimitExceeded,
    /// It stopped because its pipeline cannot work. Only [`Pump::restart`] restarts it.
    Misconfigured(Text),
    /// It failed, and restarts after a pause.
    Restarting(Text),
    /// It was stopped.
    Stopped,
}

/// State that the performers of a pump share.
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

/// State of one performer that survives its restarts.
pub(crate) struct Seat {
    pub(crate) slots: Arc<Slots>,
    pub(crate) abandoned: Arc<Abandoned>,
    status: watch::Sender<Status>,
}

impl PumpShared {
    /// Stores why receiving fails, or that it succeeds again.
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

/// A running subscription. Dropping the value stops nothing, because the engine has a clone.
#[derive(Clone)]
pub struct Pump {
    pub(crate) shared: Arc<PumpShared>,
    control: watch::Sender<Control>,
    restart: watch::Sender<u64>,
}

impl Pump {
    /// Starts the performers. Topics and queues must exist.
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

    /// Returns the address of the subscription.
    pub fn address(&self) -> Address {
        Address::subscription(self.shared.settings.topic.clone(), self.shared.settings.name.clone())
    }

    /// Returns the settings.
    pub fn settings(&self) -> &SubscriptionSettings {
        &self.shared.settings
    }

    /// Returns the numbers of events so far.
    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }

    /// Returns the state of each performer.
    pub fn status(&self) -> Vec<Status> {
        let paused = *self.control.borrow() == Control::Pause;
        let shown =
            |status: Status| if paused && status == Status::Running { Status::Paused } else { status };
        self.shared.performers.iter().map(|seat| shown(seat.status.borrow().clone())).collect()
    }

    /// Returns why receiving fails currently, if it does.
    pub fn last_error(&self) -> Option<String> {
        self.shared.error().clone()
    }

    /// Stops receiving and starting messages until [`Pump::resume`]. Running handlers finish.
    pub fn pause(&self) {
        self.set(Control::Run, Control::Pause);
    }

    /// Continues after [`Pump::pause`].
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

    /// Restarts performers that have stopped with `LimitExceeded` or `Misconfigured`.
    pub fn restart(&self) {
        self.restart.send_modify(|count| *count += 1);
    }

    /// Stops in order: receives nothing more, lets handlers finish within `shutdown_timeout`, gives
    /// back the other messages, settles and closes. Completes when all performers have stopped.
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

    /// Stops immediately. Running handlers are dropped, and the broker redelivers their messages.
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

    /// Completes when the state of a performer, as in [`Pump::status`], satisfies `is`.
    pub async fn until(&self, is: impl Fn(&Status) -> bool) {
        let mut control = self.control.subscribe();
        let mut statuses: Vec<_> =
            self.shared.performers.iter().map(|seat| seat.status.subscribe()).collect();
        loop {
            // Marked as seen before they are read, so that later changes are noticed.
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
