//! The jobs of these stories, and handlers that do as they are told.

use dwell::{Builder, prelude::*, settings::RetryPolicy};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Semaphore;

/// The unit of time of a clock that can be set.
pub const SECOND: Duration = Duration::from_secs(1);

/// A short wait.
pub fn wait(unit: Duration) -> Duration {
    unit * 2
}

/// How long what a worker loses is gone: leases in these stories.
pub fn lease(unit: Duration) -> Duration {
    unit * 2
}

/// Doubles a number, or does what its name says.
#[derive(Command, Serialize, Deserialize, Clone, Debug)]
#[message(name = "sums.double")]
pub struct Double {
    pub number: u64,
    #[serde(default)]
    pub mood: Mood,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub enum Mood {
    #[default]
    Fine,
    /// Fails so often, then succeeds.
    Fails(u32),
    /// Gives up at once.
    Rejects,
    Panics,
    /// Asks to come back, once.
    Defers,
    /// Waits until it is let go.
    Waits,
    /// Returns so many bytes.
    Returns(usize),
}

pub fn double(number: u64) -> Double {
    Double { number, mood: Mood::Fine }
}

pub fn moody(mood: Mood) -> Double {
    Double { number: 1, mood }
}

#[derive(Command, Serialize, Deserialize)]
#[message(name = "sums.square")]
pub struct Square {
    pub number: u64,
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
pub struct Answer {
    pub value: u64,
    pub text: String,
}

/// What handlers share: what ran, and what lets them go.
#[derive(Clone)]
pub struct Floor {
    pub ran: Arc<Mutex<Vec<u64>>>,
    pub gate: Arc<Semaphore>,
    inside: Arc<AtomicUsize>,
    pub most: Arc<AtomicUsize>,
    /// All times here are so many of it.
    unit: Duration,
}

impl Floor {
    pub fn new(unit: Duration) -> Self {
        Self {
            ran: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            inside: Arc::default(),
            most: Arc::default(),
            unit,
        }
    }

    pub fn runs(&self) -> usize {
        self.ran.lock().unwrap().len()
    }

    pub fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }
}

/// Counts a run for as long as it lasts, however it ends.
struct Inside(Floor);

impl Inside {
    fn new(floor: &Floor) -> Self {
        let now = floor.inside.fetch_add(1, Ordering::SeqCst) + 1;
        floor.most.fetch_max(now, Ordering::SeqCst);
        Self(floor.clone())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn run(job: Double, State(floor): State<Floor>, cx: Cx) -> Result<Answer, Failure> {
    let _inside = Inside::new(&floor);
    floor.ran.lock().unwrap().push(job.number);
    let mut text = String::new();
    match job.mood {
        Mood::Fine => {}
        Mood::Fails(times) if cx.failures() < times => return Err("out of paper".into()),
        Mood::Fails(_) => {}
        Mood::Rejects => return Err(Failure::reject("no such number")),
        Mood::Panics => panic!("divided by zero"),
        Mood::Defers if cx.attempt() == 1 => return Err(Failure::defer().after(wait(floor.unit))),
        Mood::Defers => {}
        Mood::Waits => floor.gate.acquire().await?.forget(),
        Mood::Returns(bytes) => text = "x".repeat(bytes),
    }
    Ok(Answer { value: job.number * 2, text })
}

/// Retries that these stories can wait for, without chance.
pub fn quick_retry(unit: Duration) -> RetryPolicy {
    RetryPolicy { max_retries: 2, base_delay: unit, max_delay: unit * 4, jitter: 0.0 }
}

/// A worker on doubles: so many at a time.
pub fn worker(floor: &Floor, concurrency: usize) -> Builder {
    let unit = floor.unit;
    Bus::builder().state(floor.clone()).job_with(
        move |queue| {
            let queue = queue.concurrency(concurrency).lease(lease(unit)).retry(quick_retry(unit));
            queue.handler_timeout(SECOND * 3600).with(|settings| settings.quarantine_after = Some(2))
        },
        run,
    )
}

/// The same queue without a worker, for those who claim: its settings are the same wherever it is described.
pub fn claimer(unit: Duration) -> Builder {
    let [base, max, lease] = [unit, unit * 4, lease(unit)].map(|time| time.as_millis());
    let config = format!(
        r#"
        [retry]
        max_retries = 2
        base_delay = "{base}ms"
        max_delay = "{max}ms"
        jitter = 0.0
        [[subscription]]
        topic = "job.sums.double"
        name = "job.sums.double"
        lease = "{lease}ms"
        quarantine_after = 2
        "#
    );
    Bus::builder().config(dwell::Config::from_toml(&config).expect("it can be read"))
}
