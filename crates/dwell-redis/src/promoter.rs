//! Promotion of due messages without a consumer, and removal of expired data.

use crate::{
    buckets,
    places::{list, number, text},
    scheduler::{bases, in_each, or_left_out},
    script::{PROMOTE, TIDY},
    store::Store,
    waiter::{self, Waiter},
};
use dwell_core::{BoxFuture, ErrorKind, Result, Text};
use futures_util::future::{Either, select};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::task::JoinHandle;

/// Number of messages that are promoted at a time.
const CHUNK: usize = 200;

/// Interval between scans of topics without consumers, and between searches for new topics.
const PERIOD: Duration = Duration::from_secs(1);

/// Number of periods between removals of expired data.
const TIDY_PERIODS: u32 = 10;

/// Maximum number of consecutive removals in one slot, so that the others have their turn.
const TIDY_ROUNDS: usize = 1000;

/// Idle time after which a consumer without deliveries is removed. Live consumers are active every
/// few seconds.
const GONE: Duration = Duration::from_secs(600);

/// Time after which a delivery that was read from a stream without a lease is released.
const STRAY: Duration = Duration::from_secs(60);

/// Promotes all topics until `stop` completes. Consumers promote their own topics on time; this is
/// for the other topics, and for those with busy consumers.
pub(crate) async fn look_after(store: Arc<Store>, mut stop: BoxFuture<'static, ()>) -> Result<()> {
    let clock = store.seams.clock.clone();
    let mut round = 0_u32;
    loop {
        match look(&store, round.is_multiple_of(TIDY_PERIODS)).await {
            Err(error) if error.kind() == ErrorKind::Closed => return Ok(()),
            // The server may be unavailable for a while. A restart of this task would not help.
            Err(error) => tracing::warn!(%error, "promotion failed; retrying"),
            Ok(()) => {}
        }
        round = round.wrapping_add(1);
        match select(stop, clock.tick(PERIOD)).await {
            Either::Left(((), _)) => return Ok(()),
            Either::Right(((), still)) => stop = still,
        }
    }
}

async fn look(store: &Arc<Store>, tidies: bool) -> Result<()> {
    store.open()?;
    let mut topics = store.names().await?;
    let all = topics.clone();
    let mut trouble = Ok(());
    while !topics.is_empty() {
        let mut more = vec![];
        for (topic, answer) in in_each(store, &topics, &PROMOTE, |command| _ = command.arg(CHUNK)).await {
            match or_left_out(&topic, answer) {
                Ok(answer) if answer.first().map_or(0, number) == 1 => more.push(topic),
                Ok(_) => {}
                Err(error) => trouble = trouble.and(Err(error)),
            }
        }
        topics = more;
    }
    all.iter().for_each(|topic| buckets::watch(store, topic));
    if tidies {
        trouble = trouble.and(tidy(store, GONE).await);
    }
    trouble
}

/// Removes expired data in every slot.
async fn tidy(store: &Store, gone: Duration) -> Result<()> {
    for base in bases(&store.rooms().await?) {
        or_left_out(&base, tidy_slot(store, &base, gone).await)?;
    }
    Ok(())
}

async fn tidy_slot(store: &Store, base: &str, gone: Duration) -> Result<()> {
    let family = store.family(base).await?;
    let mut behind: Vec<String> = vec![];
    if family.is_empty() {
        return Ok(());
    }
    for _ in 0..TIDY_ROUNDS {
        let answer = store
            .run(&TIDY, &family, |_, command| {
                command.arg(CHUNK).arg(gone.as_millis() as u64).arg(STRAY.as_millis() as u64);
                command.arg(&behind);
            })
            .await?;
        let mut answer = answer.into_iter();
        if answer.next().map_or(0, |more| number(&more)) == 0 {
            break;
        }
        // An empty pair means that everything has been scanned.
        behind = vec![String::new(), String::new()];
        behind.extend(answer.next().map(list).unwrap_or_default().iter().map(text));
    }
    Ok(())
}

