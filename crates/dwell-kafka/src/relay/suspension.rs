//! Detects that this process was suspended, by `SIGSTOP` or with its virtual machine.
//!
//! After the session timeout, another relay owns the partitions and has forwarded the records that
//! became due. librdkafka learns of that with its next heartbeat at the latest. A worker that
//! continues before that forwards the same records once more.

use dwell_core::Timestamp;
use std::time::Duration;

/// Longest interval between two heartbeats of a member, and the margin for the response.
const HEARTBEAT: Duration = Duration::from_secs(3);
const MARGIN: Duration = Duration::from_secs(1);

/// What one worker knows about suspensions. It checks for records many times within a session.
pub(super) struct Suspension {
    looked: Timestamp,
    paused_until: Timestamp,
}

impl Suspension {
    /// Starts without a suspension.
    pub(super) fn new(now: Timestamp) -> Self {
        Self { looked: now, paused_until: now }
    }

    /// Notes that the worker checks for records. Returns the time since the last check, if it is so
    /// long that the partitions may be lost.
    pub(super) fn look(&mut self, now: Timestamp, session: Duration) -> Option<Duration> {
        let gap = now.since(std::mem::replace(&mut self.looked, now));
        let is_suspended = gap > session / 2;
        if is_suspended {
            self.paused_until = now.after((session / 10).min(HEARTBEAT) + MARGIN);
        }
        is_suspended.then_some(gap)
    }

    /// Returns when the worker may continue, if that is in the future.
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
