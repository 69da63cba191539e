//! The time, for showing how long things take and for stopping what hangs.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "these commands watch other programs, which run in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
