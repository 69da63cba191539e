//! Names of messages and of what waits, and the seam that makes new ones.

use crate::{Address, Attempts, Clock, Envelope, MessageFields, Random, Text, Timestamp, wire};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{
    cmp::Ordering,
    fmt::{self, Write},
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

/// Names a message. Stable over every retry and copy. The caller's own, or a UUIDv7; for a foreign message without
/// one, derived from its position, so that a redelivery has the same id.
///
/// ```
/// use dwell_core::MessageId;
///
/// let id = MessageId::from(format!("reminder-{}", 42));
/// assert_eq!((&*id.0, id.to_string()), ("reminder-42", "reminder-42".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(pub IdText);

/// The text of an id. As long as a UUID or shorter it is kept in place: most messages have one of their own, which costs
/// no allocation then.
#[derive(Clone)]
pub struct IdText(Repr);

/// As much as fits beside the length, a UUID among it.
const SHORT: usize = 38;

#[derive(Clone)]
enum Repr {
    Short(u8, [u8; SHORT]),
    Long(Text),
}

impl Deref for IdText {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            Repr::Short(length, bytes) => {
                str::from_utf8(&bytes[..usize::from(*length)]).expect("it was made from text")
            }
            Repr::Long(text) => text,
        }
    }
}

impl From<&str> for IdText {
    fn from(text: &str) -> Self {
        if text.len() > SHORT {
            return Self(Repr::Long(text.into()));
        }
        let mut bytes = [0; SHORT];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Self(Repr::Short(text.len() as u8, bytes))
    }
}

impl From<&IdText> for Text {
    fn from(id: &IdText) -> Self {
        match &id.0 {
            Repr::Short(..) => (**id).into(),
            Repr::Long(text) => text.clone(),
        }
    }
}

impl PartialEq for IdText {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for IdText {}

impl PartialOrd for IdText {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for IdText {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for IdText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for IdText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Serialize for IdText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for IdText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| text.as_str().into())
    }
}

/// Name of a pending entry. It is not the id of its message: one message can wait at several addresses at once.
///
/// ```
/// use dwell_core::{Address, Envelope, Message, ScheduleId};
///
/// let mail = Address::subscription("orders", "mail");
/// let name = ScheduleId::of(&Envelope::new(mail, Message::new("a", "orders.placed", "{}")));
/// assert_eq!(name.to_string(), "a@orders/mail");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScheduleId(pub Text);

impl ScheduleId {
    /// Returns the name under which `send`, `schedule` and `Move` store a pending envelope:
    /// `{message}@{final destination}`, and from the first run on `{message}@{final destination}#{handled}`. Two
    /// addresses never share a name, and a repeated settlement computes the same name again.
    ///
    /// Two suffixes keep entries of the same count apart:
    ///
    /// * `~{losses}` after a worker lost the message. A crash is no run, so the count stays as it is.
    /// * `+{held}` for an entry of a store that carries [`wire::HELD`], `+doubt{held}` if it may have been sent.
    ///
    /// If another entry has this name already, a transport appends `&` and a suffix of its own: see
    /// [`Scheduler::schedule`](crate::Scheduler::schedule).
    pub fn of(envelope: &Envelope) -> Self {
        let MessageFields { id, attempts, headers, .. } = &*envelope.message;
        let mut name = String::with_capacity(96);
        let mut add = |prefix: &str, text: &dyn fmt::Display| {
            write!(name, "{prefix}{text}").expect("a String accepts every text");
        };
        add("", id);
        add("@", &wire::final_destination(envelope));
        if *attempts != Attempts::default() {
            add("#", &attempts.handled);
        }
        if let Some(lost) = headers.get_text(wire::LOST_COUNT) {
            add("~", &lost);
        }
        if let Some(held) = headers.get_text(wire::HELD) {
            add("+", &held);
        }
        Self(name.into())
    }

    /// Returns the name of a message that was published to `topic` and has not run yet.
    pub fn of_publish(message: &str, topic: &str) -> Self {
        Self([message, "@", topic].concat().into())
    }

