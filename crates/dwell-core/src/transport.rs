//! The traits of a broker connection: [`Transport`], [`Producer`] and [`Consumer`].

use crate::{
    Capabilities, Delivery, Envelope, Inbox, LeaseId, Ledger, Measure, OnMissing, Result, Scheduler, Sent,
    Settle, Subscription, Text, Topic, Unsettled,
};
use std::{pin::Pin, sync::Arc, time::Duration};

/// A boxed future. An object-safe trait without a macro costs one allocation per batch.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Returns a future that is ready with `value`.
pub fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

/// A connection to one broker.
///
/// All traits of this crate share these rules:
///
/// * **Batches.** There is one dynamic call per batch, never one per message.
/// * **Shared access.** Methods take `&self`, and a pending `receive` never blocks a `settle`.
/// * **Cancellation.** The caller may drop any future. No message is lost.
/// * **Confirmation.** A method returns an error unless the broker has confirmed the operation.
///   After an error, the operation may or may not have taken effect.
///
/// ```
/// use dwell_core::{Address, Envelope, Message, OnMissing, Result, Topic, Transport};
///
/// /// Works with every transport.
/// async fn send(transport: &dyn Transport, topic: &str, message: Message) -> Result<()> {
///     transport.provision(&[Topic::named(topic)], &[], OnMissing::Create).await?;
///     let producer = transport.producer().await?;
///     let sent = producer.send(&[Envelope::new(Address::topic(topic), message)]).await.remove(0)?;
///     assert_eq!(sent.due, None, "sent without a delay");
///     Ok(())
/// }
/// ```
pub trait Transport: Send + Sync {
    /// Returns what this transport does natively. The value is known once the transport is
    /// connected and never changes.
    fn capabilities(&self) -> Capabilities;

    /// Ensures that everything these topics and subscriptions need exists with the requested
    /// settings: queues, groups, retry channels, dead-letter channels and delay levels. The
    /// channels of a subscription are provisioned with it. The call is idempotent, and several
    /// processes may make it at the same time.
    ///
    /// What it does depends on `on_missing`:
    ///
    /// * `Create` creates what is missing. An existing subscription takes the requested settings,
    ///   and an existing topic takes the requested `unclaimed` if it is set: see
    ///   [`SettingChanges`](crate::SettingChanges). Running consumers keep the lease that they
    ///   started with.
    /// * `Validate` changes nothing.
    /// * `Assume` does not look at the broker.
    ///
    /// # Errors
    ///
    /// * `NotFound` under `Validate`: one error that names everything that is missing.
    /// * `Conflict` under `Validate`: one error that names all settings that differ.
    /// * `Conflict` if one request names a topic or subscription twice with different settings.
    ///   Nothing is changed.
    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>>;

    /// Returns the producer of this transport. It serves all destinations, is opened on first use
    /// and is shared by all callers. A process that only consumes may call this, too.
    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>>;

    /// Joins the subscription as a new member. Each call returns a consumer of its own.
    ///
    /// # Errors
    ///
    /// `NotFound` if the broker knows that the subscription was never provisioned.
    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>>;

    /// Returns control over the pending messages in this broker. `Some` if and only if
    /// [`Capabilities::delay_control`] is declared.
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        None
    }

    /// Returns access to every stored message, its state and its history. `Some` if and only if
    /// [`Capabilities::ledger`] is declared.
    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        None
    }

    /// Returns the record of handled messages, which makes effects happen once. `Some` if and only
    /// if [`Capabilities::inbox`] is declared.
    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        None
    }

    /// Returns a background task that this transport needs in at least one process: a promoter, a
    /// relay or a reaper. `None` if it needs none.
    ///
    /// A started bus supervises one task per process, unless the configuration says that the task
    /// runs in another process. Any number of tasks may run at the same time.
    ///
    /// The task ends with `Ok` after `stop` completes. It ends with an error if it has to be
    /// started again.
    fn background(&self, stop: BoxFuture<'static, ()>) -> Option<BoxFuture<'static, Result<()>>> {
        drop(stop);
        None
    }

    /// Returns metrics of the transport's own work that nothing above it can count, for example the
    /// progress of `background` or the used storage. A bus with metrics calls this whenever its
    /// metrics are read, and exports the result with its own.
    fn measures(&self) -> BoxFuture<'_, Result<Vec<Measure>>> {
        Box::pin(async { Ok(vec![]) })
    }

    /// Flushes and closes the producer, closes every consumer and disconnects. A second call does
    /// nothing.
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}