/// Promotes due messages in every topic on time, until `stop` completes: one task for each topic.
pub(crate) async fn promote(store: Arc<Store>, mut stop: BoxFuture<'static, ()>) -> Result<()> {
    let clock = store.seams.clock.clone();
    let mut tasks: BTreeMap<Text, JoinHandle<()>> = BTreeMap::new();
    let mut round = 0_u32;
    let ended = loop {
        match store.names().await {
            Ok(topics) => {
                for topic in &topics {
                    buckets::watch(&store, topic);
                    let task = tasks.get(topic).filter(|task| !task.is_finished());
                    if task.is_none() {
                        tasks
                            .insert(topic.clone(), tokio::spawn(promote_topic(store.clone(), topic.clone())));
                    }
                }
                if round.is_multiple_of(TIDY_PERIODS)
                    && let Err(error) = tidy(&store, GONE).await
                {
                    tracing::warn!(%error, "removal of expired data failed; retrying");
                }
            }
            Err(error) => tracing::warn!(%error, "listing the topics failed; retrying"),
        }
        round = round.wrapping_add(1);
        match select(stop, clock.tick(PERIOD)).await {
            Either::Left(((), _)) => break Ok(()),
            Either::Right(((), still)) => stop = still,
        }
    };
    tasks.into_values().for_each(|task| task.abort());
    ended
}

