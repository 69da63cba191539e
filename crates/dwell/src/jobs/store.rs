//! The jobs of a bus.

use super::{Book, Claim, Job, Submitted, Submitting, topic_of};
use crate::{
    bus::{Bus, Cancel},
    message::Command,
};
use bytes::Bytes;
use dwell_core::{
    Change, Changed, ContentType, Error, ErrorKind, Ledger, MessageId, Of, Record, Result, Text, is_job_topic,
};
use dwell_engine::Engine;
use serde::Serialize;
use std::{fmt, sync::Arc};

/// The jobs of a bus: to submit, to ask for, to cancel. Cheap to clone. Made by [`Bus::jobs`].
///
/// ```
/// # use dwell::{jobs::Status, prelude::*};
/// # use std::time::Duration;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "sums.add")]
/// # struct Add(u64, u64);
/// # async fn add(job: Add) -> Result<u64, Failure> { Ok(job.0 + job.1) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().job(add)).await?;
/// let jobs = t.jobs()?;
/// let now = jobs.submit(Add(1, 2)).await?;
/// let later = jobs.submit(Add(3, 4)).after(Duration::from_secs(60)).await?;
/// t.run_until_idle().await;
/// assert_eq!(jobs.get(now.id).await?.unwrap().status, Status::Completed);
/// assert_eq!(jobs.get(&later.id).await?.unwrap().status, Status::Scheduled);
/// assert_eq!(jobs.cancel(later.id).await?, Cancel::Cancelled);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Jobs {
    bus: Bus,
    ledger: Arc<dyn Ledger>,
}

/// The answer to [`Jobs::retry`].
///
/// ```
/// # use dwell::{jobs::Retry, prelude::*};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().start("memory://").await?;
/// match bus.jobs()?.retry("report-12").await? {
///     Retry::Retried => println!("it runs again"),
///     Retry::NotFailed => println!("it needs no second run"),
///     Retry::NotFound => println!("there is no such job"),
/// }
/// # assert_eq!(bus.jobs()?.retry("report-12").await?, Retry::NotFound);
/// # bus.shutdown().await }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// It runs again, with its counts anew.
    Retried,
    /// It has not failed.
    NotFailed,
    /// Never known, or longer ago than finished jobs are kept.
    NotFound,
}

impl Bus {
    /// The jobs of this bus. An error where the transport, or the store behind it, keeps no ledger: jobs are records of
    /// both.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = dwell::Bus::builder().start("memory://").await?;
    /// assert!(bus.jobs()?.get("report-12").await?.is_none());
    /// # bus.shutdown().await }
    /// ```
    pub fn jobs(&self) -> Result<Jobs> {
        let ledger = self.engine()?.ledger().ok_or_else(no_ledger)?;
        Ok(Jobs { bus: self.clone(), ledger })
    }
}

/// What to use for jobs instead.
pub(crate) fn no_ledger() -> Error {
    let text = "jobs need a ledger, which keeps their status and result, and the transport of this bus, or its `[scheduler] \
                url`, has none: use `memory://`, `sqlite://dwell.db` or `redis://` without `ledger=false` for a bus with \
                jobs";
    Error::new(ErrorKind::Config, text)
}

impl Jobs {
    pub(super) fn bus(&self) -> &Bus {
        &self.bus
    }

    pub(super) fn ledger(&self) -> &Arc<dyn Ledger> {
        &self.ledger
    }

    pub(super) fn engine(&self) -> Result<&Engine> {
        self.bus.engine()
    }

    pub(super) fn book(&self) -> &Book {
        self.bus.book()
    }

    /// Submits a job, now or for later.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let jobs = bus.jobs()?;
    /// let submitted = jobs.submit(Build { month: 12 }).id("report-12").after(Duration::from_secs(60)).await?;
    /// assert_eq!((submitted.id, submitted.duplicate), ("report-12".into(), false));
    /// # bus.shutdown().await }
    /// ```
    pub fn submit<M: Command>(&self, job: M) -> Submitting {
        Submitting::of(self, &job)
    }

