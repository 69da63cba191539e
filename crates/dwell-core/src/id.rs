//! Ids of messages, names of pending entries, and the source of new ids.

use crate::{Address, Attempts, Clock, Envelope, MessageFields, Random, Text, Timestamp, wire};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{
    cmp::Ordering,
    fmt::{self, Write},
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

/// Identifies a message. It is the same for every retry and copy. The caller chooses it, or it is a
/// UUIDv7. A message of another program without an id takes one from its position, so that a
/// redelivery has the same id.
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

/// Text of an id. Up to the length of a UUID it is stored inline, so that the id of most messages
/// needs no allocation.
#[derive(Clone)]
pub struct IdText(Repr);

/// Maximum length of an inline text. A UUID fits.
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
                str::from_utf8(&bytes[..usize::from(*length)]).expect("the bytes were copied from a string")
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

/// Name of a pending entry. It is not the id of its message: one message can wait at several
/// addresses at once.
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
    /// `{message}@{final destination}`, and after the first run `{message}@{final
    /// destination}#{handled}`. Two addresses never share a name, and a repeated settlement
    /// computes the same name.
    ///
    /// Two suffixes distinguish entries with the same count:
    ///
    /// * `~{losses}` after a worker lost the message. A crash is no run, so the count stays as it
    ///   is.
    /// * `+{held}` for an entry of a store that carries [`wire::HELD`], `+doubt{held}` if it may
    ///   have been sent.
    ///
    /// If another entry has this name already, a transport appends `&` and its own suffix: see
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

    /// Splits a name into message id and final destination. `None` if the text has no destination
    /// and is therefore not a name.
    ///
    /// A message of another program may have any id, even one that contains `@`. Destination and
    /// suffixes contain none, so the id ends at the last `@`.
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

    /// Whether the entry with this name goes to a dead-letter topic. It is then a dead letter,
    /// scheduled for a run of a dead-letter consumer.
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

/// Source of new message ids. In a simulation, the ids depend on the seed only.
///
/// ```
/// use dwell_core::{Ids, MessageId, Seams, VirtualClock};
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
///
/// /// Predictable ids for a test.
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
    /// Returns an id that was never returned before.
    fn next(&self) -> MessageId;

    /// Returns a new id for a message of this time. For callers that have just read the clock.
    fn next_at(&self, now: Timestamp) -> MessageId {
        let _ = now;
        self.next()
    }
}

/// UUIDs of version 7, ordered by time. Clock and random numbers are injected.
pub struct UuidIds {
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
}

impl UuidIds {
    /// Creates a source that uses this clock and these random numbers.
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

/// Hexadecimal digits of each byte.
static DIGITS: [[u8; 2]; 256] = {
    let (digits, mut pairs, mut byte) = (b"0123456789abcdef", [[0; 2]; 256], 0);
    while byte < pairs.len() {
        pairs[byte] = [digits[byte >> 4], digits[byte & 0xf]];
        byte += 1;
    }
    pairs
};

/// Formats a UUID with hyphens. Handwritten because every message without a chosen id pays for it.
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
    use std::{
        collections::BTreeSet,
        hash::{BuildHasher, RandomState},
        time::Duration,
    };

    #[test]
    fn ids_are_unique_uuids_v7_ordered_by_time() {
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
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 1000);
    }

    #[test]
    fn inline_and_shared_ids_behave_alike() {
        let texts: Vec<String> =
            [0, 1, 36, SHORT - 1, SHORT, SHORT + 1, 128].map(|length| "x".repeat(length)).into();
        for text in texts.iter().chain([&"größe".to_owned()]) {
            let id = MessageId::from(text);
            assert_eq!((&*id.0, &*Text::from(&id.0), id.to_string()), (&**text, &**text, text.clone()));
            assert_eq!(serde_json::to_string(&id).unwrap(), format!("{text:?}"));
            assert_eq!(serde_json::from_str::<MessageId>(&format!("{text:?}")).unwrap(), id);
        }
        let ids: Vec<_> = texts.iter().map(MessageId::from).collect();
        assert!(ids.is_sorted(), "ids are ordered as their texts");
    }

    #[test]
    fn an_id_formats_and_hashes_like_its_text() {
        let hasher = RandomState::new();
        for text in ["a".repeat(SHORT), "b".repeat(SHORT + 1)] {
            let id = MessageId::from(&text);
            assert_eq!(format!("{id:?}"), format!("MessageId({text:?})"));
            assert_eq!(hasher.hash_one(&id.0), hasher.hash_one(text.as_str()));
            assert_eq!(matches!(id.0.0, Repr::Short(..)), text.len() <= SHORT, "{text}");
        }
    }

    #[test]
    fn a_uuid_starts_with_its_time() {
        let ids = UuidIds::new(Arc::new(VirtualClock::new()), Arc::new(SeededRandom::new(1)));
        for (millis, begins) in [(0x0123_4567_89ab, "01234567-89ab-7"), (-1, "00000000-0000-7")] {
            let id = ids.next_at(Timestamp(millis));
            assert!(id.0.starts_with(begins), "{id}");
        }
        let parts: BTreeSet<_> = (0..100).map(|_| ids.next_at(Timestamp(0)).0[15..18].to_owned()).collect();
        assert!(parts.len() > 50, "all random bits are random: {parts:?}");
    }

    #[test]
    fn a_name_contains_id_destination_and_count() {
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
        assert_eq!(&*ScheduleId::of(&envelope).0, "a@orders/stock#2", "the name has the final destination");
        envelope.message.attempts = Attempts { handled: 0, failed: 1 };
        assert_eq!(&*ScheduleId::of(&envelope).0, "a@orders/stock#0", "a failure alone adds the count");
    }

    #[test]
    fn the_name_of_a_publish_contains_its_message_id() {
        let envelope = Envelope::new(Address::topic("orders"), Message::new("a", "t", ""));
        let name = ScheduleId::of(&envelope);
        assert_eq!(ScheduleId::of_publish("a", "orders"), name);
        assert_eq!(ScheduleId::published(&name.0, "orders"), Some("a"));
        for other in ["a@orders/mail", "a@orders#1", "a@orders&1", "a@reorders", "a", "orders"] {
            assert_eq!(ScheduleId::published(other, "orders"), None, "{other}");
        }
    }

    #[test]
    fn every_name_splits_into_id_and_destination() {
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
        assert_eq!(ScheduleId::split("a"), None, "a text without a destination");
    }

    #[test]
    fn dead_letter_entries_are_recognised_by_name() {
        for name in ["a@orders.dlq", "a@orders.dlq/repair#4", "a@orders.invalid/repair~1"] {
            assert!(ScheduleId::is_dead_letter(name), "{name}");
        }
        for name in ["a.dlq", "a.dlq@orders", "a@orders/mail.dlq", "a@orders.dlq@orders", "a@orders#1"] {
            assert!(!ScheduleId::is_dead_letter(name), "{name}");
        }
    }

    #[test]
    fn each_loss_at_the_same_count_has_its_own_name() {
        let mut envelope = Envelope::new(Address::subscription("orders", "mail"), Message::new("a", "t", ""));
        let mut names = BTreeSet::new();
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
    fn each_destination_behind_a_forwarder_has_its_own_name() {
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
    fn a_held_message_has_another_name_than_a_new_send() {
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
        assert!(envelope.message.headers.is_empty(), "the held header was removed");
    }
}
