//! Connecting: how a transport recovers from faults of the network and of its server.
//!
//! Each case sends continuously while a fault begins and ends. A message that is sent after the
//! fault is handled within [`RECOVERY`], every confirmed message is handled, and only messages that
//! were in flight during the fault may be handled twice.

use super::{Bench, Case, Outcome, Stage, case, failure, stage::Running};
use crate::{Proxy, ServerFault};
use dwell_core::{BoxError, Clock, Error};
use dwell_engine::Verdict;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Maximum recovery time with default settings.
const RECOVERY: Duration = Duration::from_secs(15);

/// Number of senders, each of which waits for one confirmation at a time.
const SENDERS: usize = 3;

/// Number of messages that are sent before and after the fault, and confirmed before it begins.
const CALM: usize = 10;

/// Pause of a sender between two messages.
const PAUSE: Duration = Duration::from_millis(10);

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Connecting, frozen_connections_are_replaced, Proxy),
        case!(Connecting, a_resumed_server_is_used_again, Proxy, Suspend),
        case!(Connecting, a_replaced_server_is_found_behind_the_same_address, Proxy, Replace),
        case!(Connecting, an_emptied_server_gets_its_topics_again, Proxy, Empty),
        case!(Connecting, a_connection_slow_by_200_ms_causes_no_duplicates, Proxy),
        case!(Connecting, connections_reset_during_calls_lose_nothing, Proxy),
    ]
}

async fn frozen_connections_are_replaced(stage: Stage) -> Outcome {
    let trial = Trial::start(&stage).await?;
    let accepted = trial.accepted();
    let end = trial.fault(Proxy::freeze_existing);
    trial.recovers(end).await?;
    assert!(trial.accepted() > accepted, "no connection was opened");
    trial.end(Expect::Everything).await
}

async fn a_resumed_server_is_used_again(stage: Stage) -> Outcome {
    let trial = Trial::start(&stage).await?;
    stage.rig().inject(ServerFault::Suspend).await?;
    stage.pass(stage.pace().lease.max(stage.pace().session) + Duration::from_secs(2)).await;
    let end = trial.clock.elapsed();
    stage.rig().inject(ServerFault::Resume).await?;
    trial.recovers(end).await?;
    trial.end(Expect::Everything).await
}

async fn a_replaced_server_is_found_behind_the_same_address(stage: Stage) -> Outcome {
    let trial = Trial::start(&stage).await?;
    stage.rig().inject(ServerFault::Replace).await?;
    trial.recovers(trial.clock.elapsed()).await?;
    trial.end(Expect::Everything).await
}

async fn an_emptied_server_gets_its_topics_again(stage: Stage) -> Outcome {
    let trial = Trial::start(&stage).await?;
    stage.rig().inject(ServerFault::Empty).await?;
    let end = trial.clock.elapsed();
    trial.recovers(end).await?;
    trial.end(Expect::SentAfter(end)).await
}

async fn a_connection_slow_by_200_ms_causes_no_duplicates(stage: Stage) -> Outcome {
    let by = Duration::from_millis(200);
    let trial = Trial::start(&stage).await?;
    let end = trial.fault(|proxy| proxy.delay(by));
    trial.recovers(end).await?;
    let slow = trial.confirmed().into_iter().filter(|sent| sent.started >= end);
    assert!(slow.into_iter().all(|sent| sent.confirmed - sent.started >= by), "it was not slow");
    stage.pass(Duration::from_secs(2)).await;
    trial.end(Expect::EverythingOnce).await
}

async fn connections_reset_during_calls_lose_nothing(stage: Stage) -> Outcome {
    let trial = Trial::start(&stage).await?;
    let accepted = trial.accepted();
    trial.fault(Proxy::reset_calls);
    stage.pass(Duration::from_secs(3)).await;
    let end = trial.fault(Proxy::pass);
    trial.recovers(end).await?;
    assert!(trial.accepted() > accepted + 1, "no connection was reset");
    trial.end(Expect::Everything).await
}

/// A confirmed send.
#[derive(Clone, Debug)]
struct Confirmed {
    id: String,
    /// Time of its first attempt.
    started: Duration,
    confirmed: Duration,
}

/// Messages that must have been handled at the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    /// All confirmed messages.
    Everything,
    /// All confirmed messages, each exactly once.
    EverythingOnce,
    /// All messages whose send began after this time. The server has lost the others.
    SentAfter(Duration),
}

/// An engine that handles the messages of some senders.
struct Trial {
    stage: Stage,
    bench: Arc<Bench>,
    clock: Arc<dyn Clock>,
    is_stopping: Arc<AtomicBool>,
    confirmed: Arc<Mutex<Vec<Confirmed>>>,
    trouble: Arc<Mutex<Option<Error>>>,
    senders: Vec<Running<Outcome>>,
    /// Whether the transport or its store can hold [`LATE`].
    has_late: bool,
}

