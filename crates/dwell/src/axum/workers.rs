//! Workers over HTTP: claim, heartbeat, complete, fail.

use super::{Problem, accepted::json, fields::Fields, routes::Shared};
use crate::jobs::{Attempt, Claimed};
use ::axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
    routing::post,
};
use dwell_core::{Error, ErrorKind, MessageId, Text, Timestamp, TypeName};
use serde::Serialize;
use serde_json::{json, value::RawValue};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long a claim waits that does not say.
const WAIT: Duration = Duration::from_secs(20);
/// The longest that one may wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The most that one may ask for.
const MOST: u32 = 1000;

/// What workers hold, by job and token.
#[derive(Default)]
pub(super) struct Held(Mutex<BTreeMap<Token, Entry>>);

type Token = (MessageId, String);

struct Entry {
    claimed: Arc<Claimed>,
    lease_until: Timestamp,
    /// A request says what became of it. There is one such at a time.
    is_settling: bool,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Token, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, claimed: Claimed) {
        let token = (claimed.id().clone(), claimed.attempt().to_string());
        let lease_until = claimed.lease_until();
        self.lock().insert(token, Entry { claimed: Arc::new(claimed), lease_until, is_settling: false });
    }

    /// Forgets what was never settled in time: somebody else has it by now. What a request is about stays until it is over.
    fn forget_lost(&self, now: Timestamp) {
        self.lock().retain(|_, entry| entry.lease_until > now || Arc::strong_count(&entry.claimed) > 1);
    }
}

fn stale(id: &str) -> Problem {
    let text = format!(
        "this attempt at the job `{id}` was settled before, or its lease ran out: stop, the job is in other hands"
    );
    Error::new(ErrorKind::Stale, text).into()
}

/// The right of one request to settle a job. It ends when this is dropped, whatever became of the request.
struct Settling {
    shared: Arc<Shared>,
    token: Token,
    claimed: Arc<Claimed>,
    is_over: bool,
}

impl Settling {
    fn begin(shared: Arc<Shared>, id: &str, attempt: Attempt) -> Result<Self, Problem> {
        let token = (id.into(), attempt.to_string());
        let claimed = {
            let mut held = shared.held.lock();
            let entry = held.get_mut(&token).ok_or_else(|| stale(id))?;
            if std::mem::replace(&mut entry.is_settling, true) {
                let detail = format!(
                    "another request is about to settle this attempt at the job `{id}`: wait for its answer, or ask for the job"
                );
                return Err(Problem::new(StatusCode::CONFLICT, "conflict", detail));
            }
            entry.claimed.clone()
        };
        Ok(Self { shared, token, claimed, is_over: false })
    }

    /// Only what is settled or lost is let go: the store may be out of reach for now.
    fn end(mut self, result: Result<(), Error>) -> Result<(), Problem> {
        self.is_over = result.as_ref().map_or_else(|error| error.kind() == ErrorKind::Stale, |()| true);
        result.map_err(Problem::from)
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        let mut held = self.shared.held.lock();
        match held.get_mut(&self.token) {
            Some(entry) if !self.is_over => entry.is_settling = false,
            _ => drop(held.remove(&self.token)),
        }
    }
}

/// Goes on to its end though the client goes away: what it does to the job and what is known of it here stay together.
async fn to_the_end<T: Send + 'static>(
    request: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    tokio::spawn(request).await.unwrap_or_else(|_| {
        let detail = "the request ended before it was done: ask for the job to see where it stands";
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail))
    })
}

pub(super) fn routes(router: Router<Arc<Shared>>) -> Router<Arc<Shared>> {
    router
        .route("/v1/jobs/claim", post(claim))
        .route("/v1/jobs/{id}/heartbeat", post(heartbeat))
        .route("/v1/jobs/{id}/complete", post(complete))
        .route("/v1/jobs/{id}/fail", post(fail))
}

#[derive(Serialize)]
struct Handed {
    id: MessageId,
    #[serde(rename = "type")]
    kind: TypeName,
    attempt: Attempt,
    worker: Text,
    retry_count: u32,
    lease_until: Timestamp,
    content_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_text: Option<String>,
}

impl Handed {
    /// A payload that is no JSON is given as text.
    fn of(claimed: &Claimed) -> Self {
        let text = String::from_utf8_lossy(claimed.payload()).into_owned();
        let (payload, payload_text) = match RawValue::from_string(text.clone()) {
            Ok(payload) => (Some(payload), None),
            Err(_) => (None, Some(text)),
        };
        Self {
            id: claimed.id().clone(),
            kind: claimed.kind().clone(),
            attempt: claimed.attempt(),
            worker: claimed.worker().clone(),
            retry_count: claimed.retry_count(),
            lease_until: claimed.lease_until(),
            content_type: claimed.content_type().to_string(),
            payload,
            payload_text,
        }
    }
}

