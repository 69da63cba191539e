//! Endpoints for jobs, to add to an [axum](https://docs.rs/axum) service of your own.
//!
//! ```
//! use axum::{Json, Router, extract::State as App, routing::post};
//! use dwell::{axum::{Accepted, IdempotencyKey, JobRoutes, Problem}, jobs::Jobs, prelude::*};
//!
//! #[derive(Command, Serialize, Deserialize)]
//! #[message(name = "sums.add")]
//! struct Add { numbers: Vec<u64> }
//!
//! async fn add(job: Add) -> Result<u64, Failure> { Ok(job.numbers.iter().sum()) }
//!
//! // An endpoint of your own: 202 Accepted, and where to ask for the job.
//! async fn submit(App(jobs): App<Jobs>, key: IdempotencyKey, Json(job): Json<Add>) -> Result<Accepted, Problem> {
//!     Ok(jobs.submit(job).id_if_given(key.0).await?.into())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
//! let bus = Bus::builder().job(add).start("memory://").await?;
//! let jobs = bus.jobs()?;
//! let app: Router = Router::new()
//!     .route("/sums", post(submit))
//!     .with_state(jobs.clone())
//!     .merge(JobRoutes::new(jobs).router());    // POST /v1/jobs, GET and DELETE /v1/jobs/{id}, …
//! # drop(app); bus.shutdown().await }
//! ```
//!
//! | call | answer |
//! |---|---|
//! | `POST /v1/jobs` `{type, payload, delay \| due_at, max_retries, id, key}` | `202`, `Location`, `Retry-After`; `200` with `duplicate: true` and where it stands if the id was submitted before with the same content |
//! | `GET /v1/jobs/{id}` | where it stands; `Retry-After` while it is not over |
//! | `GET /v1/jobs/{id}/result` | `200` and the result; `202` while there is none; `409 conflict` if there never will be |
//! | `DELETE /v1/jobs/{id}` | cancels what no worker has; `409 too_late` |
//! | `POST /v1/jobs/{id}/retry` | `202`, a failed job runs again; `409 conflict` for any other |
//!
//! With [`JobRoutes::workers`] also, for workers in any language:
//!
//! | call | answer |
//! |---|---|
//! | `POST /v1/jobs/claim` `{types, max, wait, lease, worker}` | `{jobs: […]}`, each with its `attempt` token |
//! | `POST /v1/jobs/{id}/heartbeat` `{attempt, lease}` | `{lease_until}` |
//! | `POST /v1/jobs/{id}/complete` `{attempt, result}` | `{status}` |
//! | `POST /v1/jobs/{id}/fail` `{attempt, error}` | `{status}`: the retry policy decides |
//!
//! A token that is not the newest is `409 stale_receipt`, and changes nothing. Times are milliseconds since 1970. Errors are
//! problem documents (RFC 9457). There is no authentication in here: that is a layer of your own service.

mod accepted;
mod fields;
mod key;
mod problem;
mod routes;
mod workers;

pub use accepted::Accepted;
pub use key::IdempotencyKey;
pub use problem::{FieldProblem, Problem};
pub use routes::JobRoutes;

/// Where jobs are, unless the service has them elsewhere.
const PATH: &str = "/v1/jobs";