    /// Returns the message id if `name` is [`ScheduleId::of_publish`] for this topic.
    pub fn published<'a>(name: &'a str, topic: &str) -> Option<&'a str> {
        name.strip_suffix(topic)?.strip_suffix('@')
    }

    /// Splits a name into the id of its message and its final destination. `None` for a text without a destination,
    /// which is no name.
    ///
    /// A message of another program may have any id, also one that contains `@`. The destination and the suffixes
    /// contain none, so the last `@` is the one that ends the id.
    pub fn split(name: &str) -> Option<(&str, Address)> {
        let (message, rest) = name.rsplit_once('@')?;
        let end = rest.find(['#', '~', '+', '&']).unwrap_or(rest.len());
        Some((
            message,
            match rest[..end].split_once('/') {
                Some((topic, subscription)) => Address::subscription(topic, subscription),
                None => Address::topic(&rest[..end]),
            },
        ))
    }

    /// Whether the entry of this name goes to a dead-letter topic: it was given up before, and waits for a run of a
    /// consumer of dead letters.
    pub fn is_dead_letter(name: &str) -> bool {
        Self::split(name).is_some_and(|(_, to)| wire::is_dead_letter_topic(to.topic_name()))
    }

    /// Whether it is too late to cancel or reschedule the pending entry of this name:
    ///
    /// * a [dead letter](Self::is_dead_letter), or
    /// * a message that the forwarder may have sent already, see [`wire::is_in_doubt`].
    pub fn is_too_late(name: &str) -> bool {
        let is_in_doubt = || {
            let held = name.rsplit_once('@').and_then(|(_, rest)| rest.split_once('+'));
            held.is_some_and(|(_, held)| held.starts_with(wire::DOUBT))
        };
        Self::is_dead_letter(name) || is_in_doubt()
    }
}