async fn claim(State(shared): State<Arc<Shared>>, body: Body) -> Result<Response, Problem> {
    let mut fields = Fields::read(body, 0, &["types", "max", "wait", "lease", "worker"]).await?;
    let kinds = fields.texts("types").unwrap_or_default();
    let max = fields.number("max").unwrap_or(1);
    let wait = fields.duration("wait").unwrap_or(WAIT);
    let lease = fields.duration("lease");
    let worker = fields.text("worker");
    fields.check("types", !kinds.is_empty(), "`types` names no type: give those that you work on");
    fields.check("max", (1..=MOST).contains(&max), format!("`max` is from 1 to {MOST}"));
    fields.check("wait", wait <= LONGEST_WAIT, "`wait` is at most 60s");
    fields.check(
        "lease",
        lease.is_none_or(|lease| !lease.is_zero()),
        "`lease` is zero: the job would be lost at once",
    );
    fields.finish()?;
    let refused: Vec<_> = kinds.iter().filter_map(|kind| shared.check_kind(kind, "/types").err()).collect();
    if !refused.is_empty() {
        return Err(Problem::invalid(refused));
    }
    shared.held.forget_lost(shared.jobs.now());
    let mut claim = shared.jobs.claim(kinds).max(max as usize).wait(wait);
    if let Some(lease) = lease {
        claim = claim.lease(lease);
    }
    if let Some(worker) = worker {
        claim = claim.worker(worker);
    }
    let claimed = claim.await?;
    let handed: Vec<_> = claimed.iter().map(Handed::of).collect();
    claimed.into_iter().for_each(|claimed| shared.held.put(claimed));
    Ok(json(StatusCode::OK, &json!({ "jobs": handed })))
}

/// The token that a request must have.
fn attempt(fields: &mut Fields) -> Option<Attempt> {
    let text = fields.needed("attempt");
    let attempt = text.parse().ok();
    fields.check(
        "attempt",
        attempt.is_some() || text.is_empty(),
        "`attempt` is not a token: give it as it was claimed",
    );
    attempt
}

async fn heartbeat(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let mut fields = Fields::read(body, 0, &["attempt", "lease"]).await?;
    let (attempt, lease) = (attempt(&mut fields), fields.duration("lease"));
    fields.finish()?;
    let Some(attempt) = attempt else { return Err(Problem::no_job(&id)) };
    let token = (id.as_str().into(), attempt.to_string());
    let claimed = shared.held.lock().get(&token).map(|entry| entry.claimed.clone());
    let claimed = claimed.ok_or_else(|| stale(&id))?;
    let beat = async move {
        let extended = claimed.extend(lease).await;
        let mut held = shared.held.lock();
        match extended {
            Ok(lease_until) => {
                if let Some(entry) = held.get_mut(&token) {
                    entry.lease_until = lease_until;
                }
                Ok(lease_until)
            }
            Err(error) => {
                // Out of reach is not lost.
                if error.kind() == ErrorKind::Stale {
                    held.remove(&token);
                }
                Err(error.into())
            }
        }
    };
    let lease_until = to_the_end(beat).await?;
    Ok(json(StatusCode::OK, &json!({ "lease_until": lease_until })))
}

async fn complete(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let most = shared.jobs.max_result();
    let mut fields = Fields::read(body, most, &["attempt", "result"]).await?;
    let (attempt, result) = (attempt(&mut fields), fields.raw("result"));
    fields.finish()?;
    let Some(attempt) = attempt else { return Err(Problem::no_job(&id)) };
    if result.as_ref().is_some_and(|result| result.get().len() > most) {
        let detail =
            format!("the result has more than {most} bytes: store it elsewhere, and say where it is");
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail));
    }
    let settling = Settling::begin(shared.clone(), &id, attempt)?;
    to_the_end(async move {
        let result = settling.claimed.try_complete(&result).await;
        settling.end(result)
    })
    .await?;
    settled(&shared, &id).await
}

async fn fail(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let mut fields = Fields::read(body, 0, &["attempt", "error"]).await?;
    let (attempt, error) = (attempt(&mut fields), fields.needed("error"));
    fields.finish()?;
    let Some(attempt) = attempt else { return Err(Problem::no_job(&id)) };
    let settling = Settling::begin(shared.clone(), &id, attempt)?;
    to_the_end(async move {
        let result = settling.claimed.try_fail(error).await;
        settling.end(result)
    })
    .await?;
    settled(&shared, &id).await
}

/// Where a job stands that was settled; it may have gone on, or be forgotten already.
async fn settled(shared: &Shared, id: &str) -> Result<Response, Problem> {
    let status = shared.jobs.get(id).await?.map(|job| job.status);
    Ok(json(StatusCode::OK, &json!({ "status": status })))
}
