//! Submit, ask, cancel: what clients of jobs call.

use super::{
    Accepted, FieldProblem, IdempotencyKey, PATH, Problem,
    accepted::{json, raw_json},
    fields::Fields,
    workers::{self, Held},
};
use crate::{
    Cancel,
    jobs::{Job, Jobs, Retry, Status},
};
use ::axum::{
    Router,
    body::Body,
    extract::{OriginalUri, Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use dwell_core::{Due, Text, suggest};
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc};

/// The endpoints of jobs, for a service of your own: see the [module](super).
///
/// It takes submissions of the types that its bus works on, and of those that [`accept`](Self::accept) names.
///
/// ```
/// use axum::Router;
/// use dwell::{Bus, axum::JobRoutes};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let bus = Bus::builder().start("memory://").await?;
/// let routes = JobRoutes::new(bus.jobs()?)
///     .accept("image.resize") // another process works on them …
///     .workers(); // … and claims them over HTTP
/// let app: Router = Router::new().nest("/api", routes.router());
/// # assert!(app.has_routes());
/// # bus.shutdown().await }
/// ```
#[must_use = "it serves nothing until its router is part of a service"]
#[derive(Clone, Debug)]
pub struct JobRoutes {
    jobs: Jobs,
    /// `None` is any.
    accepts: Option<BTreeSet<Text>>,
    submits: bool,
    workers: bool,
}

/// What the endpoints share.
pub(super) struct Shared {
    pub(super) jobs: Jobs,
    accepts: Option<BTreeSet<Text>>,
    pub(super) held: Held,
}

impl JobRoutes {
    /// Of these jobs.
    ///
    /// ```
    /// # use dwell::{Bus, axum::JobRoutes};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let app: axum::Router = JobRoutes::new(bus.jobs()?).router();
    /// # assert!(app.has_routes());
    /// # bus.shutdown().await }
    /// ```
    pub fn new(jobs: Jobs) -> Self {
        let accepts = Some(jobs.kinds().map(Text::from).collect());
        Self { jobs, accepts, submits: true, workers: false }
    }

    /// Takes jobs of this type as well: another process works on them.
    ///
    /// ```
    /// # use dwell::{Bus, axum::JobRoutes};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let app: axum::Router = JobRoutes::new(bus.jobs()?).accept("image.resize").accept("image.crop").router();
    /// # assert!(app.has_routes());
    /// # bus.shutdown().await }
    /// ```
    pub fn accept(mut self, kind: impl Into<Text>) -> Self {
        if let Some(kinds) = &mut self.accepts {
            kinds.insert(kind.into());
        }
        self
    }

    /// Takes jobs of any type.
    ///
    /// ```
    /// # use dwell::{Bus, axum::JobRoutes};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// // A queue for whoever comes: behind a login.
    /// let app: axum::Router = JobRoutes::new(bus.jobs()?).accept_any().workers().router();
    /// # assert!(app.has_routes());
    /// # bus.shutdown().await }
    /// ```
    pub fn accept_any(mut self) -> Self {
        self.accepts = None;
        self
    }

    /// Leaves out `POST /v1/jobs`: the service has endpoints of its own to submit jobs, and clients choose no payloads.
    ///
    /// ```
    /// # use dwell::{Bus, axum::JobRoutes};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let app: axum::Router = JobRoutes::new(bus.jobs()?).without_submission().router();
    /// # assert!(app.has_routes());
    /// # bus.shutdown().await }
    /// ```
    pub fn without_submission(mut self) -> Self {
        self.submits = false;
        self
    }

    /// Lets workers claim jobs over HTTP as well, of the types that are taken here. Whoever may call these endpoints may
    /// read payloads and write results: protect them.
    ///
    /// ```
    /// # use dwell::{Bus, axum::JobRoutes};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// let workers: axum::Router = JobRoutes::new(bus.jobs()?).accept("image.resize").without_submission().workers().router();
    /// let app = axum::Router::<()>::new().nest("/inside", workers); // with a layer of your own that lets only workers in
    /// # assert!(app.has_routes());
    /// # bus.shutdown().await }
    /// ```
    pub fn workers(mut self) -> Self {
        self.workers = true;
        self
    }

    /// The endpoints, below `/v1/jobs`.
    ///
    /// ```
    /// # use dwell::{Bus, axum::JobRoutes};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().start("memory://").await?;
    /// // Beside what the service has already, whatever its state is.
    /// let app: axum::Router<String> = axum::Router::new().merge(JobRoutes::new(bus.jobs()?).router());
    /// # assert!(app.has_routes());
    /// # bus.shutdown().await }
    /// ```
    pub fn router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        let Self { jobs, accepts, submits, workers } = self;
        let shared = Arc::new(Shared { jobs, accepts, held: Held::default() });
        let mut router = Router::new()
            .route(&format!("{PATH}/{{id}}"), get(status).delete(cancel))
            .route(&format!("{PATH}/{{id}}/result"), get(result))
            .route(&format!("{PATH}/{{id}}/retry"), post(retry));
        if submits {
            router = router.route(PATH, post(submit));
        }
        if workers {
            router = workers::routes(router);
        }
        router.with_state(shared)
    }
}

