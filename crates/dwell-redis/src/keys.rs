//! Names of keys. All keys of a topic, including its dead letters and invalid messages, are in one
//! hash slot.

/// Splits a topic into its base and the suffix that makes it a channel of another topic.
pub(crate) fn split(topic: &str) -> (&str, &str) {
    for end in [".dlq", ".invalid"] {
        if let Some(base) = topic.strip_suffix(end).filter(|base| !base.is_empty()) {
            return (base, end);
        }
    }
    (topic, "")
}

/// Returns the topics that share a slot with this one.
pub(crate) fn family(base: &str) -> [String; 3] {
    [base.to_owned(), format!("{base}.dlq"), format!("{base}.invalid")]
}

/// Returns the keys that all topics of a slot share, in the order that scripts expect. They are
/// followed by the calls of the link.
pub(crate) fn of_slot(prefix: &str, base: &str) -> Vec<String> {
    let names = ["sequence", "records", "places", "ids", "over", "ended", "counts"];
    names.iter().map(|name| format!("{prefix}:{{{base}}}:{name}")).collect()
}

/// Returns the keys of a topic, in the order that scripts expect.
pub(crate) fn of_topic(prefix: &str, topic: &str) -> Vec<String> {
    let (base, end) = split(topic);
    let names = ["topic", "waiting", "due", "wake", "known", "forget", "aliases", "incoming"];
    // The names of the slot's keys and of the topic's keys differ.
    names.iter().map(|name| format!("{prefix}:{{{base}}}{end}:{name}")).collect()
}

/// Returns the keys of a subscription, in the order that scripts expect.
pub(crate) fn of_subscription(prefix: &str, topic: &str, name: &str) -> Vec<String> {
    let (base, end) = split(topic);
    ["ready", "leases", "held"].iter().map(|what| format!("{prefix}:{{{base}}}{end}:{what}:{name}")).collect()
}

/// Returns the key of the last calls of one link in one slot, by lane: serial number and answer.
pub(crate) fn calls(prefix: &str, base: &str, link: &str) -> String {
    format!("{prefix}:{{{base}}}:calls:{link}")
}

/// Returns a key in the slot of another one, for the write that `WAIT` confirms.
pub(crate) fn mark(prefix: &str, key: &str) -> String {
    format!("{prefix}:{{{}}}:wait", tag(key))
}

/// Returns the register of the buckets of a topic.
pub(crate) fn buckets(prefix: &str, topic: &str) -> String {
    format!("{prefix}:{{{topic}}}:buckets")
}

/// Returns the key of the names of all topics.
pub(crate) fn topics(prefix: &str) -> String {
    format!("{prefix}:topics")
}

/// Returns the inbox key of a message in a subscription.
pub(crate) fn inbox(prefix: &str, subscription: &str, id: &str) -> String {
    format!("{prefix}:inbox:{{{subscription}:{id}}}")
}

/// Returns the tag of a key, which decides its slot: the text between the first braces.
fn tag(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// Returns the hash slot of a key: the CRC16 (XMODEM) of its tag.
pub(crate) fn slot(key: &str) -> u16 {
    let crc = tag(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 { shifted } else { shifted ^ 0x1021 }
        })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn slots_are_those_of_redis() {
        // The results of `CLUSTER KEYSLOT`.
        assert_eq!([slot("foo"), slot("dwell:{foo}:due"), slot("123456789")], [12182, 12182, 12739]);
    }

    #[test]
    fn a_topic_and_its_channels_share_a_slot_and_no_key() {
        let tag = |key: &str| key[key.find('{').unwrap()..=key.find('}').unwrap()].to_owned();
        let of = |topic: &str| [of_topic("dwell", topic), of_subscription("dwell", topic, "mail")].concat();
        let all = [of("orders"), of("orders.dlq"), of("orders.invalid"), of_slot("dwell", "orders")].concat();
        assert_eq!(
            all.iter().map(|key| tag(key)).collect::<BTreeSet<_>>(),
            BTreeSet::from(["{orders}".into()])
        );
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert_eq!(split("orders.dlq.invalid"), ("orders.dlq", ".invalid"));
        assert_eq!(split(".dlq"), (".dlq", ""));
    }
}
