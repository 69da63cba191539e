//! Notices that this process was suspended, as by `SIGSTOP` or with its virtual machine.
//!
//! After its session another relay has the partitions, and has sent what became due. The client library hears of that with its
//! next heartbeat at the latest. A worker that goes on before that sends the same records once more.

use dwell_core::Timestamp;
use std::time::Duration;

/// The longest time between two heartbeats of a member, and what its answer may take beyond that.
const HEARTBEAT: Duration = Duration::from_secs(3);
const MARGIN: Duration = Duration::from_secs(1);

/// What one worker knows of that. It looks for records many times within a session.
pub(super) struct Suspension {
    looked: Timestamp,
    paused_until: Timestamp,
}

impl Suspension {
    /// None so far.
    pub(super) fn new(now: Timestamp) -> Self {
        Self { looked: now, paused_until: now }
    }

    /// Notes that the worker looks for records. Returns how long it had not, if its partitions may be lost.
    pub(super) fn look(&mut self, now: Timestamp, session: Duration) -> Option<Duration> {
        let gap = now.since(std::mem::replace(&mut self.looked, now));
        let is_suspended = gap > session / 2;
        if is_suspended {
            self.paused_until = now.after((session / 10).min(HEARTBEAT) + MARGIN);
        }
        is_suspended.then_some(gap)
    }

    /// Returns when the worker may go on, if that is not now.
    pub(super) fn paused_until(&self, now: Timestamp) -> Option<Timestamp> {
        Some(self.paused_until).filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Duration = Duration::from_secs(30);

    #[test]
    fn a_worker_that_was_suspended_waits_for_the_next_heartbeat() {
        let start = Timestamp(1_000_000);
        let mut suspension = Suspension::new(start);
        let after = |seconds| start.after(Duration::from_secs(seconds));
        assert_eq!(suspension.look(after(5), SESSION), None);
        assert_eq!(suspension.look(after(20), SESSION), None, "it is still a member");
        assert_eq!(suspension.paused_until(after(20)), None);
        assert_eq!(suspension.look(after(36), SESSION), Some(Duration::from_secs(16)));
        assert_eq!(suspension.look(after(37), SESSION), None);
        assert_eq!(suspension.paused_until(after(37)), Some(after(40)));
        assert_eq!(suspension.paused_until(after(40)), None);
    }
}