    /// Submits a job that has no Rust type here. Where its type has a handler here, its payload must be one that the
    /// handler can read.
    ///
    /// ```
    /// # use dwell::{ErrorKind, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// # async fn build(_: Build) -> Result<(), Failure> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().job(build).start("memory://").await?;
    /// let jobs = bus.jobs()?;
    /// jobs.submit_raw("reports.build", "application/json", r#"{"month":12}"#).await?;
    /// let refused = jobs.submit_raw("reports.build", "application/json", r#"{"year":2026}"#).await;
    /// assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    /// # bus.shutdown().await }
    /// ```
    pub fn submit_raw(
        &self,
        kind: impl AsRef<str>,
        content_type: impl Into<ContentType>,
        payload: impl Into<Bytes>,
    ) -> Submitting {
        let (kind, content_type, payload) = (kind.as_ref(), content_type.into(), payload.into());
        let checked = self.book().check(kind, &content_type, &payload);
        Submitting::new(self, kind, content_type, checked.map(|()| payload))
    }

    /// Submits several in one call: one result each, in order; each fails alone.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct BuildReport { month: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let jobs = bus.jobs()?;
    /// let year = (1..=12).map(|month| jobs.submit(BuildReport { month }).id(format!("report-{month}")));
    /// let submitted = jobs.submit_all(year).await;
    /// assert!(submitted.iter().all(Result::is_ok));
    /// # bus.shutdown().await }
    /// ```
    pub async fn submit_all(&self, all: impl IntoIterator<Item = Submitting>) -> Vec<Result<Submitted>> {
        Submitting::submit_all(&self.bus, all.into_iter().collect()).await
    }