/// Promotes due messages in one topic, on time.
async fn promote_topic(store: Arc<Store>, topic: Text) {
    let waiter = Waiter::new(&store);
    let clock = store.seams.clock.clone();
    let topics = [topic.clone()];
    while store.open().is_ok() {
        let answer = match store.run(&PROMOTE, &topics, |_, command| _ = command.arg(CHUNK)).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%error, %topic, "promotion failed; retrying");
                clock.sleep(PERIOD).await;
                continue;
            }
        };
        let [is_more, wait, signal, stuck] = &answer[..] else { continue };
        if number(is_more) == 1 {
            continue;
        }
        let wait = u64::try_from(number(wait)).map_or(Duration::MAX, Duration::from_millis);
        let signals = vec![
            waiter::wake_of(&store, &topic, text(signal)),
            waiter::incoming_of(&store, &topic, text(stuck)),
        ];
        waiter.wait(&store, &signals, wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Redis, RedisSettings};
    use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
    use dwell_core::{
        Action, Address, Consumer, Envelope, Message, Note, OnMissing, Outcome, Seams, Settle, Subscription,
        Transport,
    };

    async fn receive(consumer: &Arc<dyn Consumer>) -> dwell_core::Delivery {
        consumer.receive(1, PERIOD * 20, None).await.unwrap().remove(0)
    }

    /// A killed process leaves a name in the group of each of its subscriptions.
    #[tokio::test]
    async fn names_of_dead_consumers_without_deliveries_are_removed() {
        let server = RedisServer::start(RedisOptions::default()).unwrap();
        let settings =
            RedisSettings::from_url(&dwell_core::TransportUrl::parse(&server.url()).unwrap()).unwrap();
        let redis = Redis::open(settings, Seams::system("test")).await.unwrap();
        let mail = Subscription::new("orders", "mail");
        redis.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
        let orders: Vec<_> = ["a", "b"]
            .map(|id| Envelope::new(Address::topic("orders"), Message::new(id, "orders.placed", "{}")))
            .into();
        assert!(redis.producer().await.unwrap().send(&orders).await.iter().all(Result::is_ok));
        let (idle, busy) = (redis.consumer(mail.clone()).await.unwrap(), redis.consumer(mail).await.unwrap());
        let delivery = receive(&idle).await;
        let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
        assert!(idle.settle(vec![Settle { delivery, action: Action::ACK, note }]).await.is_empty());
        let held = receive(&busy).await;
        let consumers = || {
            let said = server.cli(&["xinfo", "consumers", "dwell:{orders}:ready:mail", "dwell"]).unwrap();
            String::from_utf8_lossy(&said.stdout).matches("pending").count()
        };
        assert_eq!(consumers(), 2);
        tidy(&redis.store, GONE).await.unwrap();
        assert_eq!(consumers(), 2, "both were active recently");
        redis.store.seams.clock.sleep(Duration::from_millis(5)).await;
        tidy(&redis.store, Duration::ZERO).await.unwrap();
        assert_eq!(consumers(), 1, "the consumer that holds {} remains", held.message.id);
    }

    /// A repeated id must not be reported as a duplicate of a job that the ledger has forgotten.
    #[tokio::test]
    async fn the_record_of_a_job_is_kept_as_long_as_its_id() {
        let server = RedisServer::start(RedisOptions::default()).unwrap();
        for done in ["0s", "1s"] {
            let url = format!("{}?ids=2s&done={done}&prefix=p{done}", server.url());
            let url = dwell_core::TransportUrl::parse(&url).unwrap();
            let redis = crate::connect(&url, Seams::system("test")).await.unwrap();
            let work = Subscription::new("job.mail", "job.mail");
            redis.provision(&[], std::slice::from_ref(&work), OnMissing::Create).await.unwrap();
            let (producer, ledger) = (redis.producer().await.unwrap(), redis.ledger().unwrap());
            let job = Envelope::new(Address::topic("job.mail"), Message::new("a", "mail", "{}"));
            let job = job.once(dwell_core::OnConflict::Fail);
            let send = async || producer.send(std::slice::from_ref(&job)).await.remove(0).unwrap();
            let (clock, start) = (&redis.store.seams.clock, redis.store.seams.clock.elapsed());
            assert!(!send().await.duplicate);
            let consumer = redis.consumer(work).await.unwrap();
            let delivery = receive(&consumer).await;
            let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
            assert!(consumer.settle(vec![Settle { delivery, action: Action::ACK, note }]).await.is_empty());
            loop {
                tidy(&redis.store, GONE).await.unwrap();
                let found = ledger.get(&"a".into()).await.unwrap();
                if !send().await.duplicate {
                    break;
                }
                let age = clock.elapsed() - start;
                assert!(!found.is_empty(), "done={done}: a duplicate without a record after {age:?}");
                clock.sleep(Duration::from_millis(20)).await;
            }
            let age = clock.elapsed() - start;
            assert!(age >= Duration::from_secs(2), "done={done}: its id was remembered only for {age:?}");
        }
    }

    /// The record of an earlier message with the same id expires in the meantime.
    #[tokio::test]
    async fn the_id_of_a_pending_message_is_remembered_when_an_older_record_expires() {
        let server = RedisServer::start(RedisOptions::default()).unwrap();
        let url = dwell_core::TransportUrl::parse(&format!("{}?ids=1h&done=1h", server.url())).unwrap();
        let redis = crate::connect(&url, Seams::system("test")).await.unwrap();
        let mail = Subscription::new("orders", "mail");
        redis.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
        let consumer = redis.consumer(mail.clone()).await.unwrap();
        let producer = redis.producer().await.unwrap();
        let order = Envelope::new(Address::topic("orders"), Message::new("a", "orders.placed", "{}"));
        let send = async |once| producer.send(&[order.clone().once(once)]).await.remove(0).unwrap();
        let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
        let later = Action::Move { to: mail.address(), due: dwell_core::Due::After(GONE) };
        for action in [Action::ACK, later] {
            send(dwell_core::OnConflict::Replace).await;
            let delivery = receive(&consumer).await;
            assert!(consumer.settle(vec![Settle { delivery, action, note: note.clone() }]).await.is_empty());
        }
        // Makes the record of the first one old.
        let lua = "for _, n in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, n) end";
        server.cli(&["eval", lua, "1", "dwell:{orders}:ended"]).unwrap();
        let records = async || redis.ledger().unwrap().get(&"a".into()).await.unwrap().len();
        assert_eq!(records().await, 2);
        tidy(&redis.store, GONE).await.unwrap();
        assert_eq!(records().await, 1);
        assert!(send(dwell_core::OnConflict::Fail).await.duplicate);
    }
}
