//! Jobs over HTTP: a real server on a loopback port, on every store.
#![allow(unreachable_pub, reason = "a test has no public")]

mod client;
#[path = "../jobs/faulty.rs"]
#[expect(dead_code, reason = "some of it is for stories about claims")]
mod faulty;
#[cfg(feature = "redis")]
#[path = "../jobs/server.rs"]
mod server;
mod trouble;

use axum::{Json, Router, extract, routing::post};
use client::{Answer, Service};
use dwell::{
    axum::{Accepted, IdempotencyKey, JobRoutes, Problem},
    extend::{Clock, Seams, VirtualClock},
    jobs::Jobs,
    prelude::*,
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

#[derive(Command, Serialize, Deserialize)]
#[message(name = "sums.double")]
struct Double {
    number: u64,
    #[serde(default)]
    waits: bool,
}

/// Doubles a number; refuses 13, fails at 7 until it is told otherwise, and waits if it is told to.
async fn double(job: Double, State(gate): State<Arc<Semaphore>>, cx: Cx) -> Result<Value, Failure> {
    if job.waits {
        gate.acquire().await?.forget();
    }
    match job.number {
        13 => Err(Failure::reject("thirteen is unlucky")),
        7 if cx.failures() == 0 => Err("out of paper".into()),
        number => Ok(json!({ "value": number * 2 })),
    }
}

/// An endpoint of one's own.
async fn own(
    extract::State(jobs): extract::State<Jobs>,
    key: IdempotencyKey,
    Json(job): Json<Double>,
) -> Result<Accepted, Problem> {
    Ok(jobs.submit(job).id_if_given(key.0).max_retries(9).await?.into())
}

struct World {
    service: Service,
    clock: Arc<dyn Clock>,
    /// Where time passes when we say so.
    hand: Option<VirtualClock>,
    gate: Arc<Semaphore>,
    _bus: Bus,
}

impl World {
    async fn on(url: &str) -> Self {
        let hand = VirtualClock::new();
        Self::new(url, Seams::virtual_time(hand.clone(), 1), Some(hand)).await
    }

    /// A private server for all stories, and names of its own for each. Its time is real.
    #[cfg(feature = "redis")]
    async fn redis() -> Self {
        Self::new(&server::fresh_url(), Seams::system("test"), None).await
    }

    async fn new(url: &str, seams: Seams, hand: Option<VirtualClock>) -> Self {
        let (clock, gate) = (seams.clock.clone(), Arc::new(Semaphore::new(0)));
        let delay = unit(&hand).as_millis();
        let config = format!("[retry]\nbase_delay = \"{delay}ms\"\nmax_delay = \"{delay}ms\"\njitter = 0.0");
        let config = dwell::Config::from_toml(&config).unwrap();
        let wiring = Bus::builder().config(config).state(gate.clone()).job(double).max_job_result(1000);
        let bus = wiring.seams(seams).start(url).await.unwrap();
        let jobs = bus.jobs().unwrap();
        let app = Router::new()
            .route("/doubles", post(own))
            .with_state(jobs.clone())
            .merge(JobRoutes::new(jobs.clone()).accept("sums.halve").workers().router())
            .nest("/inner", JobRoutes::new(jobs.clone()).accept_any().router())
            .nest("/shown", JobRoutes::new(jobs).without_submission().router());
        let service = Service::start(app).await;
        Self { service, clock, hand, gate, _bus: bus }
    }

    /// So many units of time.
    fn units(&self, count: u32) -> Duration {
        unit(&self.hand) * count
    }

    /// The same, as a request says it.
    fn text(&self, count: u32) -> String {
        format!("{}ms", self.units(count).as_millis())
    }

    /// Lets this much time pass.
    async fn pass(&self, time: Duration) {
        match &self.hand {
            Some(hand) => hand.advance(time).await,
            None => self.clock.sleep(time).await,
        }
    }

    /// Submits a job that is taken. Returns its path.
    async fn submit(&self, body: Value) -> String {
        let answer = self.service.post("/v1/jobs", &body.to_string()).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.header("location").unwrap().to_owned()
    }

    /// What is told about a job, once it stands there.
    async fn reaches(&self, path: &str, status: &str) -> Answer {
        let mut last = None;
        for _ in 0..2000 {
            match &self.hand {
                Some(hand) => hand.idle().await,
                None => self.clock.sleep(Duration::from_millis(10)).await,
            }
            let answer = self.service.get(path).await;
            if answer.json()["status"] == status {
                return answer;
            }
            last = Some(answer);
        }
        panic!("{path} never became {status}; it is {last:?}");
    }
}

/// What all times of a story are so many of: as short as a busy machine allows, where we have to wait for it.
fn unit(hand: &Option<VirtualClock>) -> Duration {
    if hand.is_some() { Duration::from_secs(1) } else { Duration::from_millis(250) }
}

macro_rules! on_every_store {
    ($($story:ident,)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $story() {
                super::$story(super::World::on("memory://").await).await;
            })*
        }
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $(#[tokio::test]
            async fn $story() {
                super::$story(super::World::on("sqlite://:memory:").await).await;
            })*
        }
        #[cfg(feature = "redis")]
        mod redis {
            $(#[tokio::test]
            async fn $story() {
                super::$story(super::World::redis().await).await;
            })*
        }
    };
}