    /// The types that this bus works on.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build;
    /// # async fn build(_: Build) -> Result<(), Failure> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = Bus::builder().job(build).start("memory://").await?;
    /// assert!(bus.jobs()?.kinds().eq(["reports.build"]));
    /// # bus.shutdown().await }
    /// ```
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.book().kinds().map(|kind| &**kind)
    }

    /// The largest payload, in bytes, that the transport carries.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = dwell::Bus::builder().max_job_result(4096).start("memory://?max_body=65536").await?;
    /// let jobs = bus.jobs()?;
    /// assert_eq!((jobs.max_payload(), jobs.max_result()), (65536, 4096));
    /// # bus.shutdown().await }
    /// ```
    pub fn max_payload(&self) -> usize {
        self.engine().map_or(0, |engine| engine.capabilities().max_body)
    }

    /// The largest result, in bytes, that is kept.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = dwell::Bus::builder().max_job_result(4096).start("memory://").await?;
    /// assert_eq!(bus.jobs()?.max_result(), 4096);
    /// # bus.shutdown().await }
    /// ```
    pub fn max_result(&self) -> usize {
        self.book().max_result()
    }

    /// The clock that jobs are timed by here.
    #[cfg(feature = "axum")]
    pub(crate) fn now(&self) -> dwell_core::Timestamp {
        self.bus.seams().clock.now()
    }

    /// One job, with its past. `None` if it was never known, or is over for longer than finished jobs are kept.
    ///
    /// ```
    /// # use dwell::{jobs::Status, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let jobs = bus.jobs()?;
    /// jobs.submit(Build).id("report-12").await?;
    /// let job = jobs.get("report-12").await?.expect("it was submitted");
    /// assert_eq!((job.status, job.retry_count), (Status::Queued, 0));
    /// assert!(jobs.get("report-13").await?.is_none());
    /// # bus.shutdown().await }
    /// ```
    pub async fn get(&self, id: impl Into<MessageId>) -> Result<Option<Job>> {
        let record = self.find(&id.into()).await?;
        Ok(record.and_then(|record| self.job(record)))
    }

    fn job(&self, record: Record) -> Option<Job> {
        Job::of(record, |kind| self.book().max_retries(kind), self.bus.seams().clock.now())
    }

    /// The record of a job, and whether there are other messages with its id. An id that is submitted again after it was
    /// forgotten has several: the last one counts.
    async fn find(&self, id: &MessageId) -> Result<Option<Record>> {
        let records = self.ledger.get(id).await?;
        Ok(records.into_iter().rfind(|record| is_job_topic(&record.topic)))
    }

    /// Cancels a job that no worker has. One that runs or is over is `TooLate`.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let jobs = bus.jobs()?;
    /// jobs.submit(Build).id("report-12").await?;
    /// assert_eq!(jobs.cancel("report-12").await?, Cancel::Cancelled, "no worker has it yet");
    /// assert!(jobs.claim(["reports.build"]).await?.is_empty());
    /// # bus.shutdown().await }
    /// ```
    pub async fn cancel(&self, id: impl Into<MessageId>) -> Result<Cancel> {
        let id = id.into();
        let Some(record) = self.find(&id).await? else { return Ok(Cancel::NotFound) };
        if record.state == dwell_core::State::Cancelled {
            return Ok(Cancel::Cancelled);
        }
        Ok(match self.change(&record, Change::Cancel).await? {
            Changed::Done => Cancel::Cancelled,
            Changed::TooLate => Cancel::TooLate,
            Changed::NotFound => Cancel::NotFound,
        })
    }

    /// Runs a failed job again, with its counts anew; its past stays.
    ///
    /// ```
    /// # use dwell::{jobs::{Retry, Status}, prelude::*};
    /// # use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build;
    /// # async fn build(_: Build, State(has_data): State<Arc<AtomicBool>>) -> Result<(), Failure> {
    /// #     if has_data.load(Ordering::Relaxed) { Ok(()) } else { Err(Failure::reject("there is no data")) }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let has_data = Arc::new(AtomicBool::new(false));
    /// # let t = dwell::testing::start(Bus::builder().state(has_data.clone()).job(build)).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit(Build).id("report-12").await?;
    /// # t.run_until_idle().await;
    /// assert_eq!(jobs.get("report-12").await?.unwrap().status, Status::Failed);
    /// # has_data.store(true, Ordering::Relaxed);
    /// assert_eq!(jobs.retry("report-12").await?, Retry::Retried);
    /// # t.run_until_idle().await;
    /// assert_eq!(jobs.get("report-12").await?.unwrap().status, Status::Completed);
    /// # Ok(()) }
    /// ```
    pub async fn retry(&self, id: impl Into<MessageId>) -> Result<Retry> {
        let id = id.into();
        let Some(record) = self.find(&id).await? else { return Ok(Retry::NotFound) };
        Ok(match self.change(&record, Change::Replay(None)).await? {
            Changed::Done => Retry::Retried,
            Changed::TooLate => Retry::NotFailed,
            Changed::NotFound => Retry::NotFound,
        })
    }

    /// Its id may be that of a message which is no job as well: that one is left alone.
    async fn change(&self, job: &Record, change: Change) -> Result<Changed> {
        let (id, by) = (&job.message.id, &self.bus.seams().instance);
        let mut answers = self.ledger.change(id, Of::record(job), change.clone(), by).await?;
        // It came due in between, and has another record now.
        if answers.is_empty()
            && let Some(job) = self.find(id).await?
        {
            answers = self.ledger.change(id, Of::record(&job), change, by).await?;
        }
        Ok(answers.into_iter().fold(Changed::NotFound, |best, answer| match (best, answer.changed) {
            (Changed::Done, _) | (_, Changed::Done) => Changed::Done,
            (Changed::TooLate, _) | (_, Changed::TooLate) => Changed::TooLate,
            _ => Changed::NotFound,
        }))
    }

    /// Takes jobs of these types into your own hands, for a worker that is no handler of this bus.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let jobs = bus.jobs()?;
    /// jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// for job in jobs.claim(["sums.add", "sums.multiply"]).max(10).await? {
    ///     job.complete(&42).await?;
    /// }
    /// assert_eq!(jobs.get("sum").await?.unwrap().result_as()?, Some(42));
    /// # bus.shutdown().await }
    /// ```
    pub fn claim<K: Into<Text>>(&self, kinds: impl IntoIterator<Item = K>) -> Claim {
        Claim::new(self.clone(), kinds.into_iter().map(Into::into).collect())
    }

    /// The topic that jobs of a type are on, for the ledger, the monitor and the configuration.
    ///
    /// ```
    /// use dwell::jobs::Jobs;
    ///
    /// assert_eq!(&*Jobs::topic_of("reports.build"), "job.reports.build");
    /// ```
    pub fn topic_of(kind: &str) -> Text {
        topic_of(kind)
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").finish_non_exhaustive()
    }
}