/// The id of a message that becomes due during the fault, or soon after it.
const LATE: &str = "late";

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Trial {
    /// Starts the engine and the senders. Returns when messages are handled.
    async fn start(stage: &Stage) -> Result<Self, BoxError> {
        let bench = Arc::new(Bench::new(stage).await?);
        bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
        let mut trial = Self {
            stage: stage.clone(),
            bench,
            clock: stage.clock(),
            is_stopping: Arc::default(),
            confirmed: Arc::default(),
            trouble: Arc::default(),
            senders: vec![],
            has_late: !stage.capabilities().delay.is_zero() || stage.store().await?.is_some(),
        };
        assert!(trial.accepted() > 0, "its connections do not lead through the proxies");
        trial.calm("before").await?;
        if trial.has_late {
            trial.bench.send_after("orders", LATE, stage.pace().delay * 2).await?;
        }
        trial.senders = (0..SENDERS).map(|sender| stage.spawn(trial.sender(sender))).collect();
        stage.until(|| lock(&trial.confirmed).len() >= CALM).await;
        Ok(trial)
    }

    /// Applies this to every proxy. Returns the time.
    fn fault(&self, fault: impl Fn(&Proxy)) -> Duration {
        self.stage.proxies().iter().for_each(|proxy| fault(proxy));
        self.clock.elapsed()
    }

    /// Number of connections that were opened so far.
    fn accepted(&self) -> u64 {
        self.stage.proxies().iter().map(|proxy| proxy.accepted()).sum()
    }

    fn confirmed(&self) -> Vec<Confirmed> {
        lock(&self.confirmed).clone()
    }

    /// Sends one message after the other, each until it is confirmed.
    fn sender(&self, sender: usize) -> impl Future<Output = Outcome> + Send + 'static {
        let (stage, bench, clock) = (self.stage.clone(), self.bench.clone(), self.clock.clone());
        let (confirmed, trouble) = (self.confirmed.clone(), self.trouble.clone());
        let is_stopping = self.is_stopping.clone();
        async move {
            for n in 0.. {
                if is_stopping.load(Ordering::SeqCst) {
                    break;
                }
                let id = format!("{sender}-{n}");
                let (envelope, started) = (stage.envelope("orders", &id), clock.elapsed());
                while let Err(error) = bench.try_send(envelope.clone()).await {
                    let refusal = (!error.is_retryable()).then(|| format!("`{id}` was refused: {error}"));
                    *lock(&trouble) = Some(error);
                    if let Some(refusal) = refusal {
                        return Err(failure(refusal));
                    }
                    clock.sleep(PAUSE).await;
                }
                lock(&confirmed).push(Confirmed { id, started, confirmed: clock.elapsed() });
                clock.sleep(PAUSE).await;
            }
            Ok(())
        }
    }

    /// Sends messages without a fault, each of which is handled once.
    async fn calm(&self, name: &str) -> Outcome {
        let (stage, runs) = (&self.stage, self.bench.runs.len());
        for n in 0..CALM {
            self.bench.send("orders", &format!("{name}-{n}")).await?;
        }
        stage.until(|| self.bench.runs.len() >= runs + CALM).await;
        self.bench.at_rest().await?;
        for n in 0..CALM {
            self.once(&format!("{name}-{n}"))?;
        }
        Ok(())
    }

    fn once(&self, id: &str) -> Outcome {
        match self.bench.runs.of(id).len() {
            1 => Ok(()),
            count => {
                let text =
                    format!("`{id}`, which was not in flight during the fault, was handled {count} times");
                Err(failure(text))
            }
        }
    }

    /// Waits until a message that was sent after `end` is handled, for at most [`RECOVERY`].
    async fn recovers(&self, end: Duration) -> Outcome {
        loop {
            let now = self.clock.elapsed();
            let sent = self.confirmed().into_iter().filter(|sent| sent.started >= end);
            if sent.into_iter().any(|sent| !self.bench.runs.of(&sent.id).is_empty()) {
                self.stage.found(format!("recovered after {:.1} s", (now - end).as_secs_f64()));
                return Ok(());
            }
            if let Some(ended) = self.senders.iter().position(Running::is_finished) {
                return Err(failure(format!("sender {ended} ended: {:?}", lock(&self.trouble))));
            }
            if now > end + RECOVERY {
                let confirmed = self.confirmed().iter().filter(|sent| sent.confirmed >= end).count();
                let runs = self.bench.runs.all().iter().filter(|run| run.at >= end).count();
                return Err(failure(format!(
                    "no message was sent and handled within {RECOVERY:?} after the fault: {confirmed} confirmed and \
                     {runs} handled since, last error {:?}",
                    lock(&self.trouble)
                )));
            }
            self.clock.sleep(PAUSE).await;
        }
    }

    /// Stops the senders, and compares the confirmed messages with the handled ones.
    async fn end(mut self, expect: Expect) -> Outcome {
        self.is_stopping.store(true, Ordering::SeqCst);
        for sender in std::mem::take(&mut self.senders) {
            sender.join().await??;
        }
        let mut sent = self.confirmed();
        if let Expect::SentAfter(time) = expect {
            sent.retain(|sent| sent.started >= time);
        }
        let is_lost = |sent: &&Confirmed| self.bench.runs.of(&sent.id).is_empty();
        self.stage.until(|| !sent.iter().any(|sent| is_lost(&sent))).await;
        let lost: Vec<_> = sent.iter().filter(is_lost).collect();
        if !lost.is_empty() {
            let first = &lost[..lost.len().min(5)];
            return Err(failure(format!("{} of {} were lost, such as {first:?}", lost.len(), sent.len())));
        }
        if self.has_late && !matches!(expect, Expect::SentAfter(_)) {
            self.stage.until(|| !self.bench.runs.of(LATE).is_empty()).await;
            assert!(!self.bench.runs.of(LATE).is_empty(), "a delayed message was lost");
        }
        self.bench.at_rest().await?;
        self.calm("after").await?;
        self.stage.look().await;
        for id in ["before", "after"].iter().flat_map(|of| (0..CALM).map(move |n| format!("{of}-{n}"))) {
            self.once(&id)?;
        }
        let twice = sent.iter().filter(|sent| self.bench.runs.of(&sent.id).len() > 1).count();
        if expect == Expect::EverythingOnce && twice > 0 {
            return Err(failure(format!("{twice} of {} were handled twice", sent.len())));
        }
        self.stage.found(format!("{twice} of {} handled twice", sent.len()));
        Ok(())
    }
}
