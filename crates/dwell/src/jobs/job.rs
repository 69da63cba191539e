//! One job, as its record tells it.

use super::Status;
use bytes::Bytes;
use dwell_core::{
    ContentType, Error, ErrorKind, JOB_TOPIC, MessageId, Record, Result, State, Text, Timestamp, Transition,
    wire,
};
use serde::{Serialize, de::DeserializeOwned};

/// One job. As JSON it has neither payload nor result: these are asked for on their own.
///
/// ```
/// # use dwell::{jobs::Status, prelude::*};
/// # use std::time::Duration;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "reports.build")]
/// # struct Build { month: u32 }
/// async fn build(job: Build) -> Result<String, Failure> {
///     if job.month > 12 { Err(Failure::reject("there is no such month")) } else { Ok("a report".into()) }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().job(build)).await?;
/// # let jobs = t.jobs()?;
/// let id = jobs.submit(Build { month: 13 }).await?.id;
/// t.run_until_idle().await;
/// let job = jobs.get(&id).await?.expect("it is kept");
/// assert_eq!((job.status, job.error.as_deref()), (Status::Failed, Some("there is no such month")));
/// assert_eq!(job.payload, r#"{"month":13}"#);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Job {
    /// Its id.
    pub id: MessageId,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: Text,
    /// Where it stands.
    pub status: Status,
    /// How often it has failed.
    pub retry_count: u32,
    /// How many failures are tried again: its own limit, else its type's where that is known here.
    pub max_retries: Option<u32>,
    /// How often a worker lost it without saying what became of it, since it last failed or was deferred.
    pub lost_count: u32,
    /// When it is, or was, to run.
    #[serde(rename = "due_at")]
    pub run_at: Option<Timestamp>,
    /// Who has it, or had it last. As long as it is in progress, that is the name by which the transport knows a worker; from then on, the
    /// one that it was claimed by.
    pub worker: Option<Text>,
    /// Until when that one has it, unless it says that it is still at work.
    pub lease_until: Option<Timestamp>,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When its last attempt started. `None` before the first one, and while the job waits between attempts in a store
    /// (`delay = "scheduler"`): the store's record begins when the job is stored.
    pub started_at: Option<Timestamp>,
    /// When it was completed, given up or cancelled.
    pub completed_at: Option<Timestamp>,
    /// Why its last attempt failed; nothing once it is completed.
    pub error: Option<Text>,
    /// What it was submitted with.
    #[serde(skip)]
    pub payload: Bytes,
    /// What the payload is.
    #[serde(skip)]
    pub content_type: ContentType,
    /// What came out, as JSON.
    #[serde(skip)]
    pub result: Option<Bytes>,
    /// Its past, oldest first, as far as the transport keeps it.
    #[serde(skip)]
    pub history: Vec<Transition>,
}

impl Job {
    /// The job of a record; `None` if that is of another message. `max_retries` is its type's.
    pub(super) fn of(
        record: Record,
        max_retries: impl FnOnce(&str) -> Option<u32>,
        now: Timestamp,
    ) -> Option<Self> {
        let kind: Text = record.topic.strip_prefix(JOB_TOPIC)?.into();
        let message = record.message;
        let number = |name| message.headers.get_text(name).and_then(|text| text.parse::<u32>().ok());
        let status = match record.state {
            // Its worker is gone, and nobody has come for it yet.
            State::Processing if record.lease_until.is_some_and(|until| until <= now) => Status::Queued,
            state => Status::from(state),
        };
        let started = record.history.iter().rfind(|past| past.state == State::Processing);
        let error = record.error.or_else(|| message.headers.get_text(wire::LAST_ERROR).map(Text::from));
        let lost = number(wire::LOST_COUNT).unwrap_or(0);
        let crashes = match record.state {
            State::Processing | State::Ready => {
                record.deliveries.saturating_sub(u32::from(status == Status::InProgress))
            }
            _ => 0,
        };
        Some(Self {
            status,
            retry_count: message.attempts.failed,
            max_retries: number(wire::MAX_RETRIES).or_else(|| max_retries(&kind)),
            lost_count: lost.saturating_add(crashes),
            run_at: record.due,
            worker: record.worker,
            lease_until: record.lease_until.filter(|_| status == Status::InProgress),
            created_at: record.created_at,
            started_at: started.map(|started| started.at),
            completed_at: status.is_final().then_some(record.updated_at),
            error: error.filter(|_| status != Status::Completed),
            result: record.result,
            history: record.history,
            id: message.id.clone(),
            payload: message.body.clone(),
            content_type: message.content_type.clone(),
            kind,
        })
    }

    /// What came out, read as a type; `None` while nothing has.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "sums.add")]
    /// # struct Add(u64, u64);
    /// # async fn add(job: Add) -> Result<u64, Failure> { Ok(job.0 + job.1) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().job(add)).await?;
    /// # let jobs = t.jobs()?;
    /// let id = jobs.submit(Add(20, 22)).await?.id;
    /// assert_eq!(jobs.get(&id).await?.unwrap().result_as::<u64>()?, None);
    /// t.run_until_idle().await;
    /// assert_eq!(jobs.get(&id).await?.unwrap().result_as::<u64>()?, Some(42));
    /// # Ok(()) }
    /// ```
    pub fn result_as<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let Some(result) = &self.result else { return Ok(None) };
        serde_json::from_slice(result).map(Some).map_err(|error| {
            let text = format!("the result of the job {} cannot be read as the type asked for", self.id);
            Error::new(ErrorKind::Invalid, text).with_source(error)
        })
    }
}