impl Shared {
    /// Whether jobs of this type are taken here.
    pub(super) fn check_kind(&self, kind: &str, pointer: &str) -> Result<(), FieldProblem> {
        let Some(accepts) = self.accepts.as_ref().filter(|accepts| !accepts.contains(kind)) else {
            return Ok(());
        };
        let shown: String = kind.chars().take(60).flat_map(char::escape_default).collect();
        let hint = suggest(kind, accepts.iter().map(|known| &**known));
        let hint = hint.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        let detail = format!("jobs of type `{shown}` are not taken here{hint}");
        Err(FieldProblem { pointer: pointer.to_owned(), detail })
    }

    pub(super) async fn job(&self, id: &str) -> Result<Job, Problem> {
        self.jobs.get(id).await?.ok_or_else(|| Problem::no_job(id))
    }
}

async fn submit(
    State(shared): State<Arc<Shared>>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let IdempotencyKey(key) = IdempotencyKey::of(&headers)?;
    let known = ["type", "payload", "delay", "due_at", "max_retries", "id", "key"];
    let mut fields = Fields::read(body, shared.jobs.max_payload(), &known).await?;
    let kind = fields.needed("type");
    let payload = fields.raw("payload");
    let due = fields.due();
    let max_retries = fields.number("max_retries");
    let id = fields.text("id");
    let business_key = fields.text("key");
    let is_one = key.is_none() || id.is_none() || key == id;
    fields.check("id", is_one, "`id` and the header `Idempotency-Key` differ: give one of them");
    fields.finish()?;
    shared.check_kind(&kind, "/type").map_err(|error| Problem::invalid(vec![error]))?;

    let payload = payload.map_or_else(|| "null".to_owned(), |payload| payload.get().to_owned());
    let id = id.or(key);
    let mut submitting = shared.jobs.submit_raw(kind, "application/json", payload).id_if_given(id.clone());
    if let Some(limit) = max_retries {
        submitting = submitting.max_retries(limit);
    }
    if let Some(key) = business_key {
        submitting = submitting.key(key);
    }
    submitting = match due {
        Some(Due::After(delay)) => submitting.after(delay),
        Some(Due::At(time)) => submitting.at(time),
        None => submitting,
    };
    let path = uri.path();
    match submitting.await {
        Ok(submitted) => Ok(Accepted::from(submitted).look(&shared.jobs).await.below(path).into_response()),
        Err(error) => {
            let is_there = error.kind() == dwell_core::ErrorKind::Conflict;
            let there = id.filter(|_| is_there).map(|id| format!("{}/{id}", path.trim_end_matches('/')));
            Err(Problem::from(error).at(there))
        }
    }
}

async fn status(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let job = shared.job(&id).await?;
    Ok(shown(StatusCode::OK, &job))
}

/// A job, and when it is worth asking again.
fn shown(status: StatusCode, job: &Job) -> Response {
    let mut response = json(status, job);
    if !job.status.is_final() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

async fn result(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let job = shared.job(&id).await?;
    match job.status {
        Status::Completed => {
            let result = job.result.unwrap_or_else(|| "null".into());
            Ok(raw_json(StatusCode::OK, result))
        }
        Status::Failed | Status::Cancelled => {
            let why = job.error.map(|error| format!(": {error}")).unwrap_or_default();
            let detail = format!("the job `{id}` is {} and has no result{why}", job.status);
            Err(Problem::new(StatusCode::CONFLICT, "conflict", detail))
        }
        Status::Queued | Status::Scheduled | Status::InProgress => Ok(shown(StatusCode::ACCEPTED, &job)),
    }
}

async fn cancel(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Response, Problem> {
    match shared.jobs.cancel(id.as_str()).await? {
        Cancel::Cancelled => Ok(json(StatusCode::OK, &json!({ "outcome": "cancelled" }))),
        Cancel::TooLate => {
            let detail = format!("the job `{id}` is in a worker's hands or over, and cannot be cancelled");
            Err(Problem::new(StatusCode::CONFLICT, "too_late", detail))
        }
        Cancel::NotFound => Err(Problem::no_job(&id)),
    }
}

async fn retry(
    State(shared): State<Arc<Shared>>,
    OriginalUri(uri): OriginalUri,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    match shared.jobs.retry(id.as_str()).await? {
        Retry::Retried => {
            let mut response = json(StatusCode::ACCEPTED, &json!({ "outcome": "replayed" }));
            let location = uri.path().strip_suffix("/retry").unwrap_or_default();
            if let Ok(location) = HeaderValue::try_from(location) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            Ok(response)
        }
        Retry::NotFailed => {
            let detail = format!("the job `{id}` has not failed, so there is nothing to run again");
            Err(Problem::new(StatusCode::CONFLICT, "conflict", detail))
        }
        Retry::NotFound => Err(Problem::no_job(&id)),
    }
}
