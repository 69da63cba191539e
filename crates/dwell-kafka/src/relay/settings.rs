//! What can be set about the delay topics.

use super::Ladder;
use dwell_core::{Error, ErrorKind, Result};
use std::time::Duration;

/// The most that is set aside for a hop: half of the shortest level, and no more than this.
const LONGEST_HOP: Duration = Duration::from_secs(1);

/// The delay topics, and who empties them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySettings {
    /// The group that reads a delay topic is `{group}-{delay topic}`.
    pub group: String,
    /// What the names of the delay topics begin with.
    pub prefix: String,
    /// The levels.
    pub ladder: Ladder,
    /// How long all relays may be away without a record being lost: delay topics must keep their records for that long
    /// beyond their level.
    pub outage: Duration,
    /// How long a target must be absent before what is for it is parked.
    pub absent_for: Duration,
    /// Targets that may be sent to, `*` standing for any text; all unless set.
    pub allow_targets: Option<String>,
    /// Records that a relay may have in memory, and their bytes, with what it takes to keep them: those that wait for their last
    /// stretch and those on their way, of all levels together. What is beyond may be late: so many as come while the
    /// shortest level passes should fit.
    pub read_ahead: (usize, usize),
    /// A record is sent on in one transaction with the offset that says so, so that whoever reads only what is committed
    /// never sees it twice. This is how long the transaction of a relay that was killed may hold up such readers.
    pub transactions: Option<Duration>,
}

impl Default for RelaySettings {
    /// `delay-5s` and so on, for a relay that may be away for a week.
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
    /// The topic of a level.
    pub(crate) fn level_topic(&self, level: Duration) -> String {
        format!("{}{}", self.prefix, Ladder::name(level))
    }

    /// The group that reads a delay topic.
    pub(crate) fn group_of(&self, topic: &str) -> String {
        format!("{}-{topic}", self.group)
    }

    /// The topic of the last stretch.
    pub(crate) fn due_topic(&self) -> String {
        format!("{}due", self.prefix)
    }

    /// The topic of what can never be sent on.
    pub(crate) fn parking_topic(&self) -> String {
        format!("{}parked", self.prefix)
    }

    /// Where a record goes that is to wait this long from the moment that it is appended: never longer.
    pub(crate) fn shelf(&self, remaining: Duration) -> String {
        self.ladder.fitting(remaining).map_or_else(|| self.due_topic(), |level| self.level_topic(level))
    }

    /// The same where a time is given, and it is not known how long it takes until it is appended.
    pub(crate) fn shelf_until(&self, remaining: Duration) -> String {
        self.shelf(remaining.saturating_sub(self.hop()))
    }

    /// Whether that is the topic of the last stretch.
    pub(crate) fn is_last_stretch(&self, remaining: Duration) -> bool {
        self.ladder.fitting(remaining.saturating_sub(self.hop())).is_none()
    }

    /// What a hop from one topic to the next may take, at a broker that has much to do. A level that leaves less than that
    /// is not chosen, since it would make late whatever is appended a moment after the choice; and what has less left when
    /// it leaves a level waits where it is.
    pub(crate) fn hop(&self) -> Duration {
        (self.ladder.levels()[0] / 2).min(LONGEST_HOP)
    }

    /// Whether a record may be sent there. Delay topics, and those of Kafka itself, are no targets.
    pub(crate) fn allows(&self, target: &str) -> bool {
        // Most targets are told by how they begin: this is asked of every record.
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
                let text =
                    format!("`{name}` of the delay topics must be 1 to 100 letters, digits, `_`, `.` or `-`");
                return Err(Error::new(ErrorKind::Config, text));
            }
        }
        if self.read_ahead.0 == 0 || self.read_ahead.1 == 0 {
            let text = "`read_ahead` is 0: nothing would ever be sent on";
            return Err(Error::new(ErrorKind::Config, text));
        }
        if self.transactions.is_some_and(|timeout| timeout < Duration::from_secs(1)) {
            let text = "`transactions` is how long one may take, and is below 1s: 10s is a good start";
            return Err(Error::new(ErrorKind::Config, text));
        }
        Ok(())
    }
}

/// Whether a pattern with `*` for any text matches all of `text`.
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
    fn what_waits_lies_in_the_largest_level_that_fits_and_in_due_below_the_first() {
        let settings = RelaySettings::default();
        let shelf = |millis| settings.shelf(Duration::from_millis(millis));
        assert_eq!(
            [1, 4_999, 5_000, 39_999, 40_000].map(shelf),
            ["delay-due", "delay-due", "delay-5s", "delay-20s", "delay-40s"]
        );
        assert_eq!(settings.shelf(Duration::MAX), "delay-432000s");
    }

    #[test]
    fn a_level_is_only_for_what_is_not_due_while_it_is_on_its_way_there() {
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
    fn a_target_is_any_topic_that_is_allowed_and_not_one_of_the_relays_own() {
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
