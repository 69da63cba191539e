//! Rules for the names of topics, subscriptions and messages. They are the same on every transport,
//! so that a change of the transport renames nothing.

use crate::{Error, ErrorKind, Result, quote::quote};

struct Rule {
    what: &'static str,
    punctuation: &'static str,
    longest: usize,
    /// Whether each byte is allowed.
    fits: [bool; 256],
}

static TOPIC: Rule = Rule::new("topic", "_.-", 120);
static SUBSCRIPTION: Rule = Rule::new("subscription", "_.-", 120);
static ID: Rule = Rule::new("message id", "_:-", 128);

/// Prefix of the topics for jobs. The rest of the name is the type of the job.
pub const JOB_TOPIC: &str = "job.";
/// Prefix of Dwell's own topics.
const OWN_TOPIC: &str = "dwell.";
/// Prefixes that users must not use.
const RESERVED_PREFIXES: [&str; 2] = [OWN_TOPIC, JOB_TOPIC];
/// Suffixes of dead-letter and invalid channels.
const RESERVED_SUFFIXES: [&str; 2] = [".dlq", ".invalid"];

/// Checks the name of a topic, which may be one of Dwell's own: `[A-Za-z0-9_.-]{1,120}`.
pub fn check_topic(name: &str) -> Result<()> {
    TOPIC.check(name)
}

/// Checks the name of a topic that a user sends to. In addition to the rule of [`check_topic`], the
/// reserved names `dwell.…`, `job.…`, `….dlq` and `….invalid` are refused.
///
/// ```
/// use dwell_core::check_user_topic;
///
/// assert!(check_user_topic("orders.placed").is_ok());
/// assert!(check_user_topic("orders.placed.dlq").is_err());
/// ```
pub fn check_user_topic(name: &str) -> Result<()> {
    check_topic(name)?;
    let rule = if let Some(prefix) = RESERVED_PREFIXES.into_iter().find(|prefix| name.starts_with(prefix)) {
        format!("names that start with `{prefix}` are")
    } else if let Some(suffix) = RESERVED_SUFFIXES.into_iter().find(|suffix| name.ends_with(suffix)) {
        format!("names that end in `{suffix}` are")
    } else {
        return Ok(());
    };
    Err(Error::new(
        ErrorKind::Invalid,
        format!("the topic {} is reserved: {rule} Dwell's own; choose another name", quote(name)),
    ))
}

/// Whether this is one of Dwell's own topics, such as those that hold messages for other brokers.
pub fn is_own_topic(name: &str) -> bool {
    name.starts_with(OWN_TOPIC)
}

/// Whether this topic is for jobs.
pub fn is_job_topic(name: &str) -> bool {
    name.starts_with(JOB_TOPIC)
}

/// Checks the name of a subscription: `[A-Za-z0-9_.-]{1,120}`.
pub fn check_subscription(name: &str) -> Result<()> {
    SUBSCRIPTION.check(name)
}

/// Checks the id of a message: `[A-Za-z0-9_:-]{1,128}`.
pub fn check_id(id: &str) -> Result<()> {
    ID.check(id)
}

impl Rule {
    const fn new(what: &'static str, punctuation: &'static str, longest: usize) -> Self {
        let mut fits = [false; 256];
        let mut byte = 0;
        while byte < fits.len() {
            fits[byte] = (byte as u8).is_ascii_alphanumeric();
            byte += 1;
        }
        let mut mark = 0;
        while mark < punctuation.len() {
            fits[punctuation.as_bytes()[mark] as usize] = true;
            mark += 1;
        }
        Self { what, punctuation, longest, fits }
    }

    fn fits(&self, byte: u8) -> bool {
        self.fits[usize::from(byte)]
    }

