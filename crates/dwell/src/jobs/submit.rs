//! A job that is being submitted.

use super::{Jobs, topic_of};
use crate::{
    bus::Bus,
    codec::{self, Codec},
    message::Command,
    sending::{Sending, Sent},
};
use bytes::Bytes;
use dwell_core::{
    Address, BoxFuture, ContentType, Envelope, Error, ErrorKind, Message, MessageId, Result, Text, Timestamp,
    is_job_topic, wire,
};
use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use std::time::Duration;

/// How many ids are looked for at the same time.
const ASKING: usize = 16;

/// A job on its way. Nothing happens before it is awaited.
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "reports.build")]
/// # struct Build { month: u32 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().start("memory://").await?;
/// let submitted = bus
///     .jobs()?
///     .submit(Build { month: 12 })
///     .id("report-12")
///     .key("customer-7")
///     .after(Duration::from_secs(60))
///     .max_retries(2)
///     .await?;
/// assert!(submitted.run_at.is_some());
/// # bus.shutdown().await }
/// ```
#[must_use = "a job is not submitted until it is awaited"]
#[derive(Debug)]
pub struct Submitting {
    kind: Text,
    sending: Sending,
    chooses_id: bool,
}

/// A job that was submitted, as durably as the transport is.
///
/// ```
/// # use dwell::prelude::*;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "reports.build")]
/// # struct Build { month: u32 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().start("memory://").await?;
/// let submitted = bus.jobs()?.submit(Build { month: 12 }).id("report-12").await?;
/// let json = serde_json::to_value(&submitted).unwrap();
/// assert_eq!(json, serde_json::json!({ "id": "report-12", "type": "reports.build", "due_at": null, "duplicate": false }));
/// # bus.shutdown().await }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Submitted {
    /// Its id: what to ask for it by.
    pub id: MessageId,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: Text,
    /// When it is to run, if not at once.
    #[serde(rename = "due_at")]
    pub run_at: Option<Timestamp>,
    /// The id was submitted before with the same content: nothing was submitted again, and `run_at` is the first one's.
    pub duplicate: bool,
}

impl Submitted {
    fn of(kind: Text, sent: Sent) -> Self {
        Self { id: sent.id, kind, run_at: sent.due, duplicate: sent.duplicate }
    }
}

impl Submitting {
    /// Of a job that has a Rust type.
    pub(super) fn of<M: Command>(jobs: &Jobs, job: &M) -> Self {
        let body = codec::encode(job, "job");
        Self::new(jobs, M::NAME, M::Codec::CONTENT_TYPE, body)
    }

    pub(super) fn new(jobs: &Jobs, kind: &str, content_type: ContentType, body: Result<Bytes>) -> Self {
        let bus = jobs.bus().clone();
        let (kind, topic) = bus.book().names(kind);
        let envelope = body.and_then(|body| {
            let topic = topic?;
            let seams = bus.seams();
            let mut message = Message::new(seams.ids.next(), kind.clone(), body);
            message.content_type = content_type;
            message.sent_at = Some(seams.clock.now());
            Ok(Envelope::new(Address::Topic(topic), message))
        });
        Self { kind, sending: Sending::new(bus, envelope), chooses_id: false }
    }

    fn with(mut self, change: impl FnOnce(Sending) -> Sending) -> Self {
        self.sending = change(self.sending);
        self
    }

    /// Not before this long from now, on the clock of whoever holds it.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// let submitted = t.jobs()?.submit(Build { month: 12 }).after(Duration::from_secs(60)).await?;
    /// assert_eq!(submitted.run_at, Some(t.now().after(Duration::from_secs(60))));
    /// # Ok(()) }
    /// ```
    pub fn after(self, delay: Duration) -> Self {
        self.with(|sending| sending.after(delay))
    }

    /// Not before this time. A past time is at once.
    ///
    /// ```
    /// # use dwell::{Timestamp, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// let new_year = Timestamp::parse("2027-01-01T00:00:00Z")?;
    /// let submitted = t.jobs()?.submit(Build { month: 12 }).at(new_year).await?;
    /// assert_eq!(submitted.run_at, Some(new_year));
    /// # Ok(()) }
    /// ```
    pub fn at(self, time: impl Into<Timestamp>) -> Self {
        self.with(|sending| sending.at(time))
    }

    /// The business key: to find it by, and to keep the order of jobs with the same key.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// t.jobs()?.submit(Build { month: 12 }).key("year-2026").id("report-12").await?;
    /// let record = t.get("report-12").await?.remove(0);
    /// assert_eq!(record.message.key.as_deref(), Some(&b"year-2026"[..]));
    /// # Ok(()) }
    /// ```
    pub fn key(self, key: impl Into<String>) -> Self {
        self.with(|sending| sending.key(key))
    }

