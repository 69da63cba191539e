//! Jobs: work that somebody asks for now and comes back for later.
//!
//! A job is a message on `job.<type>` in a transport with a ledger, and the ledger is all there is to know about it: where
//! it stands, what it failed with, and what came out. Nothing is kept twice, so nothing can drift apart.
//!
//! ```
//! use dwell::{jobs::Status, prelude::*};
//!
//! #[derive(Command, Serialize, Deserialize)]
//! #[message(name = "sums.add")]
//! struct Add { numbers: Vec<u64> }
//!
//! #[derive(Serialize, Deserialize, Debug, PartialEq)]
//! struct Sum { total: u64 }
//!
//! async fn add(job: Add) -> Result<Sum, Failure> {
//!     Ok(Sum { total: job.numbers.iter().sum() })
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
//! let t = dwell::testing::start(Bus::builder().job(add)).await?;
//! let jobs = t.jobs()?;
//! let id = jobs.submit(Add { numbers: vec![20, 22] }).await?.id;
//! t.run_until_idle().await;
//! let job = jobs.get(&id).await?.expect("it was submitted");
//! assert_eq!(job.status, Status::Completed);
//! assert_eq!(job.result_as::<Sum>()?, Some(Sum { total: 42 }));
//! # Ok(()) }
//! ```
//!
//! What holds for every job:
//!
//! * **A claim is one atomic step** with a fresh attempt token. Whoever holds an older token changes nothing: neither the
//!   result nor the state of a newer attempt.
//! * **The result is written in the same step as the ack.** There is no job that is done without its result, and none with a
//!   result that runs again.
//! * **A crash is not a failure.** What a dead worker held comes back when its lease runs out, waits a while, and has a count
//!   of its own with a limit of its own (`recovery_delay`, `quarantine_after`). Retries are for handlers that say that they
//!   failed.
//! * **Each type has its own queue.** Jobs of a type that nobody works on are in nobody's way.

mod book;
mod claim;
mod claimed;
mod handler;
mod job;
mod status;
mod store;
mod submit;

pub(crate) use book::{Book, Check, Handled};
pub use claim::Claim;
pub use claimed::{Attempt, Claimed};
pub use handler::{IntoJob, JobEnding};
pub use job::Job;
pub use status::Status;
pub(crate) use store::no_ledger;
pub use store::{Jobs, Retry};
pub use submit::{Submitted, Submitting};

use crate::Subscription;
use dwell_core::{JOB_TOPIC, Result, Text, check_topic, check_user_topic};
use std::time::Duration;

/// How long a job waits that a worker lost, before it runs again, unless its settings say otherwise.
const RECOVERY_DELAY: Duration = Duration::from_secs(1);

/// The largest result, in bytes, unless the builder says otherwise.
pub(crate) const MAX_RESULT: usize = 1 << 20;

/// The topic of a type; its only subscription has the same name.
pub(crate) fn topic_of(kind: &str) -> Text {
    format!("{JOB_TOPIC}{kind}").into()
}

/// The subscription of a type, with the defaults of jobs.
pub(crate) fn subscription_of(kind: &str) -> Subscription {
    Subscription::named(topic_of(kind)).with(|settings| settings.recovery_delay = RECOVERY_DELAY)
}

/// Whether this can be the type of a job.
pub(crate) fn check_kind(kind: &str) -> Result<()> {
    check_user_topic(kind)?;
    check_topic(&topic_of(kind))
}
