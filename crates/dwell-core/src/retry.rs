//! Delays before retries, and their limit.

use crate::duration;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// Exponential backoff with jitter, and a limit.
///
/// ```
/// use dwell_core::RetryPolicy;
/// use std::time::Duration;
///
/// let policy = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
/// let delays: Vec<_> = (0..5).map(|n| policy.delay(n, 0.0).as_secs()).collect();
/// assert_eq!(delays, [5, 10, 20, 40, 60]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Maximum number of retries. A message runs at most `max_retries + 1` times, not counting
    /// deferrals.
    pub max_retries: u32,
    /// Delay before the first retry. It doubles with each further one.
    #[serde(with = "duration::serde_text")]
    pub base_delay: Duration,
    /// Maximum delay, including jitter.
    #[serde(with = "duration::serde_text")]
    pub max_delay: Duration,
    /// Fraction of the delay that is added or subtracted at random, from 0 to 1.
    pub jitter: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 5,
            base_delay: Duration::from_secs(5),
            max_delay: Duration::from_secs(60),
            jitter: 0.15,
        }
    }
}

impl RetryPolicy {
    /// Returns the delay from a failure to retry `n`, counted from zero. `random` is a number from
    /// -1 to 1. The result, including jitter, is at most `max_delay`. Nothing overflows, up to `n =
    /// u32::MAX`.
    pub fn delay(&self, n: u32, random: f64) -> Duration {
        let factor = 1u128.checked_shl(n).unwrap_or(u128::MAX);
        let nanos = self.base_delay.as_nanos().saturating_mul(factor).min(self.max_delay.as_nanos());
        let jittered = nanos as f64 * (1.0 + self.jitter.clamp(0.0, 1.0) * random.clamp(-1.0, 1.0));
        let nanos = (jittered as u128).min(self.max_delay.as_nanos());
        Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32)
    }

    /// Whether a message with this number of failures has used up its retries.
    pub fn is_exhausted(&self, failed: u32) -> bool {
        failed > self.max_retries
    }
}

/// Retry settings of one message type. A field that is absent falls back to the default policy.
///
/// ```
/// use dwell_core::{RetryOverride, RetryPolicy};
///
/// let charge = RetryOverride { max_retries: Some(20), ..RetryOverride::default() };
/// let policy = charge.over(&RetryPolicy::default());
/// assert_eq!((policy.max_retries, policy.jitter), (20, 0.15));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryOverride {
    /// See [`RetryPolicy::max_retries`].
    pub max_retries: Option<u32>,
    /// See [`RetryPolicy::base_delay`].
    #[serde(with = "duration::serde_text::option")]
    pub base_delay: Option<Duration>,
    /// See [`RetryPolicy::max_delay`].
    #[serde(with = "duration::serde_text::option")]
    pub max_delay: Option<Duration>,
    /// See [`RetryPolicy::jitter`].
    pub jitter: Option<f64>,
    /// Maximum duration of a run. Overrides that of the subscription.
    #[serde(with = "duration::serde_text::option")]
    pub handler_timeout: Option<Duration>,
}

impl RetryOverride {
    /// Returns `policy` with the fields of this override.
    pub fn over(&self, policy: &RetryPolicy) -> RetryPolicy {
        RetryPolicy {
            max_retries: self.max_retries.unwrap_or(policy.max_retries),
            base_delay: self.base_delay.unwrap_or(policy.base_delay),
            max_delay: self.max_delay.unwrap_or(policy.max_delay),
            jitter: self.jitter.unwrap_or(policy.jitter),
        }
    }
}

/// The default policy, and the overrides by full type name.
///
/// ```
/// use dwell_core::{RetryOverride, RetryPolicies};
///
/// let never = RetryOverride { max_retries: Some(0), ..RetryOverride::default() };
/// let policies = RetryPolicies { overrides: [("payments.charge".into(), never)].into(), ..RetryPolicies::default() };
/// assert_eq!(policies.of("payments.charge").max_retries, 0);
/// assert_eq!(policies.of("orders.placed").max_retries, 5);
/// assert!(policies.unknown(&["orders.placed"]).eq(["payments.charge"]), "not a handled type");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetryPolicies {
    /// Policy for all types.
    pub default: RetryPolicy,
    /// Overrides by full type name, so that two types with the same short name never collide.
    pub overrides: BTreeMap<String, RetryOverride>,
}

impl RetryPolicies {
    /// Returns the policy for messages of this type.
    pub fn of(&self, kind: &str) -> RetryPolicy {
        match self.overrides.get(kind) {
            Some(special) => special.over(&self.default),
            None => self.default,
        }
    }

    /// Returns the maximum duration of a run of this type, if it has an override.
    pub fn handler_timeout(&self, kind: &str) -> Option<Duration> {
        self.overrides.get(kind).and_then(|special| special.handler_timeout)
    }

    /// Returns the overrides for types that are not in `known`. They are probably misspelt, so a
    /// warning at the start is useful.
    pub fn unknown<'a>(&'a self, known: &'a [&str]) -> impl Iterator<Item = &'a str> {
        self.overrides.keys().map(String::as_str).filter(|kind| !known.contains(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_its_share_and_the_maximum() {
        let policy = RetryPolicy::default();
        for n in 0..10 {
            let plain = policy.delay(n, 0.0);
            for random in [-1.0, -0.3, 0.7, 1.0] {
                let delay = policy.delay(n, random);
                assert!(delay <= policy.max_delay, "{n} {random}: {delay:?}");
                let share = (delay.as_secs_f64() - plain.as_secs_f64()).abs() / plain.as_secs_f64();
                assert!(share <= 0.1501, "{n} {random}: {share}");
            }
        }
    }

    #[test]
    fn nothing_overflows_at_the_edges() {
        let policy = RetryPolicy {
            base_delay: Duration::MAX,
            max_delay: Duration::MAX,
            jitter: 1.0,
            max_retries: u32::MAX,
        };
        for n in [0, 1, 31, 32, 63, 64, 127, 128, u32::MAX] {
            assert!(policy.delay(n, 1.0) <= Duration::MAX);
            assert_eq!(RetryPolicy { base_delay: Duration::ZERO, ..policy }.delay(n, 1.0), Duration::ZERO);
        }
        assert_eq!(RetryPolicy::default().delay(u32::MAX, 0.0), Duration::from_secs(60));
        assert!(!policy.is_exhausted(u32::MAX));
    }

    #[test]
    fn n_retries_are_n_plus_one_runs() {
        let policy = RetryPolicy { max_retries: 2, ..RetryPolicy::default() };
        assert_eq!([1, 2, 3].map(|failed| policy.is_exhausted(failed)), [false, false, true]);
        assert!(RetryPolicy { max_retries: 0, ..policy }.is_exhausted(1));
    }

    #[test]
    fn an_override_falls_back_field_by_field() {
        let special = RetryOverride { base_delay: Some(Duration::from_secs(10)), ..RetryOverride::default() };
        let policies = RetryPolicies {
            default: RetryPolicy { max_retries: 7, ..RetryPolicy::default() },
            overrides: [("payments.charge".to_owned(), special)].into(),
        };
        let charge = policies.of("payments.charge");
        assert_eq!((charge.max_retries, charge.base_delay), (7, Duration::from_secs(10)));
        assert_eq!(policies.of("charge").base_delay, Duration::from_secs(5));
        assert_eq!(policies.unknown(&["charge"]).collect::<Vec<_>>(), ["payments.charge"]);
    }
}
