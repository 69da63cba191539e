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

/// A reading of a wall clock, with the part of a millisecond that a [`Timestamp`] does not have.
///
/// It is rounded down to determine which messages are due, and up before a delay is added, so that no message is early by
/// that part.
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
    /// Nanoseconds past `millis`: less than a million.
    nanos: u32,
}

impl Moment {
    /// A reading whose part of a millisecond is unknown: the last moment of the given millisecond, so that a delay that is
    /// added to it is never early.
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

    /// The last whole millisecond: messages that are due by then are due.
    pub fn floor(self) -> Timestamp {
        Timestamp(self.millis)
    }

    /// The next whole millisecond, unless this is one: where delays start.
    pub fn ceil(self) -> Timestamp {
        Timestamp(self.millis.saturating_add(i64::from(self.nanos > 0)))
    }

    /// Microseconds since the epoch, rounded down.
    pub fn micros(self) -> i64 {
        self.millis.saturating_mul(1000).saturating_add(i64::from(self.nanos / 1000))
    }

    /// The reading of a clock that is ahead by this number of milliseconds.
    #[must_use]
    pub fn shift(self, millis: i64) -> Self {
        Self { millis: self.millis.saturating_add(millis), ..self }
    }
}

/// A whole millisecond.
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

/// Rounded *up* to a millisecond: never early.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Moment::from(time).ceil()
    }
}

/// When a message may be handled, in the words the caller used. Whoever *holds* the message while it waits resolves
/// `After`, once, on its own clock, and keeps the absolute time from then on: `after(5s)` is five seconds even if the
/// sender's clock is wrong, and hops do not add up.
///
/// ```
/// use dwell_core::{Due, Moment, Timestamp};
/// use std::time::Duration;
///
/// let (now, minute) = (Timestamp(1_000_000), Duration::from_secs(60));
/// assert_eq!(Due::from(minute).resolve(Moment::from(now)), Timestamp(1_060_000));
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

    /// The absolute time, on the clock that says `now`. A delay starts at the next whole millisecond: never early.
    pub fn resolve(self, now: Moment) -> Timestamp {
        match self {
            Self::NOW => now.floor(),
            Self::After(delay) => now.ceil().after(delay),
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
