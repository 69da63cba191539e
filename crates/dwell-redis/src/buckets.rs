//! A distributed backlog. Pending messages are distributed over shards by id, so that messages due
//! at one instant are on all servers; and within a shard over buckets by time, so that no key grows
//! without bound and an old bucket is removed as a whole. Each bucket has its own hash slot.
//!
//! * **No bucket is lost.** The slot of a topic contains the register of its buckets. A bucket is
//!   registered before anything is stored in it, and removed from the register before its last
//!   check. If it is not empty then, it is registered again.
//! * **Never early.** The server's clock decides which messages of a bucket are due, to the
//!   millisecond. The time in a bucket's name only determines when scanning begins, early enough
//!   for clocks that differ.
//! * **Once.** Due messages are copied to their topic, confirmed, and only then removed. The topic
//!   recognises messages that have arrived before.

use crate::{
    accept::WEIGHT,
    keys,
    places::{bytes, list, number, text, to_millis},
    script::{ARRIVE, BUCKETS, CLOSE, DEPART, DUE, REGISTER},
    settings::RedisSettings,
    store::Store,
    waiter::{self, Waiter},
};
use dwell_core::{Due, Envelope, Error, ErrorKind, Result, Text, Timestamp, wire};
use redis::Value;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::task::JoinHandle;

/// Number of messages that are moved at a time, to all subscriptions together.
const CHUNK: usize = 200;

/// Pause after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// How long before and after its time a bucket is scanned. Clocks may differ by this duration. For
/// larger differences the register is updated.
const AHEAD: Duration = Duration::from_secs(600);

/// How long a registered bucket is not registered again.
const ENTERED: Duration = Duration::from_secs(300);

/// A bucket: `topic#shard@start`, with its start in milliseconds. No topic has such a name.
pub(crate) struct Bucket<'a> {
    pub(crate) topic: &'a str,
    /// Entry in the register: `shard@start`.
    entry: &'a str,
    start: i64,
}

impl<'a> Bucket<'a> {
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let (topic, entry) = name.split_once('#')?;
        let (shard, start) = entry.split_once('@')?;
        let (_, start): (u16, i64) = (shard.parse().ok()?, start.parse().ok()?);
        Some(Self { topic, entry, start })
    }

    /// Latest due time of messages that were stored by a clock equal to the server's.
    fn end(&self, settings: &RedisSettings) -> i64 {
        self.start.saturating_add(width(settings))
    }
}

fn width(settings: &RedisSettings) -> i64 {
    i64::try_from(to_millis(settings.bucket)).unwrap_or(i64::MAX).max(1)
}

/// Returns where a message is stored: in its topic's slot, or in a bucket of its shard if it is
/// pending for all subscriptions of a distributed topic. An id that a sender chose is looked up in
/// one place only, so such a message stays in the topic's slot.
pub(crate) fn room(envelope: &Envelope, settings: &RedisSettings, now: Timestamp) -> Text {
    let topic = envelope.to.topic_name();
    let is_plain = envelope.once.is_none() && envelope.to.subscription_name().is_none();
    if settings.shards == 0 || envelope.due == Due::NOW || !is_plain || wire::is_dead_letter_topic(topic) {
        return topic.clone();
    }
    let due = match envelope.due {
        Due::At(due) => due.max(now),
        Due::After(delay) => now.after(delay),
    };
    let hash = envelope.message.id.0.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let start = due.0 - due.0.rem_euclid(width(settings));
    format!("{topic}#{}@{start}", hash % u64::from(settings.shards)).into()
}

/// Running tasks by name. A task that ended early is started again.
#[derive(Default)]
struct Tasks(HashMap<Text, JoinHandle<()>>);

impl Tasks {
    fn keep<F: Future<Output = ()> + Send + 'static>(&mut self, of: &Text, work: impl FnOnce() -> F) {
        if self.0.get(of).is_none_or(JoinHandle::is_finished) {
            self.0.insert(of.clone(), tokio::spawn(work()));
        }
    }

    fn forget_those_that_ended(&mut self) {
        self.0.retain(|_, task| !task.is_finished());
    }
}

/// Buckets as one connection knows them.
#[derive(Default)]
pub(crate) struct Buckets {
    /// Topics whose buckets this connection scans.
    watched: Mutex<Tasks>,
    /// Registered buckets: time of the registration, and version of their topic.
    entered: Mutex<HashMap<Text, (Duration, u64)>>,
}

