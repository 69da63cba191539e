//! The consumer.

use crate::{
    accept::is_unknown,
    buckets,
    calls::Call,
    doubts::Doubts,
    entries::{self, Entries},
    item::Item,
    keys,
    places::{list, number, text, to_millis},
    script::{CLAIM, EXTEND, GIVE_BACK},
    settings::Promoter,
    settle,
    store::{Member, Store},
    waiter::{self, Waiter},
};
use dwell_core::{
    BoxFuture, Consumer, Delivery, Error, ErrorKind, LeaseId, Receipt, Receive, Result, Settle, Subscription,
    Text, Timestamp, Unsettled,
};
use redis::Value;
use std::{
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// Maximum number of deliveries of one `receive`.
const MOST: usize = 500;

/// Maximum number of deliveries of one script, so that other clients do not wait long.
const AT_ONCE: usize = 100;

/// Maximum number of bytes of one script, unless a single message has more.
const BYTES: usize = 1 << 20;

/// Maximum number of messages that a claim also promotes, takes in and recovers.
const BESIDE: usize = 200;

/// Number of settlements or leases in one script.
pub(crate) const CHUNK: usize = 200;

/// Number of messages released in one script. A release is far more work than a settlement.
const GIVEN_BACK: usize = 20;

pub(crate) struct RedisConsumer {
    pub(crate) store: Arc<Store>,
    pub(crate) of: Subscription,
    /// Unique name of this consumer in the stream's group.
    pub(crate) name: Text,
    pub(crate) entries: Entries,
    pub(crate) doubts: Doubts,
    unheard: Unheard,
    waiter: Waiter,
    is_closed: AtomicBool,
    closing: Notify,
}

/// Claims whose answer is unknown. The next claim repeats the call, and receives the same
/// deliveries. A clone shares them.
#[derive(Clone, Default)]
struct Unheard(Arc<Mutex<Vec<Call>>>);

impl Unheard {
    fn take(&self) -> Option<Call> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn keep(&self, call: Call) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }
}

/// Result of a claim.
enum Look {
    Found(Vec<Delivery>),
    Again,
    Nothing { wait: Option<Duration>, ready: String, wake: String, stuck: String },
}

/// Deliveries on their way to the receiver. They are released if the receiver was dropped.
struct Handed {
    look: Option<Look>,
    store: Arc<Store>,
    of: Subscription,
    name: Text,
    entries: Entries,
}

impl Handed {
    fn take(mut self) -> Look {
        self.look.take().unwrap_or(Look::Again)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let Some(Look::Found(deliveries)) = self.look.take() else { return };
        let leases: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt.lease()).collect();
        let (store, of, name) = (self.store.clone(), self.of.clone(), self.name.clone());
        let entries = self.entries.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // If this fails, the leases expire.
            runtime.spawn(async move {
                let _ = give_back(&store, &of, &name, &entries, &leases).await;
            });
        }
    }
}

/// Releases deliveries whose receiver was dropped, unchanged.
async fn give_back(
    store: &Store,
    of: &Subscription,
    name: &Text,
    entries: &Entries,
    leases: &[LeaseId],
) -> Result<()> {
    let (topics, mut rest) = ([of.topic.clone()], leases);
    while !rest.is_empty() {
        let some = &rest[..rest.len().min(GIVEN_BACK)];
        let answer = store
            .run(&GIVE_BACK, &topics, |_, command| {
                command.arg(&*of.name).arg(&**name);
                some.iter().for_each(|lease| _ = command.arg(entries.of(*lease)).arg(lease.fence));
            })
            .await?;
        // If messages are large, only some of them are released.
        let done = answer.first().map_or(0, number).clamp(1, some.len() as i64);
        rest = &rest[done as usize..];
    }
    Ok(())
}

