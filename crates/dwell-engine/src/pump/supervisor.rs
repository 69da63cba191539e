//! Supervision of a performer: replaces its consumer and restarts its loop after a failure.

use super::{
    Control, PumpShared, Status,
    counters::Counts,
    performer::{Ended, Performer},
    renew::renew,
};
use crate::{backoff::Backoff, spawn::panic_text, spawn::spawn};
use dwell_core::{Clock, Consumer, Result};
use futures_util::FutureExt;
use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinHandle};

/// Duration after which a performer counts as healthy. A later failure starts with the shortest
/// pause.
const HEALTHY: Duration = Duration::from_secs(60);

pub(super) async fn supervise_performer(
    pump: Arc<PumpShared>,
    seat: usize,
    mut control: watch::Receiver<Control>,
    mut restart: watch::Receiver<u64>,
) {
    let place = &pump.performers[seat];
    let clock = pump.seams.clock.clone();
    let (topic, subscription) = (&*pump.settings.topic, &*pump.settings.name);
    let mut backoff = Backoff::new(pump.settings.channel_failure_delay, Duration::from_secs(60));
    let mut starts = 0u64;
    loop {
        if is_stopping(&control) {
            break;
        }
        starts += 1;
        let started = clock.elapsed();
        let ended = perform(&pump, seat, starts, &control).await;
        place.slots.lock().clear();
        let text = match ended {
            Ok(Ended::Stopped) => break,
            Ok(Ended::LimitExceeded) => {
                tracing::error!(
                    topic,
                    subscription,
                    limit = pump.settings.unacceptable_message_limit,
                    "performer stopped: too many unacceptable messages"
                );
                stay_down(place, Status::LimitExceeded, &mut control, &mut restart).await;
                continue;
            }
            Ok(Ended::Misconfigured(error)) => {
                tracing::error!(topic, subscription, %error, "performer stopped: its configuration cannot work");
                stay_down(place, Status::Misconfigured(error), &mut control, &mut restart).await;
                continue;
            }
            Ok(Ended::Failed(error)) => error.to_string(),
            Err(panic) => format!("panicked: {panic}"),
        };
        tracing::error!(topic, subscription, error = %text, "performer failed; restarting");
        pump.counters.add(&Counts { restarts: 1, ..Counts::default() });
        place.status.send_replace(Status::Restarting(text.into()));
        let now = clock.elapsed();
        if now.saturating_sub(started) >= HEALTHY {
            backoff.succeeded();
        }
        backoff.failed(now);
        pause(&*clock, backoff.rest(now), &mut control).await;
    }
    place.status.send_replace(Status::Stopped);
}

/// Runs a performer once.
async fn perform(
    pump: &Arc<PumpShared>,
    seat: usize,
    start: u64,
    control: &watch::Receiver<Control>,
) -> Result<Ended, String> {
    let place = &pump.performers[seat];
    let subscription = pump.settings.subscription();
    let consumer = AssertUnwindSafe(connect(pump, control)).catch_unwind().await;
    let consumer = match consumer {
        Ok(Some(Ok(consumer))) => consumer,
        Ok(Some(Err(error))) => return Ok(Ended::Failed(error)),
        Ok(None) => return Ok(Ended::Stopped),
        Err(panic) => return Err(panic_text(&*panic).to_owned()),
    };
    place.status.send_replace(Status::Running);
    let clock = &pump.seams.clock;
    let renewal = renew(place.slots.clone(), consumer.clone(), clock.clone(), subscription.clone());
    let _renewal = AbortOnDrop(spawn(&**clock, renewal));
    // Unique, because a reused name would hide orphaned deliveries.
    let worker =
        format!("{}-{}-{}.{seat}.{start}", pump.seams.instance, pump.seams.incarnation, subscription.name);
    let performer = Performer::new(pump.clone(), seat, consumer, worker.into(), control.clone());
    AssertUnwindSafe(performer.run()).catch_unwind().await.map_err(|panic| panic_text(&*panic).to_owned())
}

/// Opens a consumer, unless the pump is stopped first.
async fn connect(pump: &PumpShared, control: &watch::Receiver<Control>) -> Option<Result<Arc<dyn Consumer>>> {
    let mut control = control.clone();
    tokio::select! {
        biased;
        _ = control.wait_for(|control| matches!(control, Control::Drain | Control::StopNow)) => None,
        consumer = pump.transport.consumer(pump.settings.subscription()) => Some(consumer),
    }
}

fn is_stopping(control: &watch::Receiver<Control>) -> bool {
    matches!(*control.borrow(), Control::Drain | Control::StopNow) || control.has_changed().is_err()
}

/// Waits until the performer is restarted by a person, or stopped.
async fn stay_down(
    place: &super::Seat,
    status: Status,
    control: &mut watch::Receiver<Control>,
    restart: &mut watch::Receiver<u64>,
) {
    restart.mark_unchanged();
    place.status.send_replace(status);
    tokio::select! {
        biased;
        _ = control.wait_for(|control| matches!(control, Control::Drain | Control::StopNow)) => {}
        _ = restart.changed() => {}
    }
}

async fn pause(clock: &dyn Clock, pause: Duration, control: &mut watch::Receiver<Control>) {
    tokio::select! {
        biased;
        _ = control.wait_for(|control| matches!(control, Control::Drain | Control::StopNow)) => {}
        () = clock.sleep(pause) => {}
    }
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