on_every_store! {
    a_submission_is_accepted_with_where_to_ask,
    a_job_for_later_and_its_fields,
    the_result_is_there_when_the_job_is_over_and_not_before,
    what_no_worker_has_is_cancelled,
    the_id_is_the_idempotency_key,
    a_second_submission_is_told_where_the_job_stands,
    a_failed_job_is_told_and_run_again,
    every_mistake_of_a_request_is_named_at_once,
    what_is_too_large_is_refused,
    an_endpoint_of_ones_own_answers_alike,
    a_service_may_have_its_jobs_elsewhere,
    a_worker_claims_keeps_and_settles_jobs,
    an_old_token_changes_nothing,
}

async fn a_submission_is_accepted_with_where_to_ask(world: World) {
    let answer = world.service.post("/v1/jobs", r#"{"type":"sums.double","payload":{"number":21}}"#).await;
    assert_eq!(answer.status, 202);
    let submitted = answer.json();
    let location = answer.header("location").unwrap();
    assert_eq!(location, format!("/v1/jobs/{}", submitted["id"].as_str().unwrap()));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(
        (&submitted["type"], &submitted["status"], &submitted["duplicate"], &submitted["due_at"]),
        (&json!("sums.double"), &json!("Queued"), &json!(false), &Value::Null)
    );

    let answer = world.reaches(location, "Completed").await;
    assert_eq!((answer.status, answer.header("retry-after")), (200, None));
    let job = answer.json();
    assert_eq!((&job["id"], &job["status"]), (&submitted["id"], &json!("Completed")));
    for time in ["created_at", "started_at", "completed_at"] {
        assert!(job[time].is_i64(), "{time}: {job}");
    }
    assert_eq!((&job["retry_count"], &job["max_retries"]), (&json!(0), &json!(5)));
    assert!(job.get("payload").is_none() && job.get("result").is_none(), "they are asked for on their own");
    world.service.get("/v1/jobs/nobody").await.is_problem(404, "not_found");
    world.service.get("/v1/jobs/nobody/result").await.is_problem(404, "not_found");
}

async fn a_job_for_later_and_its_fields(world: World) {
    let wait = world.units(8);
    let at = world.clock.now().after(wait);
    let delayed = json!({"type": "sums.double", "payload": {"number": 1}, "delay": world.text(8), "id": "later",
        "key": "k", "max_retries": 3});
    let answer = world.service.post("/v1/jobs", &delayed.to_string()).await.json();
    let later = answer["due_at"].as_i64().unwrap();
    assert_eq!(answer["status"], "Scheduled");
    // A server with a finer clock rounds up: never early.
    let last = world.clock.now().after(wait).0 + i64::from(world.hand.is_none());
    assert!((at.0..=last).contains(&later), "{later} is not within {} and {last}", at.0);
    world.submit(json!({"type": "sums.double", "payload": {"number": 2}, "id": "at", "due_at": at.0})).await;
    let text =
        json!({"type": "sums.double", "payload": {"number": 3}, "id": "text", "due_at": at.to_rfc3339()});
    world.submit(text).await;
    for (id, due) in [("later", later), ("at", at.0), ("text", at.0)] {
        let answer = world.reaches(&format!("/v1/jobs/{id}"), "Scheduled").await;
        assert_eq!(answer.json()["due_at"], json!(due), "{id}");
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(world.service.get("/v1/jobs/later").await.json()["max_retries"], 3);
    world.pass(wait).await;
    for id in ["later", "at", "text"] {
        let job = world.reaches(&format!("/v1/jobs/{id}"), "Completed").await.json();
        assert!(job["started_at"].as_i64() >= job["due_at"].as_i64(), "{id} was early: {job}");
    }
}

async fn the_result_is_there_when_the_job_is_over_and_not_before(world: World) {
    let path = world.submit(json!({"type": "sums.double", "payload": {"number": 4, "waits": true}})).await;
    world.reaches(&path, "InProgress").await;
    let early = world.service.get(&format!("{path}/result")).await;
    assert_eq!((early.status, early.json()["status"].clone()), (202, json!("InProgress")));
    assert!(early.header("retry-after").is_some());
    world.gate.add_permits(1);
    world.reaches(&path, "Completed").await;
    let result = world.service.get(&format!("{path}/result")).await;
    assert_eq!((result.status, result.body.as_str()), (200, r#"{"value":8}"#));
    assert_eq!(result.header("content-type"), Some("application/json"));

    let path = world.submit(json!({"type": "sums.double", "payload": {"number": 13}})).await;
    world.reaches(&path, "Failed").await;
    let problem = world.service.get(&format!("{path}/result")).await.is_problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("thirteen is unlucky"));
}

async fn what_no_worker_has_is_cancelled(world: World) {
    let later = world.submit(json!({"type": "sums.double", "payload": {"number": 4}, "delay": "1h"})).await;
    let answer = world.service.delete(&later).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"outcome": "cancelled"})));
    assert_eq!(world.service.get(&later).await.json()["status"], "Cancelled");
    world.service.get(&format!("{later}/result")).await.is_problem(409, "conflict");

    let queued = world.submit(json!({"type": "sums.halve", "payload": 4})).await;
    assert_eq!(world.service.get(&queued).await.json()["status"], "Queued");
    assert_eq!(world.service.delete(&queued).await.status, 200);

    let running = world.submit(json!({"type": "sums.double", "payload": {"number": 4, "waits": true}})).await;
    world.reaches(&running, "InProgress").await;
    world.service.delete(&running).await.is_problem(409, "too_late");
    world.service.delete("/v1/jobs/nobody").await.is_problem(404, "not_found");
}

