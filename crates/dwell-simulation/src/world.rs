//! One world, from its start until it has come to rest.

use crate::{
    checker::{Inventory, Tally, Violation},
    plan::{Happening, Options, Plan, Target},
    process::{Brokers, Processes},
    request::ask,
    scene::Scene,
    trace::{Entry, Event, Fault, Service, Subject},
};
use dwell_conformance::log::{Log, LogBroker, LogSettings};
use dwell_core::{
    Address, Clock, OnMissing, Result, Seams, SeededRandom, State, Subscription, Topic, Transport, wire,
};
use dwell_engine::{
    memory::{Memory, MemorySettings},
    planted,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Longer than any pause, backoff or lease.
const SILENCE: Duration = Duration::from_secs(3600);
/// Maximum number of events: a world with more does not come to rest.
const MOST_EVENTS: usize = 200_000;
/// Time for which a world must stay at rest.
const REST: Duration = Duration::from_secs(600);

/// Result of a world.
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// The first violation, if any.
    pub violation: Option<Violation>,
    /// Everything that happened.
    pub trace: Vec<Entry>,
    /// Totals of the events.
    pub tally: Tally,
}

/// Runs the world of this seed to its end. The same seed gives the same trace.
pub fn run(seed: u64, options: Options) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime without drivers can always be built");
    planted::set(options.bug);
    let report = runtime.block_on(live(Arc::new(Plan::draw(seed, options))));
    planted::set(None);
    report
}

async fn live(plan: Arc<Plan>) -> Report {
    let (scene, mut crashes) = Scene::new(plan.clone());
    plan.describe().into_iter().for_each(|line| scene.record(Event::Note(line)));
    let (brokers, admin) = brokers(&scene).expect("connecting to a running broker succeeds");
    provision(&scene, &*admin).await;
    let (stopped, mut stops) = tokio::sync::mpsc::unbounded_channel();
    let processes = Processes::new(&scene, brokers.clone(), stopped);
    (0..plan.processes.len()).for_each(|process| processes.start(process));
    let reaper = processes.clone();
    scene.spawn(async move {
        loop {
            let who = tokio::select! {
                biased;
                Some(who) = crashes.recv() => who,
                Some(who) = stops.recv() => who,
                else => return,
            };
            reaper.bury(who);
        }
    });

    let mut number = 0;
    for (at, happening) in plan.timeline.clone() {
        scene.clock.advance(at.saturating_sub(scene.clock.elapsed())).await;
        if scene.violation().is_some() {
            break;
        }
        number += 1;
        happen(&scene, &processes, number, happening);
    }
    if scene.violation().is_none() {
        drain(&scene, &processes, &brokers).await;
    }
    if scene.violation().is_none() {
        let inventory = take_stock(&scene, &brokers, &*admin).await;
        scene.lock().checker.finish(&inventory);
    }
    processes.end();
    scene.clock.idle().await;
    let mut record = scene.lock();
    Report {
        seed: plan.seed,
        violation: record.checker.violation().cloned(),
        tally: record.checker.tally().clone(),
        trace: std::mem::take(&mut record.trace),
    }
}

/// Returns the brokers, which outlive every process, and a connection to them without faults.
fn brokers(scene: &Arc<Scene>) -> Result<(Brokers, Arc<dyn Transport>)> {
    let seams = |name: &str| {
        let random = SeededRandom::new(scene.plan.dice.fork(name).next());
        Seams::new(Arc::new(scene.clock.clone()), Arc::new(random), name)
    };
    Ok(match scene.plan.target {
        Target::Memory => {
            let target = memory(&seams("memory"));
            (Brokers::Memory(target.clone()), target)
        }
        Target::Stored => {
            let (target, store) = (memory(&seams("memory")), memory(&seams("store")));
            (Brokers::Stored(target.clone(), store), target)
        }
        Target::Log(partitions) => {
            let broker = LogBroker::new(LogSettings { partitions, ..LogSettings::default() });
            let admin = Arc::new(Log::connect(&broker, seams("admin"))?);
            (Brokers::Log(broker, memory(&seams("store"))), admin)
        }
    })
}

fn memory(seams: &Seams) -> Arc<dyn Transport> {
    Arc::new(Memory::new(seams.clone(), MemorySettings::default()))
}

/// Creates everything before the first message: a later subscription would miss earlier messages,
/// which is not a loss.
async fn provision(scene: &Scene, admin: &dyn Transport) {
    let topics: Vec<_> = scene.plan.topics.iter().map(|topic| Topic::named(topic.name.clone())).collect();
    let subscriptions: Vec<_> = scene.plan.subscriptions().map(|settings| settings.subscription()).collect();
    admin
        .provision(&topics, &subscriptions, OnMissing::Create)
        .await
        .expect("an empty broker accepts any topics and subscriptions");
}

