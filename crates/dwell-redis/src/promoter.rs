//! Making ready what is due, where no consumer does it; and forgetting what need not be kept.

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

/// How much is made ready at a time.
const CHUNK: usize = 200;

/// How often what nobody consumes is looked at, and new topics are looked for.
const PERIOD: Duration = Duration::from_secs(1);

/// Every so many periods, what need not be kept is forgotten.
const TIDY_PERIODS: u32 = 10;

/// How often in a row a slot is tidied that has ever more: the others have their turn, too.
const TIDY_ROUNDS: usize = 1000;

/// A consumer that was not heard of for so long, and holds nothing, is gone. One that lives is heard of every few seconds.
const GONE: Duration = Duration::from_secs(600);

/// What somebody has read from a stream without a lease goes back after so long.
const STRAY: Duration = Duration::from_secs(60);

/// Looks after all topics until it is told to stop. Consumers promote their own topics on time; this is for the others, and
/// for those whose consumers are busy.
pub(crate) async fn look_after(store: Arc<Store>, mut stop: BoxFuture<'static, ()>) -> Result<()> {
    let clock = store.seams.clock.clone();
    let mut round = 0_u32;
    loop {
        match look(&store, round.is_multiple_of(TIDY_PERIODS)).await {
            Err(error) if error.kind() == ErrorKind::Closed => return Ok(()),
            // The server may be away for a while: nothing that starting again would help.
            Err(error) => tracing::warn!(%error, "what is due could not be looked after: it is tried again"),
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

/// Forgets what need not be kept, in every slot.
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
        // A pair of nothing says that everything was looked at before.
        behind = vec![String::new(), String::new()];
        behind.extend(answer.next().map(list).unwrap_or_default().iter().map(text));
    }
    Ok(())
}

/// Makes ready what is due in every topic, on time, until it is told to stop: one task for each topic.
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
                    tracing::warn!(%error, "what need not be kept could not be forgotten: it is tried again");
                }
            }
            Err(error) => tracing::warn!(%error, "the topics could not be listed: it is tried again"),
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

/// Makes ready what is due in one topic, on time.
async fn promote_topic(store: Arc<Store>, topic: Text) {
    let waiter = Waiter::new(&store);
    let clock = store.seams.clock.clone();
    let topics = [topic.clone()];
    while store.open().is_ok() {
        let answer = match store.run(&PROMOTE, &topics, |_, command| _ = command.arg(CHUNK)).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%error, %topic, "what is due could not be made ready: it is tried again");
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

    /// Who died without a word leaves a name in the group of each of his subscriptions.
    #[tokio::test]
    async fn names_of_consumers_that_are_gone_are_removed_and_of_those_that_hold_something_not() {
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
        assert_eq!(consumers(), 2, "both were heard of a moment ago");
        redis.store.seams.clock.sleep(Duration::from_millis(5)).await;
        tidy(&redis.store, Duration::ZERO).await.unwrap();
        assert_eq!(consumers(), 1, "the one that holds {}", held.message.id);
    }

    /// A repeated id must not be answered as a duplicate of a job that nobody can look up.
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
                assert!(!found.is_empty(), "done={done}: a duplicate of nothing after {age:?}");
                clock.sleep(Duration::from_millis(20)).await;
            }
            let age = clock.elapsed() - start;
            assert!(age >= Duration::from_secs(2), "done={done}: its id was remembered for {age:?} only");
        }
    }

    /// The record of an earlier message with the same id expires meanwhile.
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
        // The record of the first one was finished long ago.
        let lua = "for _, n in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, n) end";
        server.cli(&["eval", lua, "1", "dwell:{orders}:ended"]).unwrap();
        let records = async || redis.ledger().unwrap().get(&"a".into()).await.unwrap().len();
        assert_eq!(records().await, 2);
        tidy(&redis.store, GONE).await.unwrap();
        assert_eq!(records().await, 1);
        assert!(send(dwell_core::OnConflict::Fail).await.duplicate);
    }
}