async fn the_id_is_the_idempotency_key(world: World) {
    let body = r#"{"type":"sums.double","payload":{"number":1},"delay":"1m"}"#;
    let key = [("Idempotency-Key", "order-1")];
    let first = world.service.call("POST", "/v1/jobs", &key, body).await;
    let again = world.service.call("POST", "/v1/jobs", &[("Dwell-Id", "\"order-1\"")], body).await;
    assert_eq!((first.status, again.status), (202, 200));
    assert_eq!(first.header("location"), Some("/v1/jobs/order-1"));
    assert_eq!(again.header("location"), first.header("location"));
    let (first, again) = (first.json(), again.json());
    assert_eq!((&first["duplicate"], &again["duplicate"]), (&json!(false), &json!(true)));
    assert_eq!((&again["due_at"], &again["status"]), (&first["due_at"], &first["status"]));
    let other = r#"{"type":"sums.double","payload":{"number":2},"id":"order-1"}"#;
    let conflict = world.service.call("POST", "/v1/jobs", &key, other).await;
    conflict.is_problem(409, "conflict");
    assert_eq!(conflict.header("location"), Some("/v1/jobs/order-1"));
    let differs = r#"{"type":"sums.double","payload":{"number":2},"id":"order-2"}"#;
    world.service.call("POST", "/v1/jobs", &key, differs).await.is_problem(400, "invalid_request");
    let bad = [("Idempotency-Key", "no good")];
    world.service.call("POST", "/v1/jobs", &bad, body).await.is_problem(400, "invalid_request");
}

