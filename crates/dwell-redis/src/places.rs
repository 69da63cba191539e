//! Topics and subscriptions, cached from the server. Every script receives the version of its
//! topics, and refuses an outdated one.

use crate::{buckets::Bucket, calls::Call, keys, link::Link};
use dwell_core::{Address, Error, ErrorKind, Result, Subscription, Text, is_job_topic, wire};
use redis::{Cmd, Value};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Version of the key layout, as documented. A topic with another layout is refused.
pub(crate) const LAYOUT: u32 = 2;

fn check_layout(topic: &Text, fields: &HashMap<String, String>) -> Result<()> {
    if !fields.contains_key("version") {
        // The topic does not exist.
        return Ok(());
    }
    let text = match fields.get("layout").map(|layout| layout.parse::<u32>()) {
        Some(Ok(LAYOUT)) => return Ok(()),
        Some(Ok(0..LAYOUT)) | None => format!(
            "topic `{topic}` was created by an earlier version of Dwell with another layout: drain it with that version and \
             delete its keys, or use another `prefix`"
        ),
        Some(_) => format!(
            "topic `{topic}` was created by a later version of Dwell with an unknown layout: use that version, or \
             another `prefix`"
        ),
    };
    Err(Error::new(ErrorKind::Conflict, text))
}

/// A topic as it is known, with everything that scripts need to know about it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) topic: Text,
    /// Topic that gives its slot the name.
    pub(crate) base: Text,
    /// Whether it contains dead letters or invalid messages.
    pub(crate) is_dead: bool,
    /// Version; zero if the topic does not exist.
    pub(crate) version: u64,
    /// Whether it keeps unclaimed messages.
    pub(crate) keeps: bool,
    /// Kept what nobody subscribed to at some time, so that it may hold messages without a
    /// subscription.
    pub(crate) has_kept: bool,
    /// Whether somebody said so, or it only came with a subscription.
    pub(crate) is_declared: bool,
    /// Subscription that has adopted the unclaimed messages, and also answers to the topic's own
    /// name.
    pub(crate) adopter: Option<Text>,
    /// Declared subscriptions.
    pub(crate) subscriptions: BTreeMap<Text, Subscription>,
    /// Whether its messages can be looked up, if that was declared.
    pub(crate) ledger: Option<bool>,
    /// Whether some of its pending messages are in buckets.
    is_spread: bool,
    /// Number of subscriptions that receive each message.
    feeds: usize,
    keys: Vec<String>,
    arguments: Vec<String>,
}

/// Settings of a subscription, as stored on the server.
#[derive(Serialize, Deserialize)]
struct Written {
    lease: u64,
    ordered: bool,
    dead_letter: Option<String>,
    invalid: Option<String>,
}

/// Returns a subscription as JSON.
pub(crate) fn written(of: &Subscription) -> String {
    let channel = |address: &Option<Address>| address.as_ref().map(Address::to_string);
    let settings = Written {
        lease: to_millis(of.lease),
        ordered: of.ordered,
        dead_letter: channel(&of.dead_letter),
        invalid: channel(&of.invalid),
    };
    serde_json::to_string(&settings).unwrap_or_default()
}

/// Returns a duration in milliseconds, rounded up.
pub(crate) fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(i64::MAX as u64)
}

fn read(topic: &Text, name: &str, json: &str) -> Option<Subscription> {
    let Written { lease, ordered, dead_letter, invalid } = serde_json::from_str(json).ok()?;
    let address = |text: String| match text.split_once('/') {
        Some((topic, name)) => Address::subscription(topic, name),
        None => Address::topic(text),
    };
    Some(Subscription {
        lease: Duration::from_millis(lease),
        ordered,
        dead_letter: dead_letter.map(address),
        invalid: invalid.map(address),
        ..Subscription::new(topic.clone(), name)
    })
}