macro_rules! text_id {
    ($name:ident) => {
        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }
        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.as_str().into())
            }
        }
        impl From<&String> for $name {
            fn from(text: &String) -> Self {
                Self(text.as_str().into())
            }
        }
        impl From<&Self> for $name {
            fn from(id: &Self) -> Self {
                id.clone()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
text_id!(MessageId);
text_id!(ScheduleId);

/// Makes new message ids. A seam: a simulation gives the same ids for the same seed.
///
/// ```
/// use dwell_core::{Ids, MessageId, Seams, VirtualClock};
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
///
/// /// Names that a test can know beforehand.
/// #[derive(Default)]
/// struct Counting(AtomicU64);
///
/// impl Ids for Counting {
///     fn next(&self) -> MessageId {
///         format!("m{}", self.0.fetch_add(1, Ordering::Relaxed)).into()
///     }
/// }
///
/// let seams = Seams { ids: Arc::new(Counting::default()), ..Seams::virtual_time(VirtualClock::new(), 1) };
/// assert_eq!([seams.ids.next(), seams.ids.next()], ["m0".into(), "m1".into()]);
/// ```
pub trait Ids: Send + Sync {
    /// An id that was never given before.
    fn next(&self) -> MessageId;

    /// The same for a message of this time, by whoever has just looked at the clock.
    fn next_at(&self, now: Timestamp) -> MessageId {
        let _ = now;
        self.next()
    }
}

/// UUIDs of version 7: ordered by time, from the injected clock and randomness.
pub struct UuidIds {
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
}

impl UuidIds {
    /// Ids from this clock and this randomness.
    pub fn new(clock: Arc<dyn Clock>, random: Arc<dyn Random>) -> Self {
        Self { clock, random }
    }
}

impl Ids for UuidIds {
    fn next(&self) -> MessageId {
        self.next_at(self.clock.now())
    }

    fn next_at(&self, now: Timestamp) -> MessageId {
        let millis = now.0.max(0) as u128 & 0xffff_ffff_ffff;
        let (high, low) = (u128::from(self.random.next() & 0xfff), u128::from(self.random.next() >> 2));
        let uuid = millis << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low;
        MessageId(hyphenated(uuid))
    }
}

/// The two digits of each byte.
static DIGITS: [[u8; 2]; 256] = {
    let (digits, mut pairs, mut byte) = (b"0123456789abcdef", [[0; 2]; 256], 0);
    while byte < pairs.len() {
        pairs[byte] = [digits[byte >> 4], digits[byte & 0xf]];
        byte += 1;
    }
    pairs
};

/// A UUID as people write it. By hand: every message pays for it.
fn hyphenated(uuid: u128) -> IdText {
    const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
    const LENGTH: usize = 36;
    let mut text = [b'-'; SHORT];
    for (place, byte) in PLACES.into_iter().zip(uuid.to_be_bytes()) {
        text[place..place + 2].copy_from_slice(&DIGITS[usize::from(byte)]);
    }
    IdText(Repr::Short(LENGTH as u8, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Due, Message, SeededRandom, VirtualClock};
    use std::time::Duration;

    #[test]
    fn ids_are_uuids_of_version_7_ordered_by_time_and_never_alike() {
        let clock = VirtualClock::new();
        let ids = UuidIds::new(Arc::new(clock.clone()), Arc::new(SeededRandom::new(1)));
        let first: Vec<_> = (0..1000).map(|_| ids.next()).collect();
        clock.step_wall(1);
        let later = ids.next();
        for id in &first {
            let bytes = id.0.as_bytes();
            assert_eq!(
                (bytes.len(), bytes[14], bytes[8], bytes[13], bytes[18], bytes[23]),
                (36, b'7', b'-', b'-', b'-', b'-')
            );
            assert!(b"89ab".contains(&bytes[19]), "{id}");
            assert!(*id < later);
        }
        assert_eq!(first.iter().collect::<std::collections::BTreeSet<_>>().len(), 1000);
    }

    #[test]
    fn an_id_reads_the_same_whether_it_is_kept_in_place_or_not() {
        let texts: Vec<String> =
            [0, 1, 36, SHORT - 1, SHORT, SHORT + 1, 128].map(|length| "x".repeat(length)).into();
        for text in texts.iter().chain([&"größe".to_owned()]) {
            let id = MessageId::from(text);
            assert_eq!((&*id.0, &*Text::from(&id.0), id.to_string()), (&**text, &**text, text.clone()));
            assert_eq!(serde_json::to_string(&id).unwrap(), format!("{text:?}"));
            assert_eq!(serde_json::from_str::<MessageId>(&format!("{text:?}")).unwrap(), id);
        }
        let ids: Vec<_> = texts.iter().map(MessageId::from).collect();
        assert!(ids.is_sorted(), "ordered as their texts are");
    }

    #[test]
    fn a_name_holds_the_message_its_final_destination_and_its_count() {
        let mut envelope = Envelope::new(Address::topic("orders"), Message::new("a", "t", ""))
            .due(Due::After(Duration::MAX));
        assert_eq!(&*ScheduleId::of(&envelope).0, "a@orders");
        envelope.to = Address::subscription("orders", "mail");
        assert_eq!(&*ScheduleId::of(&envelope).0, "a@orders/mail");
        envelope.message.attempts.handled = 2;
        assert_eq!(&*ScheduleId::of(&envelope).0, "a@orders/mail#2");
        envelope.to = Address::subscription("orders", "stock");
        assert_eq!(&*ScheduleId::of(&envelope).0, "a@orders/stock#2");
        wire::set_destination(&mut envelope.message.headers, &Address::subscription("orders", "stock"));
        envelope.to = Address::subscription("dwell.forward", "log");
        assert_eq!(&*ScheduleId::of(&envelope).0, "a@orders/stock#2", "the final destination counts");
        envelope.message.attempts = Attempts { handled: 0, failed: 1 };
        assert_eq!(&*ScheduleId::of(&envelope).0, "a@orders/stock#0", "either count");
    }

    #[test]
    fn the_name_of_a_publish_tells_its_message() {
        let envelope = Envelope::new(Address::topic("orders"), Message::new("a", "t", ""));
        let name = ScheduleId::of(&envelope);
        assert_eq!(ScheduleId::of_publish("a", "orders"), name);
        assert_eq!(ScheduleId::published(&name.0, "orders"), Some("a"));
        for other in ["a@orders/mail", "a@orders#1", "a@orders&1", "a@reorders", "a", "orders"] {
            assert_eq!(ScheduleId::published(other, "orders"), None, "{other}");
        }
    }

    #[test]
    fn every_name_tells_its_message_and_its_destination() {
        let (orders, mail) = (Address::topic("orders"), Address::subscription("orders", "mail"));
        for id in ["a", "a@b", "a@orders#3", "x&y", "@", "a@"] {
            for (to, suffix) in
                [(&orders, ""), (&orders, "#0"), (&mail, ""), (&mail, "#1~2+3-at:4&5"), (&mail, "&6")]
            {
                let name = format!("{id}@{to}{suffix}");
                assert_eq!(ScheduleId::split(&name), Some((id, to.clone())), "{name}");
            }
            let mut envelope = Envelope::new(mail.clone(), Message::new(id, "t", ""));
            envelope.message.attempts.handled = 1;
            envelope.message.headers.set(wire::HELD, "7");
            assert_eq!(ScheduleId::split(&ScheduleId::of(&envelope).0), Some((id, mail.clone())), "{id}");
            assert_eq!(ScheduleId::published(&ScheduleId::of_publish(id, "orders").0, "orders"), Some(id));
        }
        assert_eq!(ScheduleId::split("a"), None, "no name");
    }

    #[test]
    fn an_entry_for_a_dead_letter_topic_is_known_by_its_name() {
        for name in ["a@orders.dlq", "a@orders.dlq/repair#4", "a@orders.invalid/repair~1"] {
            assert!(ScheduleId::is_dead_letter(name), "{name}");
        }
        for name in ["a.dlq", "a.dlq@orders", "a@orders/mail.dlq", "a@orders.dlq@orders", "a@orders#1"] {
            assert!(!ScheduleId::is_dead_letter(name), "{name}");
        }
    }

    #[test]
    fn each_loss_at_the_same_count_of_runs_has_its_own_name() {
        let mut envelope = Envelope::new(Address::subscription("orders", "mail"), Message::new("a", "t", ""));
        let mut names = std::collections::BTreeSet::new();
        for (handled, count) in [(0, ""), (1, "#1")] {
            envelope.message.attempts.handled = handled;
            envelope.message.headers.take(wire::LOST_COUNT);
            for lost in ["1", "2"] {
                envelope.message.headers.set(wire::LOST_COUNT, lost);
                let name = ScheduleId::of(&envelope);
                assert_eq!(&*name.0, format!("a@orders/mail{count}~{lost}"));
                assert!(names.insert(name));
            }
        }
    }

    #[test]
    fn one_id_at_several_addresses_has_several_names_behind_a_forwarder() {
        let name = |to: Address| {
            let mut envelope =
                Envelope::new(Address::subscription("dwell.forward", "log"), Message::new("a", "t", ""));
            wire::set_destination(&mut envelope.message.headers, &to);
            ScheduleId::of(&envelope).to_string()
        };
        assert_eq!(name(Address::topic("orders")), "a@orders");
        assert_eq!(name(Address::topic("invoices")), "a@invoices");
        assert_eq!(name(Address::subscription("orders", "mail")), "a@orders/mail");
    }

    #[test]
    fn a_held_message_never_takes_the_name_of_a_new_send() {
        let mut envelope =
            Envelope::new(Address::subscription("dwell.forward", "log"), Message::new("a", "t", ""));
        wire::set_destination(&mut envelope.message.headers, &Address::topic("orders"));
        envelope.message.headers.set(wire::HELD, "7");
        assert_eq!(&*ScheduleId::of(&envelope).0, "a@orders+7");
        assert!(!wire::is_in_doubt(&envelope.message.headers) && !ScheduleId::is_too_late("a@orders+7"));
        envelope.message.headers.set(wire::HELD, "doubt7");
        let name = ScheduleId::of(&envelope);
        assert_eq!(&*name.0, "a@orders+doubt7");
        assert!(wire::is_in_doubt(&envelope.message.headers) && ScheduleId::is_too_late(&name.0));
        assert!(ScheduleId::is_too_late("a@orders/mail#1~2+doubt7&3"), "a free name");
        assert!(!ScheduleId::is_too_late("+doubt7@orders"), "that is an id");
        assert_eq!(wire::take_destination(&mut envelope.message.headers), Some(Address::topic("orders")));
        assert!(envelope.message.headers.is_empty(), "the hold leaves no trace");
    }
}
