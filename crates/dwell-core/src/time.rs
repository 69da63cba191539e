//! Points in time and due times, in whole milliseconds.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch, on whichever clock the context names. Arithmetic saturates.
///
/// ```
/// use dwell_core::Timestamp;
/// use std::time::Duration;
///
/// let noon = Timestamp::parse("2026-06-01T12:00:00Z")?;
/// let later = noon.after(Duration::from_secs(90));
/// assert_eq!(later.to_rfc3339(), "2026-06-01T12:01:30.000Z");
/// assert_eq!(later.since(noon), Duration::from_secs(90));
/// # Ok::<(), dwell_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The end of time: what saturating arithmetic ends at.
    pub const MAX: Self = Self(i64::MAX);

    /// This time plus `delay`, rounded *up* to a millisecond: never early.
    ///
    /// ```
    /// use dwell_core::Timestamp;
    /// use std::time::Duration;
    ///
    /// assert_eq!(Timestamp(1000).after(Duration::from_micros(1)), Timestamp(1001));
    /// assert_eq!(Timestamp(1000).after(Duration::MAX), Timestamp::MAX);
    /// ```
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        let millis = delay.as_nanos().div_ceil(1_000_000);
        Self(self.0.saturating_add(i64::try_from(millis).unwrap_or(i64::MAX)))
    }

    /// How long from `now` until this time; zero if it has passed.
    ///
    /// ```
    /// use dwell_core::Timestamp;
    ///
    /// assert_eq!(Timestamp(1500).since(Timestamp(1000)).as_millis(), 500);
    /// assert!(Timestamp(1000).since(Timestamp(1500)).is_zero());
    /// ```
    pub fn since(self, now: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(now.0)).unwrap_or(0))
    }
}

/// Rounded *up* to a millisecond: never early.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(0).after(after),
            Err(before) => Self(-i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX)),
        }
    }
}

/// When a message may be handled, in the words the caller used. Whoever *holds* the message while it waits resolves
/// `After`, once, on its own clock, and keeps the absolute time from then on: `after(5s)` is five seconds even if the
/// sender's clock is wrong, and hops do not add up.
///
/// ```
/// use dwell_core::{Due, Timestamp};
/// use std::time::Duration;
///
/// let (now, minute) = (Timestamp(1_000_000), Duration::from_secs(60));
/// assert_eq!(Due::from(minute).resolve(now), Timestamp(1_060_000));
/// assert_eq!(Due::from(Timestamp(1_060_000)).wait(now), minute);
/// assert!(Due::At(Timestamp(0)).wait(now).is_zero(), "at once");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Due {
    /// This long after the holder accepted it. Zero is at once.
    After(Duration),
    /// At this time. A past time is at once.
    At(Timestamp),
}

impl From<Duration> for Due {
    fn from(delay: Duration) -> Self {
        Self::After(delay)
    }
}

impl From<Timestamp> for Due {
    fn from(time: Timestamp) -> Self {
        Self::At(time)
    }
}

impl From<SystemTime> for Due {
    fn from(time: SystemTime) -> Self {
        Self::At(time.into())
    }
}

impl Due {
    /// At once: never touches a scheduler.
    pub const NOW: Self = Self::After(Duration::ZERO);

    /// The absolute time, on the clock that says `now`.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::After(delay) => now.after(delay),
            Self::At(time) => time,
        }
    }

    /// How long that is from `now`; zero if it has passed.
    pub fn wait(self, now: Timestamp) -> Duration {
        match self {
            Self::After(delay) => delay,
            Self::At(time) => time.since(now),
        }
    }
}
