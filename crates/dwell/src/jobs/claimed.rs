//! A job in one's own hands.

use super::{Jobs, claim::Hold, handler::completed};
use crate::{Cx, Failure};
use bytes::Bytes;
use dwell_core::{
    ContentType, Delivery, Error, ErrorKind, LeaseId, Message, MessageId, Receipt, Result, Text, Timestamp,
    TypeName,
};
use dwell_engine::Verdict;
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr, time::Duration};

/// One attempt at one job: a token that no other attempt ever has. Only the newest can change its
/// job.
///
/// ```
/// use dwell::jobs::Attempt;
///
/// # fn main() -> Result<(), dwell::Error> {
/// let attempt: Attempt = "2a-7".parse()?; // as a worker over HTTP gives it back
/// assert_eq!(attempt.to_string(), "2a-7");
/// assert!("no token".parse::<Attempt>().is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt(LeaseId);

impl Attempt {
    /// That of the run of a handler, to tell it from others outside of Dwell.
    ///
    /// ```
    /// # use dwell::{jobs::Attempt, prelude::*, testing};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// /// Two attempts never write the same file, even if a worker that was given up goes on.
    /// async fn build(job: Build, cx: Cx) -> Result<String, Failure> {
    ///     Ok(format!("report-{}-{}.pdf", job.month, Attempt::of(&cx)))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// assert_eq!(build(Build { month: 12 }, testing::cx().clone()).await.unwrap(), "report-12-0-1.pdf");
    /// # }
    /// ```
    pub fn of(cx: &Cx) -> Self {
        Self(cx.lease())
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.0.position, self.0.fence)
    }
}

impl FromStr for Attempt {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let parts =
            text.split_once('-').and_then(|(position, fence)| Some((number(position)?, number(fence)?)));
        let (position, fence) = parts.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "this is not the token of an attempt: give it as it was claimed")
        })?;
        Ok(Self(LeaseId { position, fence }))
    }
}

impl Serialize for Attempt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A job in your hands until you say what became of it, or its lease runs out. Dropped without a
/// word, it comes back as one that a worker lost.
///
/// ```
/// # use dwell::{jobs::Status, prelude::*};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().start("memory://").await?;
/// let jobs = bus.jobs()?;
/// jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
/// let job = jobs.claim(["sums.add"]).worker("w1").await?.pop().expect("it is due");
/// assert_eq!((&**job.kind(), &**job.worker(), job.retry_count()), ("sums.add", "w1", 0));
/// let numbers: Vec<u64> = serde_json::from_slice(job.payload()).unwrap();
/// job.complete(&numbers.iter().sum::<u64>()).await?;
/// assert_eq!(jobs.get("sum").await?.unwrap().status, Status::Completed);
/// # bus.shutdown().await }
/// ```
#[must_use = "a job that is claimed and never settled comes back when its lease runs out"]
pub struct Claimed {
    jobs: Jobs,
    hold: Hold,
    delivery: Delivery,
    lease_until: Timestamp,
}

impl Claimed {
    pub(super) fn new(jobs: Jobs, hold: Hold, delivery: Delivery) -> Self {
        let lease_until = hold.until();
        Self { jobs, hold, delivery, lease_until }
    }

    fn message(&self) -> &Message {
        &self.delivery.message
    }

    /// The job's id.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let job = jobs.claim(["sums.add"]).worker("w1").await?.remove(0);
    /// assert_eq!(job.id(), &"sum".into());
    /// # Ok(()) }
    /// ```
    pub fn id(&self) -> &MessageId {
        &self.message().id
    }

    /// Its type.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let job = jobs.claim(["sums.add"]).worker("w1").await?.remove(0);
    /// assert_eq!(&**job.kind(), "sums.add");
    /// # Ok(()) }
    /// ```
    pub fn kind(&self) -> &TypeName {
        &self.message().kind
    }

    /// What it was submitted with.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let job = jobs.claim(["sums.add"]).worker("w1").await?.remove(0);
    /// assert_eq!(&job.payload()[..], b"[20,22]");
    /// # Ok(()) }
    /// ```
    pub fn payload(&self) -> &Bytes {
        &self.message().body
    }

    /// What the payload is.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw::ContentType};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let job = jobs.claim(["sums.add"]).worker("w1").await?.remove(0);
    /// assert_eq!(job.content_type(), &ContentType::JSON);
    /// # Ok(()) }
    /// ```
    pub fn content_type(&self) -> &ContentType {
        &self.message().content_type
    }