impl Place {
    fn new(prefix: &str, topic: &Text, fields: HashMap<String, String>) -> Self {
        let (base, _) = keys::split(topic);
        let is = |name: &str| fields.get(name).is_some_and(|value| value == "1");
        let version = fields.get("version").and_then(|version| version.parse().ok()).unwrap_or(0);
        let subscriptions: BTreeMap<Text, Subscription> = fields
            .iter()
            .filter_map(|(field, json)| {
                let name = field.strip_prefix("subscription:")?;
                Some((name.into(), read(topic, name, json)?))
            })
            .collect();
        let mut place = Self {
            topic: topic.clone(),
            base: base.into(),
            is_dead: wire::is_dead_letter_topic(topic),
            version,
            keeps: is("keep"),
            has_kept: is("keep") || is("kept"),
            is_declared: is("declared"),
            adopter: fields.get("adopter").map(|name| Text::from(name.as_str())),
            subscriptions,
            ledger: fields.get("ledger").map(|value| value == "1"),
            is_spread: is("spread"),
            feeds: 0,
            keys: keys::of_topic(prefix, topic),
            arguments: vec![],
        };
        let names = place.feeds();
        place.feeds = names.len();
        place.arguments = vec![
            topic.to_string(),
            version.to_string(),
            place.adopter.as_deref().unwrap_or_default().to_owned(),
            u8::from(place.is_dead).to_string(),
            names.len().to_string(),
        ];
        for name in &names {
            place.keys.extend(keys::of_subscription(prefix, topic, name));
            place.arguments.push(name.to_string());
        }
        place
    }

    /// Returns a bucket, a slot that contains only pending messages of this topic.
    fn bucket(prefix: &str, of: &Self, name: &Text) -> Self {
        let arguments = [&*of.topic, "0", "", "2", "0"];
        Self {
            topic: of.topic.clone(),
            base: name.clone(),
            is_dead: false,
            version: 0,
            keeps: false,
            has_kept: false,
            is_declared: false,
            adopter: None,
            subscriptions: BTreeMap::new(),
            ledger: of.ledger,
            is_spread: false,
            feeds: 0,
            keys: keys::of_topic(prefix, name),
            arguments: arguments.map(str::to_owned).to_vec(),
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.version > 0
    }

    /// Returns the receivers of messages to the topic: its subscriptions, or else the default
    /// subscription that keeps unclaimed messages.
    pub(crate) fn feeds(&self) -> Vec<Text> {
        if self.subscriptions.is_empty() && self.keeps {
            return vec![self.topic.clone()];
        }
        self.subscriptions.keys().cloned().collect()
    }

    /// Returns the number of messages that can go to all of them within this limit.
    pub(crate) fn share(&self, most: usize) -> usize {
        most.div_ceil(self.feeds.max(1))
    }

    /// Whether there is a subscription with this name, or one that also answers to it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.feeds().iter().any(|feed| **feed == *name) || (*self.topic == *name && self.adopter.is_some())
    }

    /// Returns the error for a missing subscription.
    pub(crate) fn missing(&self, name: &str) -> Error {
        let text = format!("there is no subscription `{name}` of the topic `{}`: {MAKE_IT}", self.topic);
        Error::new(ErrorKind::NotFound, text)
    }
}

/// What to do about a missing topic or subscription.
pub(crate) const MAKE_IT: &str =
    "start a program that handles it, with `on_missing = \"create\"`, which is the default";

struct Known {
    place: Arc<Place>,
    /// Whether it is not known to be outdated.
    is_current: bool,
}

/// Cache of all requested topics.
#[derive(Default)]
pub(crate) struct Places(Mutex<HashMap<Text, Known>>);

impl Places {
    fn lock(&self) -> MutexGuard<'_, HashMap<Text, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a topic; `NotFound` if it does not exist.
    pub(crate) async fn get(&self, link: &Link, topic: &Text) -> Result<Arc<Place>> {
        if let Some(place) = self.known(topic) {
            return Ok(place);
        }
        if let Some((of, _)) = topic.split_once('#') {
            if Bucket::parse(topic).is_none() {
                return Err(Error::new(ErrorKind::NotFound, format!("there is no topic `{topic}`")));
            }
            // Buckets exist as long as their topic. They are not cached, because their number is
            // unlimited.
            let of = Box::pin(self.get(link, &of.into())).await?;
            return Ok(Arc::new(Place::bucket(&link.settings.prefix, &of, topic)));
        }
        let place = self.load(link, topic).await?;
        if place.is_there() {
            return Ok(place);
        }
        Err(self.missing(link, topic))
    }

    /// Returns the error for a missing topic.
    pub(crate) fn missing(&self, link: &Link, topic: &str) -> Error {
        let text = format!("there is no topic `{topic}` at {}: {MAKE_IT}", link.settings.place());
        Error::new(ErrorKind::NotFound, text)
    }

    /// Loads a topic, whether it exists or not.
    pub(crate) async fn load(&self, link: &Link, topic: &Text) -> Result<Arc<Place>> {
        let prefix = &link.settings.prefix;
        let key = &keys::of_topic(prefix, topic)[0];
        let fields = pairs(link.query(redis::cmd("HGETALL").arg(key)).await?);
        check_layout(topic, &fields)?;
        let place = Arc::new(Place::new(prefix, topic, fields));
        match place.is_there() {
            true => {
                let known = Known { place: place.clone(), is_current: true };
                self.lock().insert(topic.clone(), known);
            }
            false => self.forget(std::slice::from_ref(topic)),
        }
        Ok(place)
    }

