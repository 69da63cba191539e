//! Names of topics and groups in the broker. They are documented, because people inspect them with
//! other tools.

use dwell_core::{Address, MessageId, Text};

/// Length of the longest topic name in Kafka.
const LONGEST: usize = 249;

/// Returns the group of a subscription.
pub(crate) fn group_name(topic: &str, subscription: &str) -> String {
    format!("{topic}.{subscription}")
}

/// Returns the retry topic of a subscription, which no other subscription reads. If the names are
/// so long that Kafka would refuse the topic, the end of the name is a hash of the whole.
pub(crate) fn retry_topic(group: &str) -> String {
    let name = format!("dwell.retry.{group}");
    if name.len() <= LONGEST {
        return name;
    }
    // Names are ASCII, so the slice ends at a character boundary.
    format!("{}-{:016x}", &name[..LONGEST - 17], hash(name.as_bytes()))
}

/// Returns the topic that messages for this address are written to.
pub(crate) fn topic_of(to: &Address) -> Text {
    match to {
        Address::Topic(topic) => topic.clone(),
        Address::Subscription { topic, name } => retry_topic(&group_name(topic, name)).into(),
    }
}

/// Returns the id of a message from another client, made of its position. It has the alphabet and
/// length of ids: `[A-Za-z0-9_:-]{1,128}`.
pub(crate) fn position_id(topic: &str, partition: i32, offset: u64) -> MessageId {
    const LONGEST: usize = 64;
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
    let name: String = topic.chars().take(LONGEST).map(allowed).collect();
    let rest =
        if topic.len() > LONGEST { format!("-{:016x}", hash(topic.as_bytes())) } else { String::new() };
    format!("{name}{rest}:{partition}:{offset}").into()
}

/// FNV-1a hash, which is the same in every process and version.
fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_core::check_id;

    #[test]
    fn names_that_are_too_long_are_shortened_and_stay_distinct() {
        assert_eq!(retry_topic(&group_name("orders", "mail")), "dwell.retry.orders.mail");
        let long =
            |end: &str| retry_topic(&group_name(&"t".repeat(120), &format!("{}{end}", "s".repeat(119))));
        assert_eq!(long("a").len(), LONGEST);
        assert_ne!(long("a"), long("b"));
    }

    #[test]
    fn a_position_is_a_valid_id_for_any_topic_name() {
        for topic in ["orders.placed", &"x.".repeat(120)] {
            check_id(&position_id(topic, 3, u64::MAX >> 16).0).unwrap();
        }
        assert_ne!(position_id("a.b", 0, 1), position_id("a.b", 0, 2));
    }
}
