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
use dwell_core::{Error, ErrorKind, MessageId, Text, Timestamp};
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
pub(super) struct Held(Mutex<BTreeMap<(MessageId, String), Claimed>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(MessageId, String), Claimed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, claimed: Claimed) {
        self.lock().insert((claimed.id().clone(), claimed.attempt().to_string()), claimed);
    }

    fn take(&self, id: &str, attempt: Attempt) -> Result<Claimed, Problem> {
        self.lock().remove(&(id.into(), attempt.to_string())).ok_or_else(|| {
            let text = format!(
                "this attempt at the job `{id}` was settled before, or its lease ran out: stop, the job is in other hands"
            );
            Error::new(ErrorKind::Stale, text).into()
        })
    }

    /// Forgets what was never settled in time: somebody else has it by now.
    fn forget_lost(&self, now: Timestamp) {
        self.lock().retain(|_, claimed| claimed.lease_until() > now);
    }
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
    kind: Text,
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
    let mut claimed = shared.held.take(&id, attempt)?;
    match claimed.heartbeat(lease).await {
        Ok(lease_until) => {
            shared.held.put(claimed);
            Ok(json(StatusCode::OK, &json!({ "lease_until": lease_until })))
        }
        Err(error) => {
            // Out of reach is not lost.
            if error.kind() != ErrorKind::Stale {
                shared.held.put(claimed);
            }
            Err(error.into())
        }
    }
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
    shared.held.take(&id, attempt)?.complete(&result).await?;
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
    shared.held.take(&id, attempt)?.fail(error).await?;
    settled(&shared, &id).await
}

/// Where a job stands that was settled; it may have gone on, or be forgotten already.
async fn settled(shared: &Shared, id: &str) -> Result<Response, Problem> {
    let status = shared.jobs.get(id).await?.map(|job| job.status);
    Ok(json(StatusCode::OK, &json!({ "status": status })))
}