    /// Whether some of a topic's pending messages are in buckets, as far as is known here. Scripts
    /// report when that has changed.
    pub(crate) fn is_spread(&self, topic: &Text) -> bool {
        self.known(topic).is_some_and(|place| place.is_spread)
    }

    /// Returns a topic if it is cached.
    pub(crate) fn known(&self, topic: &Text) -> Option<Arc<Place>> {
        self.lock().get(topic).filter(|known| known.is_current).map(|known| known.place.clone())
    }

    /// Returns a topic as it was when this process last loaded it, even if it has changed or
    /// vanished since.
    pub(crate) fn last_known(&self, topic: &Text) -> Option<Arc<Place>> {
        self.lock().get(topic).map(|known| known.place.clone())
    }

    #[cfg(test)]
    pub(crate) fn all_known(&self) -> Vec<Text> {
        let known = self.lock();
        let known = known.iter().filter(|(_, known)| known.is_current);
        let mut known: Vec<_> = known.map(|(topic, _)| topic.clone()).collect();
        known.retain(|topic| !wire::is_dead_letter_topic(topic));
        known.sort();
        known
    }

    /// Marks the cached data of these topics as outdated.
    pub(crate) fn forget(&self, topics: &[Text]) {
        let mut all = self.lock();
        for topic in topics {
            if let Some(known) = all.get_mut(topic) {
                known.is_current = false;
            }
        }
    }

    /// Everything that is known is outdated.
    pub(crate) fn forget_all(&self) {
        self.lock().values_mut().for_each(|known| known.is_current = false);
    }

    /// The names of all topics.
    pub(crate) async fn names(&self, link: &Link) -> Result<Vec<Text>> {
        let all = link.query(redis::cmd("SMEMBERS").arg(keys::topics(&link.settings.prefix))).await?;
        let mut names: Vec<Text> = list(all).into_iter().map(|name| text(&name).into()).collect();
        names.sort();
        Ok(names)
    }
}

/// Writes the common arguments of scripts: keys and settings of one slot and of some topics in it,
/// and the identity of a call that must not run twice.
pub(crate) fn write_context(
    link: &Link,
    calls: &str,
    call: Option<&Call>,
    places: &[Arc<Place>],
    command: &mut Cmd,
) {
    let settings = &link.settings;
    // The setting of the topic counts: a promoter with another setting in its URL would leave
    // records behind, or messages without any.
    let has_ledger = places.first().and_then(|place| place.ledger).unwrap_or(settings.ledger);
    let base = places.first().map_or("", |place| &place.base);
    // A repeated id is a duplicate of a job, which must exist in the ledger.
    let done = if is_job_topic(base) { settings.done.max(settings.ids) } else { settings.done };
    let mut slot = keys::of_slot(&settings.prefix, base);
    slot.push(keys::calls(&settings.prefix, base, calls));
    let count = slot.len() + places.iter().map(|place| place.keys.len()).sum::<usize>();
    command.arg(count).arg(&slot);
    places.iter().for_each(|place| _ = command.arg(&place.keys));
    command
        .arg("")
        .arg(u8::from(has_ledger))
        .arg(to_millis(settings.ids))
        .arg(to_millis(done))
        .arg(places.len());
    match call {
        Some(call) => command.arg(call.lane).arg(call.serial),
        None => command.arg("").arg(""),
    };
    places.iter().for_each(|place| _ = command.arg(&place.arguments));
}

/// Returns the elements of a list.
pub(crate) fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        Value::Map(pairs) => pairs.into_iter().flat_map(|(name, value)| [name, value]).collect(),
        _ => vec![],
    }
}

/// Returns the bytes of a text.
pub(crate) fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        Value::Int(number) => number.to_string().into_bytes(),
        Value::Okay => b"OK".to_vec(),
        _ => vec![],
    }
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}

pub(crate) fn number(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => text(other).parse().unwrap_or(0),
    }
}

fn pairs(value: Value) -> HashMap<String, String> {
    let mut items = list(value).into_iter();
    let mut pairs = HashMap::new();
    while let (Some(name), Some(value)) = (items.next(), items.next()) {
        pairs.insert(text(&name), text(&value));
    }
    pairs
}
