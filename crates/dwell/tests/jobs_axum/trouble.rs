//! Workers over HTTP whose calls meet, break off, or find the store in trouble.

use crate::{
    client::{Answer, Service},
    faulty::{Faults, Faulty, Gate},
};
use dwell::{
    ErrorKind,
    axum::JobRoutes,
    extend::{Seams, VirtualClock},
    prelude::*,
};
use dwell_engine::memory::{Memory, MemorySettings};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::task::JoinHandle;

struct World {
    service: Arc<Service>,
    hand: VirtualClock,
    faults: Arc<Faults>,
    attempt: String,
    _bus: Bus,
}

impl World {
    /// A worker has claimed the job `one` for ten seconds.
    async fn new() -> Self {
        let hand = VirtualClock::new();
        let seams = Seams::virtual_time(hand.clone(), 1);
        let memory = Memory::new(seams.clone(), MemorySettings::default());
        let (faulty, faults) = Faulty::new(Arc::new(memory));
        let bus = Bus::builder().start_on(Arc::new(faulty), seams).await.unwrap();
        let routes = JobRoutes::new(bus.jobs().unwrap()).accept("sums.halve").workers();
        let service = Arc::new(Service::start(routes.router()).await);
        service.post("/v1/jobs", r#"{"type":"sums.halve","payload":4,"id":"one"}"#).await;
        let claim = r#"{"types":["sums.halve"],"wait":"0s","lease":"10s"}"#;
        let claimed = service.post("/v1/jobs/claim", claim).await.json();
        let attempt = claimed["jobs"][0]["attempt"].as_str().unwrap().to_owned();
        Self { service, hand, faults, attempt, _bus: bus }
    }

    /// A call that goes on by itself.
    fn start(&self, call: &'static str) -> JoinHandle<Answer> {
        let service = self.service.clone();
        let body = json!({"attempt": self.attempt});
        let body = match call {
            "complete" => json!({"attempt": self.attempt, "result": 2}),
            "fail" => json!({"attempt": self.attempt, "error": "out of paper"}),
            _ => body,
        };
        tokio::spawn(async move { service.post(&format!("/v1/jobs/one/{call}"), &body.to_string()).await })
    }

    async fn call(&self, call: &'static str) -> Answer {
        self.start(call).await.unwrap()
    }

    async fn status(&self) -> String {
        self.service.get("/v1/jobs/one").await.json()["status"].as_str().unwrap().to_owned()
    }

    /// The same, once it is this.
    async fn reaches(&self, status: &str) {
        for _ in 0..2000 {
            if self.status().await == status {
                return;
            }
        }
        panic!("it never became {status}; it is {}", self.status().await);
    }

    /// A call that got as far as this gate.
    async fn stuck(&self, call: &'static str, gate: &Gate) -> JoinHandle<Answer> {
        gate.close();
        let started = self.start(call);
        for _ in 0..100_000 {
            if gate.waiting() > 0 {
                return started;
            }
            tokio::task::yield_now().await;
        }
        panic!("{call} never came there");
    }

    /// The client of a call that is under way goes away, and the service notices.
    async fn breaks_off(&self, call: JoinHandle<Answer>) {
        call.abort();
        assert!(call.await.is_err());
        // Each of these is a round trip on another connection.
        for _ in 0..20 {
            self.status().await;
        }
    }
}

#[tokio::test]
async fn a_job_is_completed_while_a_heartbeat_is_under_way() {
    let world = World::new().await;
    let beat = world.stuck("heartbeat", &world.faults.extend).await;
    let done = world.call("complete").await;
    assert_eq!((done.status, done.json()), (200, json!({"status": "Completed"})));
    world.faults.extend.open();
    beat.await.unwrap().is_problem(409, "stale_receipt");
}

#[tokio::test]
async fn a_client_that_goes_away_during_a_heartbeat_keeps_its_claim_for_as_long_as_it_asked() {
    let world = World::new().await;
    world.hand.advance(Duration::from_secs(6)).await;
    let beat = world.stuck("heartbeat", &world.faults.extend).await;
    world.breaks_off(beat).await;
    world.faults.extend.open();
    for _ in 0..20 {
        world.status().await;
    }
    world.hand.advance(Duration::from_secs(6)).await;
    // A claim forgets what was lost.
    let claim = world.service.post("/v1/jobs/claim", r#"{"types":["sums.halve"],"wait":"0s"}"#).await;
    assert_eq!(claim.json(), json!({"jobs": []}));
    assert_eq!(world.call("complete").await.status, 200);
}

#[tokio::test]
async fn what_a_client_said_last_counts_though_it_goes_away() {
    for (call, status) in [("complete", "Completed"), ("fail", "Scheduled")] {
        let world = World::new().await;
        let last = world.stuck(call, &world.faults.settle).await;
        world.breaks_off(last).await;
        world.faults.settle.open();
        world.reaches(status).await;
        world.call(call).await.is_problem(409, "stale_receipt");
    }
}

#[tokio::test]
async fn of_two_that_settle_a_job_at_once_the_second_is_told_so() {
    let world = World::new().await;
    let first = world.stuck("complete", &world.faults.settle).await;
    for call in ["complete", "fail"] {
        let second = world.call(call).await.is_problem(409, "conflict");
        assert!(second["detail"].as_str().unwrap().contains("another request"), "{second}");
    }
    world.faults.settle.open();
    assert_eq!(first.await.unwrap().status, 200);
    world.call("complete").await.is_problem(409, "stale_receipt");
}

#[tokio::test]
async fn a_job_that_could_not_be_settled_can_be_settled_again_and_counts_once() {
    for (call, status, retries) in [("complete", "Completed", 0), ("fail", "Scheduled", 1)] {
        let world = World::new().await;
        *world.faults.refuse.lock().unwrap() = Some(ErrorKind::Denied);
        world.call(call).await.is_problem(403, "forbidden");
        assert_eq!(world.status().await, "InProgress");
        assert_eq!(world.call("heartbeat").await.status, 200);
        assert_eq!(world.call(call).await.json(), json!({"status": status}));
        assert_eq!(world.service.get("/v1/jobs/one").await.json()["retry_count"], retries);
    }
}
