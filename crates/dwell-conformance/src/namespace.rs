//! Names for the topics of one case, so that all cases can run at once on one server.

use dwell_core::Text;
use std::{fmt, str::FromStr};

/// Prefix for the topics of one case in one run.
///
/// ```
/// use dwell_conformance::Namespace;
///
/// let namespace = Namespace::new("ack removes", "7f3a");
/// assert_eq!(&*namespace.topic("orders"), "ack-removes-7f3a.orders");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace(Text);

impl Namespace {
    /// Maximum length. Topics have at most 120 characters, and some brokers add more to the names
    /// of groups and queues.
    const LONGEST: usize = 40;

    /// Creates the namespace of a case in a run.
    pub fn new(case: &str, run: &str) -> Self {
        let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let case: String = case.chars().map(letter).take(Self::LONGEST).collect();
        Self(format!("{}-{run}", case.trim_end_matches('-')).into())
    }

    /// Returns the full name of the topic that the case calls `name`.
    pub fn topic(&self, name: &str) -> Text {
        format!("{self}.{name}").into()
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses the output of `Display`, in another process.
impl FromStr for Namespace {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.into()))
    }
}