/// Registers a bucket before anything is stored in it. A topic that was deleted and created again
/// has lost its register, but also has another version.
pub(crate) async fn enter(store: &Store, room: &Text) -> Result<()> {
    let Some(bucket) = Bucket::parse(room) else { return Ok(()) };
    let settings = &keys::of_topic(&store.link.settings.prefix, bucket.topic)[0];
    let version = store.link.query(redis::cmd("HGET").arg(settings).arg("version")).await?;
    let version = match u64::try_from(number(&version)).unwrap_or(0) {
        0 => {
            // The topic has vanished: the cached data is outdated.
            let topic = Text::from(bucket.topic);
            store.places.forget(std::slice::from_ref(&topic));
            store.place(&topic).await?.version
        }
        version => version,
    };
    let now = store.seams.clock.elapsed();
    let is_recent = |since: Duration| now.saturating_sub(since) < ENTERED;
    let known = |entered: &HashMap<Text, (Duration, u64)>| {
        entered.get(room).is_some_and(|(since, at)| is_recent(*since) && *at == version)
    };
    if known(&store.buckets.entered.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(());
    }
    register(store, &bucket, bucket.start).await?;
    let mut entered = store.buckets.entered.lock().unwrap_or_else(PoisonError::into_inner);
    entered.retain(|_, (since, _)| is_recent(*since));
    entered.insert(room.clone(), (now, version));
    Ok(())
}

/// Updates the register if the server's due times differ from the time of the bucket. Otherwise the
/// bucket would be scanned too late, or may already be removed from the register.
pub(crate) async fn correct(store: &Store, room: &Text, dues: impl Iterator<Item = Timestamp>) -> Result<()> {
    let Some(bucket) = Bucket::parse(room) else { return Ok(()) };
    let end = bucket.end(&store.link.settings);
    match dues.filter(|due| due.0 < bucket.start || due.0 >= end).min() {
        Some(due) => register(store, &bucket, due.0.min(bucket.start)).await,
        None => Ok(()),
    }
}

/// Registers that a bucket may contain due messages from now on.
pub(crate) async fn look_from_now_on(store: &Store, room: &str) -> Result<()> {
    match Bucket::parse(room) {
        Some(bucket) => register(store, &bucket, 0).await,
        None => Ok(()),
    }
}

async fn register(store: &Store, bucket: &Bucket<'_>, from: i64) -> Result<()> {
    let prefix = &store.link.settings.prefix;
    let of_topic = keys::of_topic(prefix, bucket.topic);
    let keys = [&keys::buckets(prefix, bucket.topic), &of_topic[3], &of_topic[0]];
    let from = from.clamp(0, (1 << 53) - 1);
    let entered = store.link.run(&REGISTER, |command| {
        command.arg(3).arg(&keys).arg(bucket.entry).arg(from);
    });
    if text(&entered.await?) == "none" {
        // It has vanished: the cached data is outdated.
        let topic = Text::from(bucket.topic);
        store.places.forget(std::slice::from_ref(&topic));
        store.place(&topic).await?;
        let text = format!("the topic `{topic}` vanished and was provisioned again: try again");
        return Err(Error::new(ErrorKind::Unavailable, text));
    }
    let score = redis::cmd("ZSCORE").arg(keys[0]).arg(bucket.entry).clone();
    store.confirm(keys[0], &score, |score| score != Value::Nil).await
}

/// Returns the names of all buckets of a topic.
pub(crate) async fn all(store: &Store, topic: &str) -> Result<Vec<Text>> {
    let key = keys::buckets(&store.link.settings.prefix, topic);
    let entries = store.link.query(redis::cmd("ZRANGE").arg(key).arg(0).arg(-1)).await?;
    Ok(list(entries).iter().map(|entry| format!("{topic}#{}", text(entry)).into()).collect())
}

/// Promotes the messages in the buckets of a topic on time, as long as this connection is open,
/// even if only other programs use buckets.
pub(crate) fn watch(store: &Arc<Store>, topic: &Text) {
    let is_ours = store.link.settings.shards > 0;
    if (!is_ours && !store.places.is_spread(topic)) || wire::is_dead_letter_topic(topic) {
        return;
    }
    let mut watched = store.buckets.watched.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_ours && !watched.0.contains_key(topic) {
        tracing::warn!(
            %topic,
            "other programs distribute the pending messages of this topic (`shards`), but this one does not; set `shards` in its URL as well"
        );
    }
    watched.keep(topic, || watch_topic(Arc::downgrade(store), topic.clone()));
}

/// Runs one task for each bucket whose time has come.
async fn watch_topic(store: Weak<Store>, topic: Text) {
    let mut waiter = None;
    let mut running = Tasks::default();
    while let Some(store) = store.upgrade().filter(|store| store.open().is_ok()) {
        let waiter = waiter.get_or_insert_with(|| Waiter::new(&store));
        let (open, wait, signal) = match look(&store, &topic).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, %topic, "scanning the buckets of a topic failed; retrying");
                store.seams.clock.sleep(PAUSE).await;
                continue;
            }
        };
        running.forget_those_that_ended();
        for bucket in &open {
            running.keep(bucket, || bring(Arc::downgrade(&store), topic.clone(), bucket.clone()));
        }
        let signals = vec![waiter::wake_of(&store, &topic, signal)];
        waiter.wait(&store, &signals, wait).await;
    }
}