    /// An id of your own, which is the idempotency key: the same content under it is one job, however often it is
    /// submitted.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let jobs = bus.jobs()?;
    /// let first = jobs.submit(Build { month: 12 }).id("report-12").await?;
    /// let again = jobs.submit(Build { month: 12 }).id("report-12").await?;
    /// assert_eq!((first.duplicate, again.duplicate), (false, true));
    /// # bus.shutdown().await }
    /// ```
    pub fn id(mut self, id: impl Into<MessageId>) -> Self {
        self.chooses_id = true;
        self.with(|sending| sending.id(id))
    }

    /// The same, where there is an id; else a generated one.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let key: Option<String> = None; // such as a request's idempotency key
    /// let submitted = bus.jobs()?.submit(Build { month: 12 }).id_if_given(key).await?;
    /// assert_eq!(submitted.id.to_string().len(), 36, "a UUID");
    /// # bus.shutdown().await }
    /// ```
    pub fn id_if_given(self, id: Option<impl Into<MessageId>>) -> Self {
        match id {
            Some(id) => self.id(id),
            None => self,
        }
    }

    /// How many failures of this one job are tried again, in place of its type's limit.
    ///
    /// ```
    /// # use dwell::{jobs::Status, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// # async fn build(_: Build) -> Result<(), &'static str> { Err("there is no data") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().job(build)).await?;
    /// # let jobs = t.jobs()?;
    /// jobs.submit(Build { month: 12 }).id("report-12").max_retries(0).await?;
    /// # t.run_until_idle().await;
    /// assert_eq!(jobs.get("report-12").await?.unwrap().status, Status::Failed, "in its only attempt");
    /// # Ok(()) }
    /// ```
    pub fn max_retries(mut self, limit: u32) -> Self {
        if let Ok(envelope) = &mut self.sending.draft.envelope {
            envelope.message.headers.set(wire::MAX_RETRIES, limit.to_string());
        }
        self
    }

    /// One more header. Names that Dwell writes itself are refused.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// t.jobs()?.submit(Build { month: 12 }).header("tenant", "acme").id("report-12").await?;
    /// let record = t.get("report-12").await?.remove(0);
    /// assert_eq!(record.message.headers.get_text("tenant"), Some("acme"));
    /// # Ok(()) }
    /// ```
    pub fn header(self, name: impl Into<Text>, value: impl Into<Bytes>) -> Self {
        self.with(|sending| sending.header(name, value))
    }

    async fn submit(self) -> Result<Submitted> {
        self.prepare().await?;
        let Sending { bus, mut draft } = self.sending;
        let sent = bus.send_one(&mut draft).await?;
        Ok(Submitted::of(self.kind, sent))
    }

    /// Sees to it that it can be sent.
    async fn prepare(&self) -> Result<()> {
        let envelope = self.sending.draft.envelope.as_ref().map_err(Error::again)?;
        let bus = &self.sending.bus;
        let is_only_kind = bus.is_alone() && bus.book().knows_at_most(&self.kind);
        if self.chooses_id && !is_only_kind {
            self.check_id(&envelope.message.id).await?;
        }
        bus.book().provision(bus.engine()?, &self.kind, bus.on_missing()).await
    }

    /// Submits several in one call: one result each, in order; each fails alone.
    pub(super) async fn submit_all(bus: &Bus, all: Vec<Self>) -> Vec<Result<Submitted>> {
        let (mut results, mut places) = (Vec::with_capacity(all.len()), vec![]);
        let mut sendings = vec![];
        // Several ask at the same time, and not so many that others who use the connection have to wait.
        let prepared: Vec<_> = stream::iter(&all).map(Self::prepare).buffered(ASKING).collect().await;
        for (submitting, prepared) in all.into_iter().zip(prepared) {
            if prepared.is_ok() {
                places.push((results.len(), submitting.kind));
                sendings.push(submitting.sending);
            }
            results.push(prepared.map(|()| None));
        }
        for ((place, kind), sent) in places.into_iter().zip(bus.send_all(sendings).await) {
            results[place] = sent.map(|sent| Some(Submitted::of(kind, sent)));
        }
        let unsent = || Error::new(ErrorKind::Unavailable, "the job was not confirmed: submit it again");
        results.into_iter().map(|result| result.and_then(|sent| sent.ok_or_else(unsent))).collect()
    }

    /// A job is asked for by its id alone: two types cannot share one.
    async fn check_id(&self, id: &MessageId) -> Result<()> {
        let topic = topic_of(&self.kind);
        let records = self.sending.bus.jobs()?.ledger().get(id).await?;
        let other = records.iter().find(|record| is_job_topic(&record.topic) && record.topic != topic);
        match other {
            Some(other) => {
                let text = format!(
                    "the id `{id}` is that of a job of type `{}`: choose another for one of type `{}`",
                    other.message.kind, self.kind
                );
                Err(Error::new(ErrorKind::Conflict, text))
            }
            None => Ok(()),
        }
    }
}

impl IntoFuture for Submitting {
    type Output = Result<Submitted>;
    type IntoFuture = BoxFuture<'static, Result<Submitted>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.submit())
    }
}
