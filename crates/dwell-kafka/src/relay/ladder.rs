//! The ladder: the levels that a record may wait in.

use dwell_core::{Error, ErrorKind, Result, format_duration, parse_duration};
use std::time::Duration;

/// The levels, from the shortest to the longest. A record waits first in the largest level that
/// fits into its delay, then in the largest that fits into the remaining delay, and so on.
///
/// ```
/// use dwell_kafka::Ladder;
/// use std::time::Duration;
///
/// let ladder = Ladder::parse("1s,10s,1m")?;
/// assert_eq!(ladder.fitting(Duration::from_secs(59)), Some(Duration::from_secs(10)));
/// assert_eq!(ladder.fitting(Duration::from_millis(999)), None);
/// # Ok::<(), dwell_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder(Vec<Duration>);

impl Ladder {
    /// Parses `5s,10s,…`, in ascending order.
    pub fn parse(text: &str) -> Result<Self> {
        let levels = text.split(',').map(|level| parse_duration(level.trim())).collect::<Result<_>>()?;
        Self::new(levels)
    }

    /// Creates a ladder from durations in ascending order. Each level must be a multiple of 100 ms.
    pub fn new(levels: Vec<Duration>) -> Result<Self> {
        let refuse =
            |why: &str| Err(Error::new(ErrorKind::Config, format!("the ladder of delay topics {why}")));
        if levels.is_empty() {
            return refuse("is empty: give at least one level, such as `5s`");
        }
        if levels.iter().any(|level| level.is_zero() || level.as_nanos() % 100_000_000 != 0) {
            return refuse("has a level that is not a multiple of 100ms");
        }
        if levels.windows(2).any(|pair| pair[0] >= pair[1]) {
            return refuse("is not in ascending order: write `5s,10s,20s`");
        }
        Ok(Self(levels))
    }

    /// Returns all levels.
    pub fn levels(&self) -> &[Duration] {
        &self.0
    }

    /// Returns the largest level that is not longer than this time.
    pub fn fitting(&self, remaining: Duration) -> Option<Duration> {
        self.0.iter().rev().find(|level| **level <= remaining).copied()
    }

    /// Returns the largest level that fits, or the shortest level if none does.
    pub(crate) fn fitting_or_shortest(&self, time: Duration) -> Duration {
        self.fitting(time).unwrap_or(self.0[0])
    }

    /// Returns the level of this name, as [`Self::name`] writes it.
    pub(crate) fn level_named(name: &str) -> Option<Duration> {
        let level = match name.strip_suffix("ms") {
            Some(number) => Duration::from_millis(number.parse().ok()?),
            None => Duration::from_secs(name.strip_suffix('s')?.parse().ok()?),
        };
        (Self::name(level) == name).then_some(level)
    }

    /// Returns the name of a level, which is the end of its topic's name.
    pub(crate) fn name(level: Duration) -> String {
        if level.subsec_millis() == 0 {
            format!("{}s", level.as_secs())
        } else {
            format!("{}ms", level.as_millis())
        }
    }
}

/// 5 s, doubled up to 327 680 s, then five days.
impl Default for Ladder {
    fn default() -> Self {
        let mut levels: Vec<_> = (0..17).map(|step| Duration::from_secs(5 << step)).collect();
        levels.push(Duration::from_secs(432_000));
        Self(levels)
    }
}

impl std::fmt::Display for Ladder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.iter().map(|level| format_duration(*level)).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_ladder_is_the_documented_one() {
        let names: Vec<_> = Ladder::default().levels().iter().map(|level| Ladder::name(*level)).collect();
        let expected = "5s 10s 20s 40s 80s 160s 320s 640s 1280s 2560s 5120s 10240s 20480s 40960s 81920s 163840s \
                        327680s 432000s";
        assert_eq!(names.join(" "), expected);
        assert_eq!(Ladder::name(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn any_delay_is_divided_into_levels_without_exceeding_it() {
        let ladder = Ladder::default();
        for seconds in [1, 4, 5, 39, 40, 900, 432_000, 315_360_000] {
            let mut left = Duration::from_secs(seconds);
            let mut hops = 0;
            while let Some(level) = ladder.fitting(left) {
                left -= level;
                hops += 1;
            }
            assert!(left < Duration::from_secs(5));
            assert!(hops <= 730 + 18, "{hops} hops for {seconds} s");
        }
    }

    #[test]
    fn an_invalid_ladder_is_refused() {
        for text in ["", "5s,5s", "10s,5s", "0s", "150ms,1s", "soon"] {
            assert!(Ladder::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(Ladder::parse("1s, 90s").unwrap().to_string(), "1s,1m30s");
    }
}
