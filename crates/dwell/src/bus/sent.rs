//! Queries and changes messages that were sent.

use super::Bus;
use dwell_core::{Changed, Due, MessageId, Pending, Query, Record, Result};
use dwell_engine::Monitor;
use serde::Serialize;

/// The result of [`Bus::cancel`].
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "remind")]
/// # struct Remind;
/// # async fn remind(_: Remind) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().handle(remind)).await?;
/// t.send(Remind).id("tea").after(Duration::from_secs(180)).await?;
/// assert_eq!(t.cancel("coffee").await?, Cancel::NotFound);
/// t.advance(Duration::from_secs(180)).await;
/// assert_eq!(t.cancel("tea").await?, Cancel::TooLate);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancel {
    /// The message was cancelled and will not be delivered.
    Cancelled,
    /// The message was already forwarded or delivered.
    TooLate,
    /// The id is unknown, or its record has expired.
    NotFound,
}

/// The result of [`Bus::reschedule`].
///
/// ```
/// # use dwell::prelude::*;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().start("memory://").await?;
/// match bus.reschedule("reminder-42", std::time::Duration::from_secs(3600)).await? {
///     Reschedule::Rescheduled => println!("due in an hour"),
///     Reschedule::TooLate => println!("already delivered"),
///     Reschedule::NotFound => println!("unknown id"),
/// }
/// # assert_eq!(
/// #     bus.reschedule("reminder-42", std::time::Duration::ZERO).await?,
/// #     Reschedule::NotFound
/// # );
/// # bus.shutdown().await }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reschedule {
    /// The message has the new due time.
    Rescheduled,
    /// The message was already forwarded or delivered.
    TooLate,
    /// The id is unknown, or its record has expired.
    NotFound,
}

impl Bus {
    /// Cancels the pending messages with this id, in every topic and subscription.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(remind)).await?;
    /// t.send(Remind { order: 42 }).id("reminder-42").after(Duration::from_secs(900)).await?;
    /// assert_eq!(t.cancel("reminder-42").await?, Cancel::Cancelled);
    /// t.advance(Duration::from_secs(900)).await;
    /// assert_eq!(t.handled::<Remind>(), 0);
    /// # Ok(()) }
    /// ```
    pub async fn cancel(&self, id: impl Into<MessageId>) -> Result<Cancel> {
        Ok(match self.engine()?.cancel(&id.into()).await? {
            Changed::Done => Cancel::Cancelled,
            Changed::TooLate => Cancel::TooLate,
            Changed::NotFound => Cancel::NotFound,
        })
    }

    /// Sets the due time of the pending messages with this id: a [`Duration`](std::time::Duration)
    /// from now, or a time.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(remind)).await?;
    /// let sent = t.send(Remind { order: 42 }).after(Duration::from_secs(900)).await?;
    /// t.reschedule(&sent.id, Duration::from_secs(60)).await?;
    /// t.advance(Duration::from_secs(60)).await;
    /// assert_eq!(t.handled::<Remind>(), 1);
    /// # Ok(()) }
    /// ```
    pub async fn reschedule(&self, id: impl Into<MessageId>, due: impl Into<Due>) -> Result<Reschedule> {
        Ok(match self.engine()?.reschedule(&id.into(), due.into()).await? {
            Changed::Done => Reschedule::Rescheduled,
            Changed::TooLate => Reschedule::TooLate,
            Changed::NotFound => Reschedule::NotFound,
        })
    }

    /// Returns the records of a message, one for each subscription that has or had it. The list is
    /// empty if the id is unknown. On a transport without a ledger, returns the records of the
    /// store, or `Unsupported` if there are none.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().handle(remind).start("memory://").await?;
    /// let sent = bus.send(Remind { order: 42 }).after(Duration::from_secs(900)).await?;
    /// let records = bus.get(&sent.id).await?;
    /// assert_eq!((records[0].state, records[0].due), (raw::State::Scheduled, sent.due));
    /// # bus.shutdown().await }
    /// ```
    pub async fn get(&self, id: impl Into<MessageId>) -> Result<Vec<Record>> {
        self.inner().monitor.get(&id.into()).await
    }

    /// Returns pending messages in order of due time, one page at a time.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw::Query};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().handle(remind).start("memory://").await?;
    /// bus.send(Remind { order: 42 }).key("alice").after(Duration::from_secs(900)).await?;
    /// let of_alice = bus.pending(Query { key: Some("alice".into()), ..Query::default() }).await?;
    /// assert_eq!(of_alice.len(), 1);
    /// # bus.shutdown().await }
    /// ```
    pub async fn pending(&self, query: Query) -> Result<Vec<Pending>> {
        self.engine()?.pending(query).await
    }

    /// Returns the monitor, which lists messages in flight, pending messages and dead letters, and
    /// can delete or replay them.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge { order: u64 }
    /// async fn charge(_: Charge) -> Result<(), Failure> {
    ///     Err(Failure::reject("the card is declined"))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(charge)).await?;
    /// # t.send(Charge { order: 42 }).id("charge-42").await?;
    /// # t.run_until_idle().await;
    /// let dead = t.monitor().dead(10).await?;
    /// assert_eq!(dead[0].error.as_deref(), Some("the card is declined"));
    /// t.monitor().replay("charge-42", None, "alice").await?; // the customer has a new card
    /// # Ok(()) }
    /// ```
    pub fn monitor(&self) -> &Monitor {
        &self.inner().monitor
    }
}