/// Returns the buckets whose time has come, the time until the next one, and the last signal.
async fn look(store: &Store, topic: &Text) -> Result<(Vec<Text>, Duration, String)> {
    let prefix = &store.link.settings.prefix;
    let keys = [keys::buckets(prefix, topic), keys::of_topic(prefix, topic).swap_remove(3)];
    let answer = store.link.run(&BUCKETS, |command| {
        command.arg(2).arg(&keys).arg(to_millis(AHEAD));
    });
    let mut answer = list(answer.await?).into_iter();
    let open = answer.next().map(list).unwrap_or_default();
    let open = open.iter().map(|entry| format!("{topic}#{}", text(entry)).into()).collect();
    let wait = answer.next().map_or(-1, |wait| number(&wait));
    let wait = u64::try_from(wait).map_or(Duration::MAX, Duration::from_millis);
    Ok((open, wait, answer.next().map(|signal| text(&signal)).unwrap_or_default()))
}

/// Moves the due messages of a bucket to its topic, until the bucket is empty and its time is over.
async fn bring(store: Weak<Store>, topic: Text, from: Text) {
    let mut waiter = None;
    while let Some(store) = store.upgrade().filter(|store| store.open().is_ok()) {
        let waiter = waiter.get_or_insert_with(|| Waiter::new(&store));
        let looked = match bring_some(&store, &topic, &from).await {
            Ok(Some((None, signal))) => match close(&store, &from).await {
                Ok(true) => return,
                Ok(false) => Ok(Some((Duration::MAX, signal))),
                Err(error) => Err(error),
            },
            Ok(Some((Some(wait), signal))) => Ok(Some((wait, signal))),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match looked {
            Ok(None) => {}
            Ok(Some((wait, signal))) => {
                let signals = vec![waiter::wake_of(&store, &from, signal)];
                waiter.wait(&store, &signals, wait).await;
            }
            Err(error) => {
                tracing::warn!(%error, bucket = %from, "promotion from a bucket failed; retrying");
                store.seams.clock.sleep(PAUSE).await;
            }
        }
    }
}

/// Name, due time, generation and item of a message in a bucket.
type Waiting = [Vec<u8>; 4];

/// Moves some messages. If none is due, returns the time until the next one, if there is one, and
/// the last signal.
async fn bring_some(store: &Store, topic: &Text, from: &Text) -> Result<Option<(Option<Duration>, String)>> {
    let bucket = std::slice::from_ref(from);
    let place = store.place(topic).await?;
    let answer = store.run(&DUE, bucket, |_, command| {
        command.arg(place.share(CHUNK)).arg(place.share(WEIGHT));
    });
    let answer = answer.await?;
    let mut answer = answer.into_iter();
    let due = answer.next().map(list).unwrap_or_default().into_iter();
    let due: Vec<Waiting> = due
        .filter_map(|parts| list(parts).into_iter().map(bytes).collect::<Vec<_>>().try_into().ok())
        .collect();
    if due.is_empty() {
        let wait = answer.next().map_or(-1, |wait| number(&wait));
        let wait = u64::try_from(wait).ok().map(Duration::from_millis);
        return Ok(Some((wait, answer.next().map(|signal| text(&signal)).unwrap_or_default())));
    }
    store
        .run(&ARRIVE, std::slice::from_ref(topic), |_, command| {
            command.arg(&**from);
            due.iter().flatten().for_each(|part| _ = command.arg(part));
        })
        .await?;
    confirm(store, topic, from, &due).await?;
    store
        .run(&DEPART, bucket, |_, command| {
            due.iter().for_each(|[name, _, generation, _]| _ = command.arg(name).arg(generation));
        })
        .await?;
    Ok(None)
}

/// Waits for the configured number of replicas of the topic. Without them, the messages stay in the
/// bucket.
async fn confirm(store: &Store, topic: &Text, from: &Text, due: &[Waiting]) -> Result<()> {
    let Some([name, _, generation, _]) = due.first() else { return Ok(()) };
    let known = &keys::of_topic(&store.link.settings.prefix, topic)[4];
    let token = [from.as_bytes(), name, generation].join(&b"/"[..]);
    let is_known = redis::cmd("HEXISTS").arg(known).arg(token).clone();
    store.confirm(known, &is_known, |is_known| number(&is_known) == 1).await
}

/// Removes a bucket that is empty and whose time is over. Returns whether it is removed.
async fn close(store: &Store, room: &Text) -> Result<bool> {
    let Some(bucket) = Bucket::parse(room) else { return Ok(true) };
    let over = bucket.end(&store.link.settings).saturating_add(to_millis(AHEAD) as i64);
    if store.seams.clock.now().0 <= over {
        return Ok(false);
    }
    let ask = async |how: &str| {
        let answer = store.run(&CLOSE, std::slice::from_ref(room), |_, command| {
            command.arg(over).arg(how);
        });
        Ok::<_, Error>(answer.await?.first().map_or(0, number) == 1)
    };
    if !ask("look").await? {
        return Ok(false);
    }
    // Removed from the register first. A sender whose clock is far behind registers it again when
    // it learns the due time.
    let key = keys::buckets(&store.link.settings.prefix, bucket.topic);
    store.link.query(redis::cmd("ZREM").arg(key).arg(bucket.entry)).await?;
    match ask("close").await {
        Ok(true) => Ok(true),
        still_there => {
            register(store, &bucket, bucket.start).await?;
            still_there
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
    use dwell_core::{Address, Message, OnMissing, Seams, Subscription, Transport, TransportUrl};
    use std::collections::HashSet;

    fn settings() -> RedisSettings {
        RedisSettings { shards: 4, bucket: Duration::from_secs(3600), ..RedisSettings::server("h", 1) }
    }

    fn order(id: &str, due: Due) -> Envelope {
        Envelope::new(Address::topic("orders"), Message::new(id, "orders.placed", "{}")).due(due)
    }

    #[test]
    fn messages_due_at_one_instant_are_distributed_over_shards() {
        const HOUR: i64 = 3_600_000;
        let (settings, now) = (settings(), Timestamp(100 * HOUR + 5));
        let mut shards = HashSet::new();
        for n in 0..100 {
            let name = room(&order(&n.to_string(), Due::After(Duration::from_secs(7200))), &settings, now);
            let bucket = Bucket::parse(&name).unwrap();
            assert_eq!(
                (bucket.topic, bucket.start, bucket.end(&settings)),
                ("orders", 102 * HOUR, 103 * HOUR)
            );
            shards.insert(bucket.entry.to_owned());
        }
        assert_eq!(shards.len(), 4);
        let at = |time| room(&order("a", Due::At(Timestamp(time))), &settings, now);
        assert_eq!(at(5), at(100 * HOUR), "a past time is due now");
        assert_ne!(at(101 * HOUR - 1), at(101 * HOUR));
        let far = room(&order("a", Due::After(Duration::MAX)), &settings, now);
        assert!(Bucket::parse(&far).is_some(), "{far}");
    }

    /// Senders and promoters do not cache buckets, and a promoter task that ended is started again.
    #[tokio::test]
    async fn a_task_that_ended_early_is_restarted_and_buckets_are_not_cached() {
        let server = RedisServer::start(RedisOptions::default()).unwrap();
        let url = TransportUrl::parse(&format!("{}?shards=2&bucket=1s", server.url())).unwrap();
        let redis = crate::connect(&url, Seams::system("test")).await.unwrap();
        let (mail, orders) = (Subscription::new("orders", "mail"), Text::from("orders"));
        redis.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
        let store = &redis.store;
        watch(store, &orders);
        let task = store.buckets.watched.lock().unwrap().0.remove(&orders).unwrap();
        task.abort();
        assert!(task.await.is_err());
        let aborted = tokio::spawn(std::future::pending());
        aborted.abort();
        while !aborted.is_finished() {
            tokio::task::yield_now().await;
        }
        store.buckets.watched.lock().unwrap().0.insert(orders.clone(), aborted);
        watch(store, &orders);
        let batch: Vec<_> =
            (1..=20).map(|n| order(&n.to_string(), Due::After(Duration::from_millis(n * 100)))).collect();
        assert!(redis.producer().await.unwrap().send(&batch).await.iter().all(Result::is_ok));
        let ready = async || {
            let length = store.link.query(redis::cmd("XLEN").arg("dwell:{orders}:ready:mail")).await;
            number(&length.unwrap())
        };
        while ready().await < 20 {
            store.seams.clock.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(store.places.all_known(), [orders]);
    }

    #[test]
    fn only_plain_delayed_publishes_are_stored_in_buckets() {
        let (settings, now) = (settings(), Timestamp(0));
        let later = Due::After(Duration::from_secs(1));
        let mut chosen = order("a", later);
        chosen.once = Some(dwell_core::OnConflict::Fail);
        let mut one = order("a", later);
        one.to = Address::subscription("orders", "mail");
        for envelope in [order("a", Due::NOW), chosen, one] {
            assert_eq!(&*room(&envelope, &settings, now), "orders");
        }
        let unspread = RedisSettings { shards: 0, ..settings };
        assert_eq!(&*room(&order("a", later), &unspread, now), "orders");
        for name in ["orders", "orders#1", "orders#x@1", "orders#1@y", "orders#1@2.dlq"] {
            assert!(Bucket::parse(name).is_none(), "{name}");
        }
    }
}