async fn a_second_submission_is_told_where_the_job_stands(world: World) {
    let body = r#"{"type":"sums.double","payload":{"number":4,"waits":true},"id":"one"}"#;
    assert_eq!(world.service.post("/v1/jobs", body).await.json()["status"], "Queued");
    world.reaches("/v1/jobs/one", "InProgress").await;
    let running = world.service.post("/v1/jobs", body).await;
    assert_eq!((running.status, running.json()["status"].clone()), (200, json!("InProgress")));
    assert!(running.header("retry-after").is_some());
    world.gate.add_permits(1);
    world.reaches("/v1/jobs/one", "Completed").await;
    let over = world.service.post("/v1/jobs", body).await;
    assert_eq!((over.status, over.json()["status"].clone()), (200, json!("Completed")));
    assert_eq!((over.json()["duplicate"].clone(), over.header("retry-after")), (json!(true), None));

    // An endpoint that does not look says nothing rather than what may be wrong.
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "mine")];
    let first = world.service.call("POST", "/doubles", &headers, r#"{"number":5}"#).await;
    let again = world.service.call("POST", "/doubles", &headers, r#"{"number":5}"#).await;
    assert_eq!((first.json()["status"].clone(), again.status), (json!("Queued"), 200));
    assert_eq!(again.json().get("status"), None);
}

async fn a_failed_job_is_told_and_run_again(world: World) {
    let job = json!({"type": "sums.double", "payload": {"number": 7}, "max_retries": 0});
    let path = world.submit(job).await;
    let failed = world.reaches(&path, "Failed").await.json();
    assert_eq!((&failed["status"], &failed["error"]), (&json!("Failed"), &json!("out of paper")));
    assert_eq!((&failed["retry_count"], &failed["max_retries"]), (&json!(1), &json!(0)));
    let again = world.service.post(&format!("{path}/retry"), "").await;
    assert_eq!((again.status, again.header("location")), (202, Some(path.as_str())));
    world.reaches(&path, "Failed").await;

    let path = world.submit(json!({"type": "sums.double", "payload": {"number": 1}})).await;
    world.reaches(&path, "Completed").await;
    world.service.post(&format!("{path}/retry"), "").await.is_problem(409, "conflict");
    world.service.post("/v1/jobs/nobody/retry", "").await.is_problem(404, "not_found");
}

async fn every_mistake_of_a_request_is_named_at_once(world: World) {
    let body =
        r#"{"typ":"sums.double","payload":{},"delay":"90","max_retries":-1,"due_at":1700000000,"id":5}"#;
    let problem = world.service.post("/v1/jobs", body).await.is_problem(400, "invalid_request");
    let errors = problem["errors"].as_array().unwrap();
    let detail = |pointer: &str| {
        let found: Vec<_> = errors.iter().filter(|error| error["pointer"] == pointer).collect();
        found.iter().map(|error| error["detail"].as_str().unwrap()).collect::<Vec<_>>().join("; ")
    };
    assert!(detail("/typ").contains("did you mean `type`?"), "{problem}");
    assert!(detail("/type").contains("missing"), "{problem}");
    assert!(detail("/delay").contains("which unit?"), "{problem}");
    assert!(detail("/max_retries").contains("whole number"), "{problem}");
    assert!(
        detail("/due_at").contains("give one of them") && detail("/due_at").contains("seconds"),
        "{problem}"
    );
    assert!(detail("/id").contains("a text"), "{problem}");

    let unknown = r#"{"type":"sums.doubel","payload":{"number":1}}"#;
    let problem = world.service.post("/v1/jobs", unknown).await.is_problem(400, "invalid_request");
    assert!(problem["detail"].as_str().unwrap().contains("did you mean `sums.double`?"), "{problem}");
    let wrong = r#"{"type":"sums.double","payload":{"number":"hunter2"}}"#;
    let problem = world.service.post("/v1/jobs", wrong).await.is_problem(400, "invalid_request");
    assert!(!problem.to_string().contains("hunter2"), "{problem}");
    for body in ["", "[]", "{", "null"] {
        world.service.post("/v1/jobs", body).await.is_problem(400, "invalid_request");
    }
}

async fn what_is_too_large_is_refused(world: World) {
    let body = format!(r#"{{"type":"sums.halve","payload":"{}"}}"#, "x".repeat(17 << 20));
    world.service.post("/v1/jobs", &body).await.is_problem(413, "too_large");
}

async fn an_endpoint_of_ones_own_answers_alike(world: World) {
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "mine")];
    let answer = world.service.call("POST", "/doubles", &headers, r#"{"number":5}"#).await;
    assert_eq!((answer.status, answer.header("location")), (202, Some("/v1/jobs/mine")));
    assert_eq!(world.reaches("/v1/jobs/mine", "Completed").await.json()["max_retries"], 9);
    assert_eq!(world.service.get("/v1/jobs/mine/result").await.body, r#"{"value":10}"#);
    let other = world.service.call("POST", "/doubles", &headers, r#"{"number":6}"#).await;
    other.is_problem(409, "conflict");
}

async fn a_service_may_have_its_jobs_elsewhere(world: World) {
    let answer = world.service.post("/inner/v1/jobs", r#"{"type":"any.thing","id":"one"}"#).await;
    assert_eq!((answer.status, answer.header("location")), (202, Some("/inner/v1/jobs/one")));
    assert_eq!(world.service.get("/inner/v1/jobs/one").await.json()["status"], "Queued");
    let claim = world.service.post("/inner/v1/jobs/claim", r#"{"types":["any.thing"]}"#).await;
    assert_eq!(claim.status, 405, "workers are let in only where that was asked for");
    assert_eq!(world.service.get("/shown/v1/jobs/one").await.json()["status"], "Queued");
    assert_eq!(world.service.post("/shown/v1/jobs", "{}").await.status, 404, "nothing is submitted there");
}

/// What a claim hands out.
async fn claim(world: &World, body: Value) -> Vec<Value> {
    let answer = world.service.post("/v1/jobs/claim", &body.to_string()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["jobs"].as_array().unwrap().clone()
}

async fn a_worker_claims_keeps_and_settles_jobs(world: World) {
    for id in ["one", "two", "three"] {
        world.submit(json!({"type": "sums.halve", "payload": {"of": 4}, "id": id})).await;
    }
    let lease = world.text(10);
    let ask = json!({"types": ["sums.halve"], "max": 2, "wait": "0s", "lease": lease, "worker": "w-1"});
    let jobs = claim(&world, ask).await;
    let of =
        |job: &Value| (job["id"].clone(), job["type"].clone(), job["payload"].clone(), job["worker"].clone());
    assert_eq!(of(&jobs[0]), (json!("one"), json!("sums.halve"), json!({"of": 4}), json!("w-1")));
    assert_eq!((jobs.len(), &jobs[1]["retry_count"]), (2, &json!(0)));
    let attempt = |job: &Value| job["attempt"].as_str().unwrap().to_owned();

    // Past the end of what they were claimed for.
    world.pass(world.units(6)).await;
    for job in &jobs {
        let beat = json!({"attempt": attempt(job), "lease": world.text(20)});
        let path = format!("/v1/jobs/{}/heartbeat", job["id"].as_str().unwrap());
        let beat = world.service.post(&path, &beat.to_string()).await;
        assert_eq!(beat.status, 200, "{beat:?}");
    }
    world.pass(world.units(6)).await;

    let large = json!({"attempt": attempt(&jobs[0]), "result": "x".repeat(2000)});
    let large = world.service.post("/v1/jobs/one/complete", &large.to_string()).await;
    large.is_problem(413, "too_large");
    let done = json!({"attempt": attempt(&jobs[0]), "result": {"value": 2}});
    let done = world.service.post("/v1/jobs/one/complete", &done.to_string()).await;
    assert_eq!((done.status, done.json()), (200, json!({"status": "Completed"})));
    assert_eq!(world.service.get("/v1/jobs/one/result").await.body, r#"{"value":2}"#);

    let failed = json!({"attempt": attempt(&jobs[1]), "error": "out of paper"});
    let failed = world.service.post("/v1/jobs/two/fail", &failed.to_string()).await;
    assert_eq!(failed.json(), json!({"status": "Scheduled"}));
    let job = world.service.get("/v1/jobs/two").await.json();
    assert_eq!((&job["retry_count"], &job["error"]), (&json!(1), &json!("out of paper")));

    let problem = world.service.post("/v1/jobs/claim", r#"{"types":["other"],"max":0,"wait":"2h"}"#).await;
    assert_eq!(problem.is_problem(400, "invalid_request")["errors"].as_array().unwrap().len(), 2);
    let problem = world.service.post("/v1/jobs/claim", r#"{"types":["other"]}"#).await;
    problem.is_problem(400, "invalid_request");
    world.service.post("/v1/jobs/one/complete", r#"{"result":1}"#).await.is_problem(400, "invalid_request");
}

async fn an_old_token_changes_nothing(world: World) {
    world.submit(json!({"type": "sums.halve", "payload": {"of": 4}, "id": "one"})).await;
    let ask = |units| json!({"types": ["sums.halve"], "wait": "0s", "lease": world.text(units)});
    let old = claim(&world, ask(2)).await.remove(0)["attempt"].as_str().unwrap().to_owned();
    world.pass(world.units(3)).await;
    assert!(claim(&world, ask(20)).await.is_empty(), "it waits for a while");
    world.pass(world.units(2)).await;
    let new = claim(&world, ask(20)).await.remove(0)["attempt"].as_str().unwrap().to_owned();
    assert_ne!(old, new);
    for (call, body) in [
        ("heartbeat", json!({"attempt": old})),
        ("complete", json!({"attempt": old, "result": 1})),
        ("fail", json!({"attempt": old, "error": "late"})),
    ] {
        let answer = world.service.post(&format!("/v1/jobs/one/{call}"), &body.to_string()).await;
        answer.is_problem(409, "stale_receipt");
    }
    assert_eq!(world.service.get("/v1/jobs/one").await.json()["status"], "InProgress");
    let done = json!({"attempt": new, "result": 2});
    assert_eq!(world.service.post("/v1/jobs/one/complete", &done.to_string()).await.status, 200);
    assert_eq!(world.service.get("/v1/jobs/one/result").await.body, "2");
    let twice = world.service.post("/v1/jobs/one/complete", &done.to_string()).await;
    twice.is_problem(409, "stale_receipt");
}
