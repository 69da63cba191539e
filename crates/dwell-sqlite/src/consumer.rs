//! Consumer of one subscription.

use crate::{
    fault::Sql,
    file::File,
    halt::{Halt, item, refused},
    hand_out::{Ask, Look},
    handle::{Handle, Member},
    job::Weight,
    tx::Tx,
};
use dwell_core::{
    Action, BoxFuture, Consumer, Delivery, Error, ErrorKind, LeaseId, Receive, Result, Settle, Subscription,
    Text, Timestamp, Unsettled,
};
use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// Maximum number of messages delivered by one `receive`, in one transaction.
const MOST: usize = 5000;

/// Maximum time between two polls of a waiting receiver, even without a wake-up.
const SAFETY: Duration = Duration::from_secs(5);

/// Number of settlements or leases in one job.
const BATCH: usize = 500;

pub(crate) struct SqliteConsumer {
    handle: Arc<Handle>,
    of: Subscription,
    topic: i64,
    place: i64,
    /// Its number, which is never reused.
    number: i64,
    worker: Text,
    receivers: Arc<Notify>,
    is_closed: AtomicBool,
    /// Keeps the consumer registered with this process.
    _alive: Arc<()>,
}

/// Deliveries on their way to the receiver. They are released if the receiver is gone.
struct Handed {
    look: Look,
    file: Weak<File>,
}

impl Handed {
    fn take(mut self) -> Look {
        std::mem::replace(&mut self.look, Look::Again)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let (Look::Found(deliveries), Some(file)) = (&self.look, self.file.upgrade()) {
            let leases: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt.lease()).collect();
            // If the file was closed, the leases expire.
            let _ = file.writer.order(leases.len(), move |tx| tx.give_back(&leases), |()| ());
        }
    }
}

impl SqliteConsumer {
    pub(crate) async fn open(handle: Arc<Handle>, of: Subscription) -> Result<Arc<Self>> {
        let file = handle.open()?;
        let wanted = of.clone();
        let opened = file.write(1, move |tx| item(open(tx, &wanted))).await??;
        let (topic, place, number, alive) = opened;
        let worker = format!("{}#{number}", file.seams.instance).into();
        let receivers = file.signals.of(place);
        let consumer = Arc::new(Self {
            handle: handle.clone(),
            of,
            topic,
            place,
            number,
            worker,
            receivers,
            is_closed: AtomicBool::new(false),
            _alive: alive,
        });
        let member: Weak<dyn Member> = Arc::downgrade(&(consumer.clone() as Arc<dyn Member>));
        handle.add_member(member);
        Ok(consumer)
    }

    fn file(&self) -> Result<&Arc<File>> {
        if self.is_closed.load(Ordering::SeqCst) {
            let text = format!("this consumer of `{}` is closed: open another one", self.of.address());
            return Err(Error::new(ErrorKind::Closed, text));
        }
        self.handle.open()
    }

    async fn wait_for_deliveries(&self, receive: Receive) -> Result<Vec<Delivery>> {
        let Receive { max, wait, lease, worker } = receive;
        let ask = Ask {
            place: self.place,
            topic: self.topic,
            name: self.of.name.clone(),
            consumer: self.number,
            worker: worker.unwrap_or_else(|| self.worker.clone()),
            max: max.min(MOST),
            lease: lease.unwrap_or(self.of.lease),
        };
        let clock = self.handle.file().seams.clock.clone();
        let deadline = clock.elapsed().saturating_add(wait);
        loop {
            // Created before the look, so that no wake-up is missed. A wake-up that is not needed
            // passes to another receiver when this is dropped.
            let mut told = pin!(self.receivers.notified());
            let (due, expiry) = match self.look(&ask).await? {
                Look::Found(deliveries) => return Ok(deliveries),
                Look::Again => continue,
                Look::Nothing { due, expiry } => (due, expiry),
            };
            let looked = clock.elapsed();
            if looked >= deadline {
                return Ok(Vec::new());
            }
            let wake: Option<Timestamp> = due.into_iter().chain(expiry).min();
            let mut timers =
                [Some(clock.sleep(deadline.saturating_sub(looked))), wake.map(|at| clock.sleep_until(at))];
            loop {
                let mut tick = clock.tick(self.handle.file().settings.poll);
                let is_tick = poll_fn(|cx| {
                    let is_told = told.as_mut().poll(cx).is_ready();
                    let mut timers = timers.iter_mut().flatten();
                    if is_told || timers.any(|timer| timer.as_mut().poll(cx).is_ready()) {
                        Poll::Ready(false)
                    } else {
                        tick.as_mut().poll(cx).map(|()| true)
                    }
                })
                .await;
                let file = self.file()?;
                if !is_tick || clock.elapsed().saturating_sub(looked) >= SAFETY {
                    break;
                }
                file.watch();
            }
        }
    }

