//! The answer to a submission.

use super::PATH;
use crate::jobs::{Jobs, Status, Submitted};
use ::axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

/// `202 Accepted`, with where to ask for the job in `Location`; `200` if it was submitted before, without a `status`: it may
/// have gone on since. It is what an endpoint of your own returns for a [`Submitted`].
///
/// ```
/// use axum::{Json, extract::State as App, http::StatusCode, response::IntoResponse};
/// use dwell::{axum::{Accepted, Problem}, jobs::Jobs, prelude::*};
///
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "reports.build")]
/// # struct Build { month: u32 }
/// async fn submit(App(jobs): App<Jobs>, Json(job): Json<Build>) -> Result<Accepted, Problem> {
///     Ok(jobs.submit(job).id("report-12").await?.into())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().start("memory://").await?;
/// let response = submit(App(bus.jobs()?), Json(Build { month: 12 })).await.into_response();
/// assert_eq!(response.status(), StatusCode::ACCEPTED);
/// assert_eq!(response.headers()["location"], "/v1/jobs/report-12");
/// # bus.shutdown().await }
/// ```
#[derive(Clone, Debug)]
pub struct Accepted {
    submitted: Submitted,
    path: String,
    /// Where it stands, if that is known.
    status: Option<Status>,
}

impl From<Submitted> for Accepted {
    fn from(submitted: Submitted) -> Self {
        let status = match (submitted.duplicate, submitted.run_at) {
            (true, _) => None,
            (false, None) => Some(Status::Queued),
            (false, Some(_)) => Some(Status::Scheduled),
        };
        Self { submitted, path: PATH.to_owned(), status }
    }
}

impl Accepted {
    /// The jobs are below this path, and not below `/v1/jobs`: where [`JobRoutes`](super::JobRoutes) is nested.
    ///
    /// ```
    /// # use axum::response::IntoResponse;
    /// # use dwell::{axum::Accepted, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "reports.build")]
    /// # struct Build { month: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let submitted = bus.jobs()?.submit(Build { month: 12 }).id("report-12").await?;
    /// let response = Accepted::from(submitted).below("/api/v1/jobs").into_response();
    /// assert_eq!(response.headers()["location"], "/api/v1/jobs/report-12");
    /// # bus.shutdown().await }
    /// ```
    #[must_use]
    pub fn below(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// Says where a job stands that was submitted before.
    pub(super) async fn look(mut self, jobs: &Jobs) -> Self {
        if self.submitted.duplicate {
            // It is submitted, whether or not this can be told now.
            let job = jobs.get(&self.submitted.id).await.ok().flatten();
            self.status = job.map(|job| job.status);
        }
        self
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    submitted: &'a Submitted,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

impl IntoResponse for Accepted {
    fn into_response(self) -> Response {
        let Submitted { id, duplicate, .. } = &self.submitted;
        let code = if *duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
        let location = format!("{}/{id}", self.path.trim_end_matches('/'));
        let mut response = json(code, &Answer { submitted: &self.submitted, status: self.status });
        let headers = response.headers_mut();
        if !self.status.is_some_and(Status::is_final) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if let Ok(location) = HeaderValue::try_from(location) {
            headers.insert(header::LOCATION, location);
        }
        response
    }
}

/// A document that is true for now.
pub(super) fn json(status: StatusCode, document: &impl Serialize) -> Response {
    raw_json(status, serde_json::to_vec(document).unwrap_or_default())
}

pub(super) fn raw_json(status: StatusCode, document: impl Into<Body>) -> Response {
    let mut response = Response::new(document.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
