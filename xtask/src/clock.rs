//! The time, for durations in the output and for time limits.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "these commands watch other programs, which run in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