    async fn look(&self, ask: &Ask) -> Result<Look> {
        let file = self.file()?;
        let (ask, weak) = (ask.clone(), Arc::downgrade(file));
        let answer = file.writer.order(
            ask.max.max(1),
            move |tx| item(tx.look(&ask)),
            move |look| look.map(|look| Handed { look, file: weak }),
        )?;
        match answer.await {
            Ok(answered) => answered?.map(Handed::take),
            Err(oneshot::error::RecvError { .. }) => Err(file.writer.closed()),
        }
    }
}

/// Finds the subscription, and gives the consumer its number.
fn open(tx: &mut Tx<'_>, of: &Subscription) -> Result<(i64, i64, i64, Arc<()>), Halt> {
    let topic = tx.topic(&of.topic)?;
    let place = tx.queue(topic, &of.name)?;
    let found = &tx.places().queues[&place].settings.name;
    if *found != of.name {
        let text = format!(
            "the kept messages of `{}` were adopted by its subscription `{found}`: consume that one",
            of.topic
        );
        return Err(refused(ErrorKind::NotFound, text));
    }
    let number = tx.next();
    let alive = tx.opened(number, place);
    Ok((topic, place, number, alive))
}

/// Returns about how many bytes a settlement writes.
fn written(settle: &Settle) -> usize {
    match &settle.action {
        Action::Move { .. } => settle.delivery.message.body.len(),
        Action::Ack { result } => result.as_ref().map_or(0, |result| result.len()),
        Action::Release => 0,
    }
}

impl Member for SqliteConsumer {
    fn leave(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if self.is_closed.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
            let (place, number) = (self.place, self.number);
            let give_back = move |tx: &mut Tx<'_>| -> Sql<bool> {
                let is_more = tx.give_back_from(place, number)?;
                if !is_more {
                    tx.own.consumers.remove(&number);
                    tx.signal(place, crate::signals::Signal::All);
                }
                Ok(is_more)
            };
            while self.handle.file().write(BATCH, give_back).await? {}
            Ok(())
        })
    }
}

impl Consumer for SqliteConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(self.wait_for_deliveries(receive))
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        Box::pin(async move {
            let mut unsettled = Vec::new();
            let mut rest = batch.into_iter();
            loop {
                let batch: Arc<Vec<_>> = Arc::new(rest.by_ref().take(BATCH).collect());
                if batch.is_empty() {
                    return unsettled;
                }
                let bytes = batch.iter().map(written).sum();
                let weight = Weight { bytes, ..Weight::from(batch.len()) };
                let failed = match self.handle.open() {
                    Ok(file) => {
                        let (of, shared) = (self.of.address(), batch.clone());
                        file.write(weight, move |tx| tx.settle_all(&of, &shared)).await
                    }
                    Err(error) => Err(error),
                };
                // The job has dropped its reference by now.
                let mut batch: Vec<_> =
                    Arc::into_inner(batch).unwrap_or_default().into_iter().map(Some).collect();
                let failed = failed
                    .unwrap_or_else(|error| (0..batch.len()).map(|index| (index, error.again())).collect());
                unsettled.extend(
                    failed
                        .into_iter()
                        .filter_map(|(index, error)| Some(Unsettled { settle: batch[index].take()?, error })),
                );
            }
        })
    }

    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        Box::pin(async move {
            let by = by.unwrap_or(self.of.lease);
            let mut lost = Vec::new();
            for leases in leases.chunks(BATCH) {
                let leases = leases.to_vec();
                let job = self.handle.open()?.write(leases.len(), move |tx| {
                    let until = tx.now.after(by);
                    tx.extend(&leases, until)
                });
                lost.extend(job.await?);
            }
            Ok(lost)
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.leave()
    }
}
