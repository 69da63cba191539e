//! Status of the relay: a line on the terminal that is updated, or a line in the log from time to
//! time.

use dwell_core::Clock;
use dwell_kafka::{Counts, Tally};
use std::{
    io::{IsTerminal as _, Write as _, stderr},
    sync::Arc,
    time::Duration,
};
use tokio::task::JoinHandle;

const ON_A_TERMINAL: Duration = Duration::from_secs(1);
const IN_A_LOG: Duration = Duration::from_secs(60);

/// Shows the status until it is dropped.
pub(super) struct Status {
    task: JoinHandle<()>,
    on_a_terminal: bool,
}

pub(super) fn show(counts: Arc<Counts>, clock: Arc<dyn Clock>) -> Status {
    let on_a_terminal = stderr().is_terminal();
    let period = if on_a_terminal { ON_A_TERMINAL } else { IN_A_LOG };
    let task = tokio::spawn(async move {
        let mut before = 0;
        loop {
            clock.sleep(period).await;
            let tally = counts.tally();
            if on_a_terminal {
                // The cursor returns to the start, so that a log line overwrites the status.
                let _ = write!(stderr(), "\r\x1b[2K{}\r", line(&tally, tally.forwarded - before));
            } else {
                let lag: u64 = tally.lag.values().sum();
                let (lateness, latest) = (mean(&tally), tally.latest);
                let Tally { held, forwarded, parked, .. } = tally;
                tracing::info!(lag, held, forwarded, parked, ?lateness, ?latest, "relay status");
            }
            before = tally.forwarded;
        }
    });
    Status { task, on_a_terminal }
}

impl Drop for Status {
    fn drop(&mut self) {
        self.task.abort();
        if self.on_a_terminal {
            let _ = write!(stderr(), "\r\x1b[2K");
        }
    }
}

fn line(tally: &Tally, a_second: u64) -> String {
    let lag: u64 = tally.lag.values().sum();
    let Tally { held, forwarded, parked, latest, .. } = tally;
    format!(
        "lag {lag}  held {held}  forwarded {forwarded} ({a_second}/s)  parked {parked}  late {:?} on average, {latest:?} at most",
        mean(tally)
    )
}

fn mean(tally: &Tally) -> Duration {
    tally.lateness.checked_div(u32::try_from(tally.forwarded).unwrap_or(u32::MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_the_counts_and_the_lateness() {
        let said = line(&Counts::default().tally(), 3);
        assert_eq!(said, "lag 0  held 0  forwarded 0 (3/s)  parked 0  late 0ns on average, 0ns at most");
    }
}
