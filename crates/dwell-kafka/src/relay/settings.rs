//! Settings of the delay topics.

use super::Ladder;
use dwell_core::{Error, ErrorKind, Result};
use std::time::Duration;

/// Upper limit of the time reserved for a hop, which is half of the shortest level.
const LONGEST_HOP: Duration = Duration::from_secs(1);

/// Settings of the delay topics and of the relay.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySettings {
    /// Name of the relay's groups: the group that reads a delay topic is `{group}-{delay topic}`.
    pub group: String,
    /// Prefix of the names of delay topics.
    pub prefix: String,
    /// The levels of the ladder.
    pub ladder: Ladder,
    /// How long all relays may be down without loss of a record. Delay topics must keep their
    /// records this much longer than their level.
    pub outage: Duration,
    /// How long a target must be absent before its records are parked.
    pub absent_for: Duration,
    /// Pattern of allowed targets, where `*` stands for any text; all targets if absent.
    pub allow_targets: Option<String>,
    /// Number of records that a relay may have in memory, and their bytes including overhead. This
    /// covers the records that wait for their last stretch and those in flight, of all levels
    /// together. Records beyond the limit may be late: set it to at least the number of records
    /// that become due within the shortest level.
    pub read_ahead: (usize, usize),
    /// Transaction timeout; transactions are not used if absent. A record is then forwarded in the
    /// same transaction as its offset, so that readers of committed records never see it twice. If
    /// a relay is killed, its transaction may block such readers for this long.
    pub transactions: Option<Duration>,
}

impl Default for RelaySettings {
    /// Levels from `delay-5s` on, for relays that may be down for a week.
    fn default() -> Self {
        Self {
            group: "dwell".to_owned(),
            prefix: "delay-".to_owned(),
            ladder: Ladder::default(),
            outage: Duration::from_secs(7 * 24 * 3600),
            absent_for: Duration::from_secs(30),
            allow_targets: None,
            read_ahead: (100_000, 64 << 20),
            transactions: None,
        }
    }
}

impl RelaySettings {
    /// Returns the topic of a level.
    pub(crate) fn level_topic(&self, level: Duration) -> String {
        format!("{}{}", self.prefix, Ladder::name(level))
    }

    /// Returns the group that reads a delay topic.
    pub(crate) fn group_of(&self, topic: &str) -> String {
        format!("{}-{topic}", self.group)
    }

    /// Returns the topic of the last stretch.
    pub(crate) fn due_topic(&self) -> String {
        format!("{}due", self.prefix)
    }

    /// Returns the topic of records that can never be forwarded.
    pub(crate) fn parking_topic(&self) -> String {
        format!("{}parked", self.prefix)
    }

    /// Returns the topic for a record that has to wait this long from its append on. It never waits
    /// longer there.
    pub(crate) fn shelf(&self, remaining: Duration) -> String {
        self.ladder.fitting(remaining).map_or_else(|| self.due_topic(), |level| self.level_topic(level))
    }

    /// Returns the topic for a record with a given due time, of which it is unknown when it will be
    /// appended.
    pub(crate) fn shelf_until(&self, remaining: Duration) -> String {
        self.shelf(remaining.saturating_sub(self.hop()))
    }

    /// Returns whether this is the last stretch.
    pub(crate) fn is_last_stretch(&self, remaining: Duration) -> bool {
        self.ladder.fitting(remaining.saturating_sub(self.hop())).is_none()
    }

    /// Returns the time reserved for a hop from one topic to the next, at a busy broker. A level
    /// that would leave less time is not chosen, because a record that is appended a moment after
    /// the choice would be late. A record that has less time left when it leaves a level waits in
    /// memory.
    pub(crate) fn hop(&self) -> Duration {
        (self.ladder.levels()[0] / 2).min(LONGEST_HOP)
    }

    /// Returns whether the relay may forward to this topic. Delay topics and internal topics of
    /// Kafka are not allowed.
    pub(crate) fn allows(&self, target: &str) -> bool {
        // The prefix settles most cases. This is called for every record.
        let own = target.starts_with(&self.prefix)
            && (target == self.due_topic()
                || target == self.parking_topic()
                || self.ladder.levels().iter().any(|level| target == self.level_topic(*level)));
        let allowed = self.allow_targets.as_deref().is_none_or(|pattern| matches(pattern, target));
        !own && !target.starts_with("__") && target != crate::catalogue::TOPIC && allowed
    }

    pub(crate) fn check(&self) -> Result<()> {
        for (name, text) in [("prefix", &self.prefix), ("group", &self.group)] {
            let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
            if text.is_empty() || text.len() > 100 || !text.chars().all(fits) {
                let text = format!(
                    "the setting `{name}` of the delay topics must have 1 to 100 letters, digits, `_`, `.` or `-`"
                );
                return Err(Error::new(ErrorKind::Config, text));
            }
        }
        if self.read_ahead.0 == 0 || self.read_ahead.1 == 0 {
            let text = "`read_ahead` is 0, so no record could be forwarded: set at least 1";
            return Err(Error::new(ErrorKind::Config, text));
        }
        if self.transactions.is_some_and(|timeout| timeout < Duration::from_secs(1)) {
            let text = "`transactions` is the transaction timeout, and is below 1s: set `10s`, for example";
            return Err(Error::new(ErrorKind::Config, text));
        }
        Ok(())
    }
}

/// Returns whether a pattern, in which `*` stands for any text, matches the whole text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|left| {
            left.char_indices().map(|(at, _)| at).chain([left.len()]).any(|at| matches(rest, &left[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_selects_the_largest_level_that_fits() {
        let settings = RelaySettings::default();
        let shelf = |millis| settings.shelf(Duration::from_millis(millis));
        assert_eq!(
            [1, 4_999, 5_000, 39_999, 40_000].map(shelf),
            ["delay-due", "delay-due", "delay-5s", "delay-20s", "delay-40s"]
        );
        assert_eq!(settings.shelf(Duration::MAX), "delay-432000s");
    }

    #[test]
    fn a_due_time_leaves_room_for_the_hop() {
        let mut settings = RelaySettings::default();
        let shelf = |millis| settings.shelf_until(Duration::from_millis(millis));
        assert_eq!(
            [500, 5_999, 6_000, 10_999, 11_000].map(shelf),
            ["delay-due", "delay-due", "delay-5s", "delay-5s", "delay-10s"]
        );
        settings.ladder = Ladder::parse("1s,2s").unwrap();
        assert_eq!(settings.hop(), Duration::from_millis(500));
    }

    #[test]
    fn targets_are_allowed_topics_except_internal_ones() {
        let mut settings = RelaySettings::default();
        assert!(settings.allows("orders") && settings.allows("dwell.retry.orders.mail"));
        for own in ["delay-5s", "delay-due", "delay-parked", "__consumer_offsets", "dwell.catalogue"] {
            assert!(!settings.allows(own), "{own}");
        }
        settings.allow_targets = Some("shop.*.done".into());
        assert!(settings.allows("shop.orders.done") && settings.allows("shop..done"));
        assert!(!settings.allows("shop.orders") && !settings.allows("orders.done"));
    }
}
