//! Points in time and due times, in whole milliseconds.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch. The context names the clock. Arithmetic saturates.
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
    /// The latest time, at which arithmetic saturates.
    pub const MAX: Self = Self(i64::MAX);

    /// Returns this time plus `delay`, rounded *up* to a millisecond so that it is never early.
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

    /// Returns the duration from `now` until this time, or zero if this time has passed.
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

/// A reading of a wall clock, with the fraction of a millisecond that a [`Timestamp`] does not
/// have.
///
/// It is rounded down to find due messages, and up before a delay is added. No message is early by
/// the fraction.
///
/// ```
/// use dwell_core::{Moment, Timestamp};
/// use std::time::{Duration, UNIX_EPOCH};
///
/// let moment = Moment::from(UNIX_EPOCH + Duration::from_micros(1_000_250));
/// assert_eq!((moment.floor(), moment.ceil()), (Timestamp(1000), Timestamp(1001)));
/// assert_eq!(moment.micros(), 1_000_250);
/// assert_eq!(Moment::from(Timestamp(1000)).ceil(), Timestamp(1000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    millis: i64,
    /// Nanoseconds past `millis`, less than a million.
    nanos: u32,
}

impl Moment {
    /// Returns a reading with an unknown fraction of a millisecond: the last moment of the given
    /// one, so that a delay added to it is never early.
    ///
    /// ```
    /// use dwell_core::{Moment, Timestamp};
    ///
    /// let appended = Moment::within(Timestamp(1000));
    /// assert_eq!((appended.floor(), appended.ceil()), (Timestamp(1000), Timestamp(1001)));
    /// ```
    pub fn within(millisecond: Timestamp) -> Self {
        Self { millis: millisecond.0, nanos: 999_999 }
    }

    /// Returns the last whole millisecond. Messages with this due time, or an earlier one, are due.
    pub fn floor(self) -> Timestamp {
        Timestamp(self.millis)
    }

    /// Returns the next whole millisecond, or this one if it is whole. Delays start here.
    pub fn ceil(self) -> Timestamp {
        Timestamp(self.millis.saturating_add(i64::from(self.nanos > 0)))
    }

    /// Returns the microseconds since the epoch, rounded down.
    pub fn micros(self) -> i64 {
        self.millis.saturating_mul(1000).saturating_add(i64::from(self.nanos / 1000))
    }

    /// Returns the reading of a clock that is ahead by `millis` milliseconds.
    #[must_use]
    pub fn shift(self, millis: i64) -> Self {
        Self { millis: self.millis.saturating_add(millis), ..self }
    }
}

/// Converts a whole millisecond.
impl From<Timestamp> for Moment {
    fn from(time: Timestamp) -> Self {
        Self { millis: time.0, nanos: 0 }
    }
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        const MILLI: u32 = 1_000_000;
        let millis = |since: Duration| i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self { millis: millis(after), nanos: after.subsec_nanos() % MILLI },
            Err(before) => {
                let before = before.duration();
                let past = before.subsec_nanos() % MILLI;
                let whole = Self { millis: -millis(before), nanos: 0 };
                if past == 0 { whole } else { Self { nanos: MILLI - past, ..whole.shift(-1) } }
            }
        }
    }
}

/// Rounds *up* to a millisecond, so that the time is never early.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Moment::from(time).ceil()
    }
}

/// When a message may be handled. The transport or store that holds the pending message resolves
/// `After`, once, on its own clock, and stores the absolute time. `After` five seconds is therefore
/// five seconds even if the sender's clock is wrong, and several hops do not add up.
///
/// ```
/// use dwell_core::{Due, Moment, Timestamp};
/// use std::time::Duration;
///
/// let (now, minute) = (Timestamp(1_000_000), Duration::from_secs(60));
/// assert_eq!(Due::from(minute).resolve(Moment::from(now)), Timestamp(1_060_000));
/// assert_eq!(Due::from(Timestamp(1_060_000)).wait(now), minute);
/// assert!(Due::At(Timestamp(0)).wait(now).is_zero(), "due already");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Due {
    /// This long after the store has accepted the message. Zero is immediately.
    After(Duration),
    /// At this time. A past time is immediately.
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
    /// Due immediately, without a scheduler.
    pub const NOW: Self = Self::After(Duration::ZERO);

    /// Returns the absolute time, given the current one. A delay starts at the next whole
    /// millisecond, so that it is never early.
    pub fn resolve(self, now: Moment) -> Timestamp {
        match self {
            Self::NOW => now.floor(),
            Self::After(delay) => now.ceil().after(delay),
            Self::At(time) => time,
        }
    }

    /// Returns the remaining time from `now`, or zero if the time has passed.
    pub fn wait(self, now: Timestamp) -> Duration {
        match self {
            Self::After(delay) => delay,
            Self::At(time) => time.since(now),
        }
    }
}