impl RedisConsumer {
    pub(crate) async fn open(store: Arc<Store>, of: Subscription) -> Result<Arc<Self>> {
        store.open()?;
        // Reloaded, because consumers are opened rarely.
        store.places.forget(std::slice::from_ref(&of.topic));
        let place = store.place(&of.topic).await?;
        if !place.feeds().contains(&of.name) {
            if let Some(adopter) = place.adopter.as_ref().filter(|_| of.name == of.topic) {
                let text = format!(
                    "the unclaimed messages of `{}` were adopted by its subscription `{adopter}`: consume that subscription",
                    of.topic
                );
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            return Err(place.missing(&of.name));
        }
        let name = format!(
            "{}-{}-{:08x}",
            store.seams.instance,
            store.seams.incarnation,
            store.seams.random.next() as u32
        );
        let consumer = Arc::new(Self {
            waiter: Waiter::new(&store),
            store: store.clone(),
            of,
            name: name.into(),
            entries: Entries::default(),
            doubts: Doubts::default(),
            unheard: Unheard::default(),
            is_closed: AtomicBool::new(false),
            closing: Notify::new(),
        });
        let member: Weak<dyn Member> = Arc::downgrade(&(consumer.clone() as Arc<dyn Member>));
        store.add_member(member);
        consumer.watch_buckets();
        Ok(consumer)
    }

    fn watch_buckets(&self) {
        if self.store.link.settings.promoter == Promoter::Inside {
            buckets::watch(&self.store, &self.of.topic);
        }
    }

    fn check_open(&self) -> Result<()> {
        self.store.open()?;
        if self.is_closed.load(Ordering::SeqCst) {
            let text = format!("this consumer of `{}` is closed: open another", self.of.address());
            return Err(Error::new(ErrorKind::Closed, text));
        }
        Ok(())
    }

    async fn wait_for_deliveries(&self, receive: Receive) -> Result<Vec<Delivery>> {
        let Receive { max, wait, lease, worker } = receive;
        let lease = lease.unwrap_or(self.of.lease);
        let clock = self.store.seams.clock.clone();
        let deadline = clock.elapsed().saturating_add(wait);
        loop {
            let mut closing = pin!(self.closing.notified());
            // Registers for the notification.
            let _ = futures_util::poll!(&mut closing);
            self.check_open()?;
            let look = self.look(max, lease, worker.as_ref()).await?;
            // Other programs may have distributed the topic since.
            self.watch_buckets();
            let (pause, ready, wake, stuck) = match look {
                Look::Found(deliveries) => return Ok(deliveries),
                Look::Again if max > 0 => continue,
                Look::Again => (None, String::new(), String::new(), String::new()),
                Look::Nothing { wait, ready, wake, stuck } => (wait, ready, wake, stuck),
            };
            let left = deadline.saturating_sub(clock.elapsed());
            if left.is_zero() {
                return Ok(vec![]);
            }
            let pause = pause.unwrap_or(left).min(left);
            let topic = &self.of.topic;
            let mut signals = vec![waiter::wake_of(&self.store, topic, wake)];
            // With a separate promoter, this consumer must not take in messages of other programs,
            // and their signal would never end.
            if self.store.link.settings.promoter == Promoter::Inside {
                signals.push(waiter::incoming_of(&self.store, topic, stuck));
            }
            let prefix = &self.store.link.settings.prefix;
            let stream = keys::of_subscription(prefix, &self.of.topic, &self.of.name).swap_remove(0);
            signals.push((stream, ready));
            tokio::select! {
                biased;
                () = &mut closing => {}
                () = self.waiter.wait(&self.store, &signals, pause) => {}
            }
        }
    }

    /// Runs in a separate task, so that deliveries are not lost if the receiver is dropped.
    async fn look(&self, max: usize, lease: Duration, worker: Option<&Text>) -> Result<Look> {
        let (answer, answered) = oneshot::channel();
        let (store, of, name) = (self.store.clone(), self.of.clone(), self.name.clone());
        let (entries, unheard) = (self.entries.clone(), self.unheard.clone());
        let worker = worker.unwrap_or(&self.name).clone();
        tokio::spawn(async move {
            let max = max.min(MOST);
            let some = async |most: usize| {
                let claim = Claim { worker: &worker, max: most.min(AT_ONCE), lease };
                look(&store, &of, &name, claim, &entries, &unheard).await
            };
            let mut look = some(max).await;
            if let Ok(Look::Found(found)) = &mut look {
                // Repeats without waiting as long as there is more.
                let (mut last, mut bytes) = (found.len(), bytes_of(found));
                while last == AT_ONCE && found.len() < max && bytes < BYTES {
                    let Ok(Look::Found(more)) = some(max - found.len()).await else { break };
                    (last, bytes) = (more.len(), bytes + bytes_of(&more));
                    found.extend(more);
                }
            }
            let hand = |look| Handed {
                look: Some(look),
                store: store.clone(),
                of: of.clone(),
                name: name.clone(),
                entries: entries.clone(),
            };
            let handed = look.map(|mut look| {
                if let Look::Found(found) = &mut look
                    && found.len() > max
                {
                    // The previous claim requested more.
                    drop(hand(Look::Found(found.split_off(max))));
                }
                hand(look)
            });
            // Deliveries that are not received are dropped, and thereby released.
            let _ = answer.send(handed);
        });
        match answered.await {
            Ok(handed) => handed.map(Handed::take),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the runtime is shutting down")),
        }
    }
}

/// Arguments of one claim.
struct Claim<'a> {
    worker: &'a Text,
    max: usize,
    lease: Duration,
}