fn happen(scene: &Arc<Scene>, processes: &Arc<Processes>, number: usize, happening: Happening) {
    match happening {
        Happening::Request(process, planned) => ask(scene, processes, process, number, planned),
        Happening::Crash(process) => processes.crash(process),
        Happening::Pause(process, pause) => processes.pause(process, pause),
        Happening::Restart(process) => processes.stop(process),
        Happening::Step(by) => {
            scene.clock.step_wall(by);
            scene.record(Event::Step(by));
        }
        Happening::Outage(service, pause) => outage(scene, processes, service, pause),
        Happening::DropSession(process) => {
            scene.fault(Fault::DroppedSession, None, "session", vec![]);
            processes.drop_session(process, None);
        }
        Happening::PausePumps(process, pause) => processes.pause_pumps(process, pause),
        Happening::RestartPumps => processes.restart_pumps(),
    }
}

fn outage(scene: &Arc<Scene>, processes: &Arc<Processes>, service: Service, pause: Duration) {
    scene.fault(Fault::Outage, None, "outage", vec![]);
    scene.set_outage(service, true);
    // A broker that is down loses its sessions; one that is only unreachable does not.
    let is_down = service == Service::Target && pause.as_millis().is_multiple_of(2);
    if is_down {
        processes.set_log_running(false);
    }
    let (scene, processes) = (scene.clone(), processes.clone());
    let spawner = scene.clone();
    spawner.spawn(async move {
        scene.sleep(pause).await;
        scene.set_outage(service, false);
        if is_down {
            processes.set_log_running(true);
        }
    });
}

/// Runs until every message has ended, and then for a while longer, because ended messages must not
/// return. Stops if no event has happened for long and no message is due any more: messages that
/// have not ended by then are lost.
async fn drain(scene: &Scene, processes: &Processes, brokers: &Brokers) {
    scene.clock.advance(scene.plan.horizon.saturating_sub(scene.clock.elapsed())).await;
    let (mut events, mut last) = (0, scene.clock.elapsed());
    loop {
        if scene.violation().is_some() {
            return;
        }
        if scene.lock().checker.all_ended() {
            scene.clock.advance(REST).await;
            let all_ended = scene.lock().checker.all_ended();
            if all_ended && left(scene, brokers).await.is_empty() {
                return;
            }
        }
        processes.restart_pumps();
        if !scene.clock.step(SILENCE).await {
            scene.clock.advance(SILENCE).await;
        }
        let (now, wall) = (scene.clock.elapsed(), scene.clock.now());
        let record = scene.lock();
        if record.trace.len() > events {
            (events, last) = (record.trace.len(), now);
        } else if now > last + SILENCE && !record.checker.any_due_after(wall) {
            return;
        }
        if events > MOST_EVENTS {
            return;
        }
    }
}

/// Returns the dead letters, and the messages left in queues that should be empty.
async fn take_stock(scene: &Scene, brokers: &Brokers, admin: &dyn Transport) -> Inventory {
    let mut dead = BTreeSet::new();
    for topic in scene.plan.dead_letter_topics() {
        let consumer = admin.consumer(Subscription::new(topic.clone(), topic)).await;
        let consumer = consumer.expect("dead-letter channels exist");
        loop {
            let batch = consumer
                .receive(1000, Duration::ZERO, None)
                .await
                .expect("the brokers are available at the end");
            if batch.is_empty() {
                break;
            }
            for delivery in batch {
                let text = |name| delivery.message.headers.get_text(name);
                if let (Some(topic), Some(name)) = (text(wire::ORIGINAL_TOPIC), text(wire::SUBSCRIPTION)) {
                    dead.insert((Subject::of(&delivery.message), Address::subscription(topic, name)));
                }
            }
        }
    }
    Inventory { dead, left: left(scene, brokers).await }
}

async fn left(scene: &Scene, brokers: &Brokers) -> Vec<String> {
    let memories = match brokers {
        Brokers::Memory(memory) | Brokers::Log(_, memory) => vec![memory],
        Brokers::Stored(memory, store) => vec![memory, store],
    };
    let ended = |state| matches!(state, State::Dead | State::Discarded | State::Cancelled | State::Done);
    let mut left = vec![];
    for memory in memories {
        let ledger = memory.ledger().expect("memory keeps a ledger");
        let counts = ledger.counts().await.expect("counting in memory succeeds");
        left.extend(counts.into_iter().filter(|count| !ended(count.state)).map(|count| {
            format!("{} {} in {}/{:?}", count.count, count.state, count.topic, count.subscription)
        }));
    }
    if let Brokers::Log(broker, _) = brokers {
        for settings in scene.plan.subscriptions() {
            let of = settings.subscription().address();
            let lag = broker.lag(&of).unwrap_or(u64::MAX);
            if lag > 0 {
                left.push(format!("{lag} uncommitted records of {of}"));
            }
        }
    }
    left
}