    /// How often it has failed before.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let job = jobs.claim(["sums.add"]).worker("w1").await?.remove(0);
    /// job.fail("the numbers are too large").await?;
    /// # t.advance(Duration::from_secs(60)).await;
    /// let job = jobs.claim(["sums.add"]).await?.remove(0); // after a while
    /// assert_eq!(job.retry_count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn retry_count(&self) -> u32 {
        self.message().attempts.failed
    }

    /// The token of this attempt.
    ///
    /// ```
    /// # use dwell::{jobs::Attempt, prelude::*};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let job = jobs.claim(["sums.add"]).worker("w1").await?.remove(0);
    /// let token = job.attempt().to_string(); // for a worker elsewhere, who gives it back
    /// assert_eq!(token.parse::<Attempt>()?, job.attempt());
    /// # Ok(()) }
    /// ```
    pub fn attempt(&self) -> Attempt {
        Attempt(self.delivery.receipt.lease())
    }

    /// Who works on it.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let job = jobs.claim(["sums.add"]).worker("w1").await?.remove(0);
    /// assert_eq!(&**job.worker(), "w1");
    /// # Ok(()) }
    /// ```
    pub fn worker(&self) -> &Text {
        self.hold.worker()
    }

    /// Until when it is ours without a heartbeat.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let job = jobs.claim(["sums.add"]).worker("w1").await?.remove(0);
    /// assert_eq!(job.lease_until(), t.now().after(Duration::from_secs(30)));
    /// # Ok(()) }
    /// ```
    pub fn lease_until(&self) -> Timestamp {
        self.lease_until
    }

    /// Says that it is still being worked on: it is ours for another lease from now, or for
    /// `lease`. `Stale` if it is somebody else's by now.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").await?;
    /// let mut job = jobs.claim(["sums.add"]).lease(Duration::from_secs(60)).await?.pop().expect("it is due");
    /// let until = job.heartbeat(Some(Duration::from_secs(600))).await?; // this may take some time
    /// assert_eq!(until, t.now().after(Duration::from_secs(600)));
    /// # Ok(()) }
    /// ```
    pub async fn heartbeat(&mut self, lease: Option<Duration>) -> Result<Timestamp> {
        self.lease_until = self.extend(lease).await?;
        Ok(self.lease_until)
    }

    /// The same for one that is shared.
    pub(crate) async fn extend(&self, lease: Option<Duration>) -> Result<Timestamp> {
        self.hold.extend(self.delivery.receipt.lease(), lease).await
    }

    /// Done: its result is kept in the same step. `Stale`, and nothing is changed, if it is
    /// somebody else's by now. A result that is too large is an error, and the job is given up:
    /// another run would come to the same.
    ///
    /// ```
    /// # use dwell::{ErrorKind, prelude::*};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder()).await?;
    /// # let jobs = t.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").await?;
    /// let slow = jobs.claim(["sums.add"]).lease(Duration::from_secs(60)).await?.pop().expect("it is due");
    /// t.advance(Duration::from_secs(61)).await; // without a heartbeat
    /// # jobs.claim(["sums.add"]).await?;
    /// let refused = slow.complete(&42).await.unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::Stale, "the job goes to somebody else");
    /// # Ok(()) }
    /// ```
    pub async fn complete(self, result: &impl Serialize) -> Result<()> {
        self.try_complete(result).await
    }

    /// The same. After an error that is not `Stale`, it can be tried again.
    pub(crate) async fn try_complete(&self, result: &impl Serialize) -> Result<()> {
        match completed(result, self.jobs.book().max_result()) {
            Ok(verdict) => self.settle(verdict).await,
            Err(error) => {
                self.settle(Verdict::Reject(error.to_string().into())).await?;
                Err(error)
            }
        }
    }

    /// Not done. An error is tried again with backoff, up to the limit of the job; a [`Failure`]
    /// made on purpose defers, rejects or releases it.
    ///
    /// ```
    /// # use dwell::{jobs::Status, prelude::*};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// # let jobs = bus.jobs()?;
    /// # jobs.submit_raw("sums.add", "application/json", "[20,22]").id("sum").await?;
    /// let job = jobs.claim(["sums.add"]).await?.pop().expect("it is due");
    /// job.fail("the calculator is busy").await?; // tried again, with backoff
    /// assert_eq!(jobs.get("sum").await?.unwrap().status, Status::Scheduled);
    /// # bus.shutdown().await }
    /// ```
    pub async fn fail(self, why: impl Into<Failure>) -> Result<()> {
        self.try_fail(why).await
    }

    /// The same. After an error that is not `Stale`, it can be tried again.
    pub(crate) async fn try_fail(&self, why: impl Into<Failure>) -> Result<()> {
        self.settle(why.into().into_verdict()).await
    }

    /// Settles a copy: what the rules write into one that was not settled must not count twice.
    /// That it is settled at most once is up to its fence.
    async fn settle(&self, verdict: Verdict) -> Result<()> {
        let Delivery { message, deliveries, due, problem, receipt } = &self.delivery;
        let LeaseId { position, fence } = receipt.lease();
        let delivery = Delivery {
            message: message.clone(),
            deliveries: *deliveries,
            due: *due,
            problem: problem.clone(),
            receipt: Receipt::new(position, fence).with_identity(receipt.identity()),
        };
        self.hold.settle(delivery, verdict, self.jobs.bus().runtime()).await
    }
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed")
            .field("id", &self.id().0)
            .field("kind", self.kind())
            .field("attempt", &format_args!("{}", self.attempt()))
            .finish_non_exhaustive()
    }
}