async fn look(
    store: &Store,
    of: &Subscription,
    name: &Text,
    claim: Claim<'_>,
    entries: &Entries,
    unheard: &Unheard,
) -> Result<Look> {
    let topics = [of.topic.clone()];
    let promotes = store.link.settings.promoter == Promoter::Inside;
    let before = unheard.take();
    let is_again = before.is_some();
    let call = before.unwrap_or_else(|| store.calls.begin());
    let answer = store
        .run_as(Some(&call), &CLAIM, &topics, |_, command| {
            command
                .arg(&*of.name)
                .arg(claim.max)
                .arg(to_millis(claim.lease))
                .arg(&**name)
                .arg(u8::from(promotes))
                .arg(BESIDE)
                .arg(BYTES)
                .arg(u8::from(is_again))
                .arg(&**claim.worker);
        })
        .await;
    let answer = match answer {
        Err(error) if is_unknown(&error) => {
            unheard.keep(call);
            return Err(error);
        }
        answer => answer?,
    };
    if answer.first().map(text).as_deref() == Some("gone") {
        // The topic may have vanished, and others may have created it without this subscription.
        store.places.forget(&topics);
        let place = store.place(&of.topic).await?;
        if place.feeds().contains(&of.name) {
            return Ok(Look::Again);
        }
        if !place.has(&of.name) {
            return Err(place.missing(&of.name));
        }
        // Another subscription has adopted its messages and gets all later ones.
        let [ready, wake, stuck] = [(); 3].map(|()| "$".to_owned());
        return Ok(Look::Nothing { wait: None, ready, wake, stuck });
    }
    let mut answer = answer.into_iter();
    let found = answer.next().map(list).unwrap_or_default();
    if !found.is_empty() {
        return Ok(Look::Found(found.into_iter().filter_map(|found| read(entries, found)).collect()));
    }
    let rest: Vec<_> = answer.collect();
    let [is_more, due, lease, ready, wake, stuck] = &rest[..] else { return Ok(Look::Again) };
    if number(is_more) == 1 {
        return Ok(Look::Again);
    }
    let times = [due, lease].into_iter().filter_map(|wait| u64::try_from(number(wait)).ok());
    let wait = times.min().map(Duration::from_millis);
    Ok(Look::Nothing { wait, ready: text(ready), wake: text(wake), stuck: text(stuck) })
}

fn bytes_of(found: &[Delivery]) -> usize {
    found.iter().map(|delivery| delivery.message.body.len()).sum()
}

fn read(entries: &Entries, value: Value) -> Option<Delivery> {
    let mut parts = list(value).into_iter();
    let (entry, fence, item) = (text(&parts.next()?), number(&parts.next()?), parts.next()?);
    let mut item = Item::read(item, &entry);
    let (fence, first) = (fence as u64, item.first.take());
    let position = entries.position(&entry, fence);
    let identity = first.as_deref().and_then(entries::position).unwrap_or(position);
    let entered = entry.split('-').next().and_then(|millis| millis.parse().ok()).map(Timestamp);
    Some(Delivery {
        deliveries: Some(item.tries.saturating_add(1)),
        due: item.due.or(entered),
        problem: item.problem.take(),
        message: item.message(),
        receipt: Receipt::new(position, fence).with_identity(identity),
    })
}

impl Member for RedisConsumer {
    fn leave(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if self.is_closed.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
            self.closing.notify_waiters();
            // Makes claims that are still in flight outdated, so that they lease nothing.
            for _ in 0..self.unheard.count() {
                let claim = Claim { worker: &self.name, max: 0, lease: self.of.lease };
                let late = look(&self.store, &self.of, &self.name, claim, &self.entries, &self.unheard).await;
                if late.is_err() {
                    break;
                }
            }
            let topics = [self.of.topic.clone()];
            loop {
                let answer = self
                    .store
                    .run(&GIVE_BACK, &topics, |_, command| {
                        command.arg(&*self.of.name).arg(&*self.name).arg(GIVEN_BACK);
                    })
                    .await?;
                if answer.first().map_or(0, number) == 0 {
                    return Ok(());
                }
            }
        })
    }
}

impl Consumer for RedisConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(self.wait_for_deliveries(receive))
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        Box::pin(settle::settle(self, batch))
    }

    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        Box::pin(async move {
            self.store.open()?;
            let by = by.unwrap_or(self.of.lease);
            let mut lost = vec![];
            for leases in leases.chunks(CHUNK) {
                let topics = [self.of.topic.clone()];
                let answer = self
                    .store
                    .run(&EXTEND, &topics, |_, command| {
                        command.arg(&*self.of.name).arg(&*self.name).arg(to_millis(by));
                        leases
                            .iter()
                            .for_each(|lease| _ = command.arg(self.entries.of(*lease)).arg(lease.fence));
                    })
                    .await?;
                let words = answer.into_iter().next().map(list).unwrap_or_default();
                let of = leases.iter().zip(&words).filter(|(_, word)| text(word) != "ok");
                lost.extend(of.map(|(lease, _)| *lease));
            }
            Ok(lost)
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.leave()
    }
}
