//! The three traits of a broker: the connection, and its two ends. The contract is on the method.

use crate::{
    Capabilities, Delivery, Envelope, Inbox, LeaseId, Ledger, Measure, OnMissing, Result, Scheduler, Sent,
    Settle, Subscription, Text, Topic, Unsettled,
};
use std::{pin::Pin, sync::Arc, time::Duration};

/// One allocation per batch: the price of an object-safe trait without a macro.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A future that is done.
///
/// ```
/// use dwell_core::{BoxFuture, ready};
///
/// fn answer() -> BoxFuture<'static, u64> {
///     ready(42)
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// assert_eq!(answer().await, 42);
/// # }
/// ```
pub fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

/// One broker, connected.
///
/// All traits here share these rules. Batch first: one dynamic call per batch, never per message. `&self`, and a
/// pending `receive` never blocks a `settle`. Cancel safe: dropping a future loses nothing. Unsure means not done: an
/// error is returned unless the broker has confirmed.
///
/// ```
/// use dwell_core::{Address, Envelope, ErrorKind, Message, OnMissing, Result, Topic, Transport};
///
/// /// What anybody can do with any transport.
/// async fn send(transport: &dyn Transport, topic: &str, message: Message) -> Result<()> {
///     transport.provision(&[Topic::named(topic)], &[], OnMissing::Create).await?;
///     let producer = transport.producer().await?;
///     let sent = producer.send(&[Envelope::new(Address::topic(topic), message)]).await.remove(0)?;
///     assert_eq!(sent.due, None, "it went at once");
///     Ok(())
/// }
/// ```
pub trait Transport: Send + Sync {
    /// What it can do: known since `connect`, the same for its whole life.
    fn capabilities(&self) -> Capabilities;

    /// Makes sure that all that these topics and subscriptions need is there and fits: queues, groups, retry and
    /// dead-letter channels, delay levels. The channels of a subscription come with it.
    ///
    /// Under `Create`, an existing subscription takes the requested settings, and a topic its `unclaimed`, if that is set:
    /// see [`SettingChanges`](crate::SettingChanges). Running consumers keep their own lease. Settings that cannot hold at
    /// once are a `Conflict`, and nothing is changed. Under `Validate`, all that is missing is named in one `NotFound`, and
    /// settings that differ in one `Conflict`.
    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>>;

    /// *The* producer: one for all destinations, opened on first use, shared. Safe in a consumer-only process.
    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>>;

    /// A new member of the subscription. `NotFound` where the broker knows that it was never provisioned.
    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>>;

    /// Control over what waits inside the broker. `Some` if and only if `delay_control` is declared.
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        None
    }

    /// Every message, its state and its history. `Some` if and only if `ledger` is declared.
    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        None
    }

    /// Effects once. `Some` if and only if `inbox` is declared.
    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        None
    }

    /// Work that has to run *somewhere* for this transport to keep its promises: a promoter, a relay, a reaper. A
    /// started bus supervises one in each process, unless told that it runs elsewhere; any number may run at once.
    /// Ends after `stop`; ends with an error if it has to be started again.
    fn background(&self, stop: BoxFuture<'static, ()>) -> Option<BoxFuture<'static, Result<()>>> {
        drop(stop);
        None
    }

    /// How its own work goes, where there is more to tell than anybody above could count: what `background` does here, or
    /// how much room it takes. A bus with metrics asks whenever somebody looks, and shows it among its own.
    fn measures(&self) -> BoxFuture<'_, Result<Vec<Measure>>> {
        Box::pin(async { Ok(vec![]) })
    }

    /// Flushes and closes the producer, leaves with every consumer, disconnects. Idempotent.
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}

/// Puts messages into a broker.
pub trait Producer: Send + Sync {
    /// Sends the batch and waits until the broker has *confirmed*. One result per envelope, in order; an absent one
    /// counts as an error. Items fail alone. Splits to the broker's own limits. Order is kept per key.
    ///
    /// * A `due` that [`Capabilities::reaches`] denies is `Unsupported`. A topic that is not there is `NotFound`, a
    ///   body over `max_body` is `TooLarge`, a bounded queue without room is `Full`.
    /// * A pending envelope is stored as [`Scheduler::schedule`] says.
    /// * [`Envelope::once`], where `remembers_ids` is declared: with `Fail`, the same content again is `Ok` with
    ///   `duplicate`, other content is `Conflict`; `Replace` replaces a pending entry and inserts a new one for an id
    ///   that has fired. Per (final destination, id), atomically. Where it is not declared: `Unsupported`.
    /// * Broker-side deduplication gets a fresh id each time: it would swallow the copy of a retry, and confirm it.
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>>;

    /// This producer, if it never has to wait for anything: then one message costs no future, and is not shared.
    fn at_once(&self) -> Option<&dyn SendAtOnce> {
        None
    }
}

/// A producer that never has to wait, because what it puts messages into is in this process.
pub trait SendAtOnce: Send + Sync {
    /// The same as [`Producer::send`], for one message.
    fn send_at_once(&self, envelope: Envelope) -> Result<Sent>;
}

/// A request for deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receive {
    /// Maximum number of deliveries. No more than the caller can hold, because each of them is leased.
    pub max: usize,
    /// Maximum time to wait for the first delivery.
    pub wait: Duration,
    /// Duration of the leases. `None` is the subscription's setting.
    pub lease: Option<Duration>,
    /// Name of the worker that runs the deliveries, for the ledger. `None` is a name that the consumer chooses. A
    /// transport without a ledger ignores it.
    pub worker: Option<Text>,
}

/// One member of one subscription. One that is dropped without `close` has crashed: what it held is redelivered when its
/// leases run out, or at once where the broker notices that a session ended.
pub trait Consumer: Send + Sync {
    /// Returns up to [`Receive::max`] due deliveries. Waits up to [`Receive::wait`] for the first one, and never for a
    /// second. One caller at a time.
    ///
    /// Staying a member (heartbeats, poll intervals) does not depend on how often this is called. Deliveries that were
    /// fetched and not returned, because the future was dropped, are returned by the next call, or released by `close`.
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>>;

    /// Calls [`Consumer::receive_with`] in the name of the consumer itself.
    fn receive(
        &self,
        max: usize,
        wait: Duration,
        lease: Option<Duration>,
    ) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        self.receive_with(Receive { max, wait, lease, worker: None })
    }

    /// Settles, in any order; returns once the broker has it (on a log: once it counts for the commit). What comes
    /// back was not settled. An undeclared action comes back `Unsupported`; a fence that no longer matches comes back
    /// `Stale` and changes *nothing*. Never acks in place of what was asked. A `Release` takes its hand-out back from
    /// [`Delivery::deliveries`].
    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>>;

    /// Renews by `by` (`None`: the subscription's lease), from now; returns those already lost. The pump calls it for
    /// all that it holds, running or waiting, in one batch every third of a lease. Where leases are sessions there is
    /// nothing to renew, but what was lost is said all the same: it is neither run nor copied then.
    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        let _ = (leases, by);
        ready(Ok(vec![]))
    }

    /// Leaves: flushes settlements and commits, gives back what it holds. Then `receive` is `Closed`. Idempotent.
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}