/// Sends messages to a broker.
pub trait Producer: Send + Sync {
    /// Sends the batch and waits until the broker has confirmed it.
    ///
    /// Returns one result per envelope, in the order of the batch. A missing result counts as an
    /// error. Each envelope succeeds or fails on its own. The producer splits the batch where the
    /// broker's limits require it, and keeps the order of messages with the same key.
    ///
    /// * A pending envelope is stored as [`Scheduler::schedule`] describes.
    /// * [`Envelope::once`] requires [`Capabilities::remembers_ids`]. The check and the send are
    ///   one atomic step for each final destination and id.
    ///   * `Fail`: if the id is known with the same content, the result is `Ok` with `duplicate`,
    ///     and nothing is sent.
    ///   * `Replace`: a pending entry is replaced. If the message has fired already, a new message
    ///     is sent.
    /// * If the broker deduplicates by an id, the producer passes a new one with each send.
    ///   Otherwise the broker would confirm and discard the copy that a retry makes.
    ///
    /// # Errors
    ///
    /// | kind | cause |
    /// |---|---|
    /// | `Unsupported` | [`Capabilities::reaches`] is false for `due`, or `once` is set and `remembers_ids` is not declared |
    /// | `NotFound` | the topic does not exist |
    /// | `TooLarge` | the body is larger than [`Capabilities::max_body`] |
    /// | `Full` | a bounded queue has no room |
    /// | `Conflict` | `once` is `Fail` and the id is known with other content |
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>>;

    /// Returns this producer if it never has to wait. Sending one message then costs no future. The
    /// default is `None`.
    fn at_once(&self) -> Option<&dyn SendAtOnce> {
        None
    }
}

/// A producer that never has to wait, because its broker is in this process.
pub trait SendAtOnce: Send + Sync {
    /// Sends one message. Results and errors are those of [`Producer::send`].
    fn send_at_once(&self, envelope: Envelope) -> Result<Sent>;
}

/// A request for deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receive {
    /// Maximum number of deliveries. Request no more than you can hold, because every delivery is
    /// leased.
    pub max: usize,
    /// Maximum time to wait for the first delivery.
    pub wait: Duration,
    /// Duration of the leases. `None` is the setting of the subscription.
    pub lease: Option<Duration>,
    /// Name of the worker that runs the deliveries, for the ledger. With `None` the consumer
    /// chooses a name. Transports without a ledger ignore it.
    pub worker: Option<Text>,
}

/// A member of a subscription.
///
/// Dropping a consumer without `close` counts as a crash: its deliveries are redelivered when their
/// leases expire, or immediately if the broker notices that the session has ended.
pub trait Consumer: Send + Sync {
    /// Returns up to [`Receive::max`] due deliveries. Waits up to [`Receive::wait`] for the first
    /// one, and never for further ones. The result may be empty. At
    /// most one call may be pending at a time.
    ///
    /// Membership (heartbeats, poll intervals) does not depend on how often this is called. If the
    /// future is dropped, deliveries that were fetched already are returned by the next call or
    /// released by `close`.
    ///
    /// # Errors
    ///
    /// `Closed` after [`Consumer::close`].
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>>;

    /// Calls [`Consumer::receive_with`] with a worker name that the consumer chooses.
    fn receive(
        &self,
        max: usize,
        wait: Duration,
        lease: Option<Duration>,
    ) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        self.receive_with(Receive { max, wait, lease, worker: None })
    }

    /// Settles deliveries, in any order. Returns once the broker has stored the settlements; on a
    /// log, once they count for the next commit.
    ///
    /// Returns the settlements that failed, with the error of each. An empty result means that all
    /// succeeded. The consumer never replaces the requested action by an ack. A `Release` is
    /// subtracted from [`Delivery::deliveries`].
    ///
    /// # Errors of a single settlement
    ///
    /// * `Unsupported`: the capability for this action is not declared. See
    ///   [`Action`](crate::Action).
    /// * `Stale`: the fence of the receipt no longer matches, because the lease or the session has
    ///   ended. Nothing is changed.
    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>>;

    /// Extends the leases to `by` from now. `None` is the lease of the subscription. Returns the
    /// leases that are lost already: their messages must neither be run nor copied.
    ///
    /// The engine calls this every third of the lease time, in one batch for all deliveries that it
    /// holds, whether they run or wait for a slot. With [`Lease::Session`](crate::Lease::Session)
    /// there is nothing to extend, but the lost leases are returned all the same.
    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        let _ = (leases, by);
        ready(Ok(vec![]))
    }

    /// Leaves the subscription: flushes settlements and commits, and gives back the deliveries that
    /// are not settled. `receive` then fails with `Closed`. A second call does nothing.
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}