    fn check(&self, name: &str) -> Result<()> {
        let Self { what, punctuation, longest, .. } = self;
        // Has no branch per byte, because every message pays for two names.
        let all_fit = name.bytes().fold(true, |all, byte| all & self.fits(byte));
        if all_fit && !name.is_empty() && name.len() <= *longest {
            return Ok(());
        }
        // All allowed bytes are ASCII, so a byte that is not allowed starts a character.
        let stray = name.bytes().position(|byte| !self.fits(byte));
        let stray = stray.and_then(|at| name[at..].chars().next());
        let problem = if name.is_empty() {
            "is empty".to_owned()
        } else if let Some(stray) = stray {
            format!("contains {}", quote(stray.encode_utf8(&mut [0; 4])))
        } else {
            format!("has {} characters", name.len())
        };
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "the {what} {} {problem}; a {what} is 1 to {longest} of the characters \
                 A-Z a-z 0-9 and {punctuation}",
                quote(name)
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(result: Result<()>) -> String {
        let error = result.expect_err("should be refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    }

    #[test]
    fn letters_digits_and_allowed_punctuation_are_accepted() {
        for name in ["a", "Z", "0", "orders.placed", "a_b-c.9", "-", "..", &"x".repeat(120)] {
            check_topic(name).unwrap();
            check_user_topic(name).unwrap();
            check_subscription(name).unwrap();
        }
        for id in ["a", "reminder:42", "nightly:1763200800000", "A_b-C", &"x".repeat(128)] {
            check_id(id).unwrap();
        }
    }

    #[test]
    fn other_characters_are_refused_and_shown() {
        for (name, shown) in [
            ("or ders", "` `"),
            ("a/b", "`/`"),
            ("a:b", "`:`"),
            ("a*", "`*`"),
            ("größe", "`ö`"),
            ("a\0b", r"`\0`"),
            ("a\n", r"`\n`"),
            ("٣", "`٣`"),
        ] {
            for result in [check_topic(name), check_user_topic(name), check_subscription(name)] {
                let text = refusal(result);
                assert!(text.contains(&format!("contains {shown}")), "{text}");
                assert!(text.contains("1 to 120"), "{text}");
            }
        }
        for id in ["a.b", "a b", "a/b", "é", "a\r\nb"] {
            assert!(refusal(check_id(id)).contains("1 to 128"), "{id}");
        }
    }

    #[test]
    fn empty_and_too_long_names_are_refused() {
        for result in [check_topic(""), check_user_topic(""), check_subscription(""), check_id("")] {
            assert!(refusal(result).contains("is empty"));
        }
        assert!(refusal(check_topic(&"x".repeat(121))).contains("has 121 characters"));
        assert!(refusal(check_subscription(&"x".repeat(121))).contains("has 121 characters"));
        assert!(refusal(check_id(&"x".repeat(129))).contains("has 129 characters"));
    }

    #[test]
    fn reserved_topics_are_refused_for_users_only() {
        for (name, rule) in [
            ("dwell.forward", "start with `dwell.`"),
            ("dwell.", "start with `dwell.`"),
            ("job.resize", "start with `job.`"),
            ("orders.dlq", "end in `.dlq`"),
            (".dlq", "end in `.dlq`"),
            ("orders.invalid", "end in `.invalid`"),
            ("dwell.forward.dlq", "start with `dwell.`"),
        ] {
            check_topic(name).unwrap();
            check_subscription(name).unwrap();
            let text = refusal(check_user_topic(name));
            assert!(text.contains(rule) && text.contains(name), "{text}");
        }
        for name in ["dwell", "job", "dwelling.a", "jobs.a", "my.dwell.a", "orders.dlq.x", "dlq", "invalid"] {
            check_user_topic(name).unwrap();
        }
    }

    #[test]
    fn a_long_name_is_truncated_in_the_error() {
        let text = refusal(check_topic(&"x".repeat(10_000)));
        assert!(text.contains(&format!("`{}…`", "x".repeat(60))), "{text}");
        assert!(text.len() < 300, "{text}");
    }
}
