//! Worker processes, each an engine with its pumps, which start, run, pause, stop and crash.

use crate::{
    clock::ProcessClock,
    dice::Dice,
    faulty::{Faulty, Link},
    handler::work,
    life::{Life, Who},
    plan::Target,
    scene::Scene,
    trace::{Event, Service, Stage},
};
use dwell_conformance::log::{Log, LogBroker};
use dwell_core::{Address, Consumer, Result, Seams, SeededRandom, Transport};
use dwell_engine::{DelayMode, Engine, Pump, Status};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{mpsc, watch};

/// Name of the broker in its store.
pub(crate) const VIA: &str = "broker";

/// Brokers, which outlive every process.
#[derive(Clone)]
pub(crate) enum Brokers {
    /// Memory only.
    Memory(Arc<dyn Transport>),
    /// Memory with a store.
    Stored(Arc<dyn Transport>, Arc<dyn Transport>),
    /// The log with a store.
    Log(LogBroker, Arc<dyn Transport>),
}

/// One process in its current life.
struct Seat {
    life: Arc<Life>,
    engine: Option<Engine>,
    links: Vec<Arc<Link>>,
    /// Its session in the log.
    session: Option<u64>,
    stop: watch::Sender<bool>,
    dice: Dice,
}

pub(crate) struct Processes {
    scene: Arc<Scene>,
    brokers: Brokers,
    seats: Vec<Mutex<Seat>>,
    stopped: mpsc::UnboundedSender<Who>,
}

impl Processes {
    /// Creates the processes, none of them alive yet. `stopped` receives those that stop.
    pub(crate) fn new(
        scene: &Arc<Scene>,
        brokers: Brokers,
        stopped: mpsc::UnboundedSender<Who>,
    ) -> Arc<Self> {
        let seat = |process| {
            let life = Life::new(Who { process, life: 0 });
            life.end();
            let dice = scene.plan.dice.fork(&format!("process {process}"));
            Mutex::new(Seat {
                life,
                engine: None,
                links: vec![],
                session: None,
                stop: watch::Sender::new(false),
                dice,
            })
        };
        let seats = (0..scene.plan.processes.len()).map(seat).collect();
        Arc::new(Self { scene: scene.clone(), brokers, seats, stopped })
    }

    fn seat(&self, process: usize) -> MutexGuard<'_, Seat> {
        self.seats[process].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a new life of a process.
    pub(crate) fn start(self: &Arc<Self>, process: usize) {
        let who = Who { process, life: self.seat(process).life.who.life + 1 };
        let life = Life::new(who);
        let stop = watch::Sender::new(false);
        let stopping = stop.subscribe();
        {
            let mut seat = self.seat(process);
            seat.life = life.clone();
            seat.stop = stop;
            seat.session = None;
        }
        self.scene.record(Event::Life(who, Stage::Started));
        let clock = ProcessClock {
            clock: self.scene.clock.clone(),
            crew: self.scene.crew.clone(),
            life: life.clone(),
            skew: self.scene.plan.processes[process].skew,
        };
        let seed = self.scene.plan.dice.fork(&format!("seams {who}")).next();
        let seams = Seams::new(Arc::new(clock), Arc::new(SeededRandom::new(seed)), format!("p{process}"));
        let main = self.clone().main(life, seams.clone(), stopping);
        tokio::spawn(seams.clock.track(Box::pin(main)));
    }

    /// Runs a process from its start to its orderly end.
    async fn main(self: Arc<Self>, life: Arc<Life>, seams: Seams, mut stopping: watch::Receiver<bool>) {
        let process = life.who.process;
        let plan = &self.scene.plan.processes[process];
        let engine = loop {
            match self.build(&life, seams.clone()).await {
                Ok(engine) => break engine,
                Err(_) => seams.clock.sleep(Duration::from_secs(1)).await,
            }
        };
        self.seat(process).engine = Some(engine.clone());
        for settings in &plan.subscriptions {
            while engine
                .subscribe(settings.clone(), work(&self.scene, &life, settings, plan.executor))
                .await
                .is_err()
            {
                seams.clock.sleep(Duration::from_secs(1)).await;
            }
        }
        self.scene.record(Event::Life(life.who, Stage::Ready));
        let _ = stopping.wait_for(|stop| *stop).await;
        self.scene.record(Event::Life(life.who, Stage::Stopping));
        // Whatever cannot be stopped in order ends with the life.
        let _ = engine.shutdown().await;
        self.scene.record(Event::Life(life.who, Stage::Stopped));
        life.end();
        let _ = self.stopped.send(life.who);
    }

    async fn build(&self, life: &Arc<Life>, seams: Seams) -> Result<Engine> {
        let link = |service| {
            let mut seat = self.seat(life.who.process);
            let link = Link::new(&self.scene, life, service, seat.links.len());
            seat.links.push(link.clone());
            link
        };
        match &self.brokers {
            Brokers::Memory(memory) => {
                let target = Faulty::new(memory.clone(), link(Service::Target));
                Engine::builder(target, seams).build().await
            }
            Brokers::Stored(memory, store) => {
                let target = Faulty::new(memory.clone(), link(Service::Target));
                let store = Faulty::new(store.clone(), link(Service::Store));
                Engine::builder(target, seams).store(store).via(VIA).delay(DelayMode::Scheduler).build().await
            }
            Brokers::Log(broker, store) => {
                let log = Log::connect(broker, seams.clone())?;
                self.seat(life.who.process).session = Some(log.session());
                let target = Faulty::new(Arc::new(log), link(Service::Target));
                let store = Faulty::new(store.clone(), link(Service::Store));
                Engine::builder(target, seams).store(store).via(VIA).allow_volatile(true).build().await
            }
        }
    }

    /// Cleans up after a process that crashed or stopped, and restarts it after a while.
    pub(crate) fn bury(self: &Arc<Self>, who: Who) {
        let (engine, open, pause, silence) = {
            let mut seat = self.seat(who.process);
            if seat.life.who != who {
                return;
            }
            let links = std::mem::take(&mut seat.links);
            let open: Vec<(Address, Arc<dyn Consumer>)> =
                links.iter().flat_map(|link| link.take_open()).collect();
            (seat.engine.take(), open, seat.dice.millis(10, 60_000), seat.dice.millis(10, 45_000))
        };
        drop(engine);
        // The broker considers a silent client alive for a while.
        let (scene, sessions) = (self.scene.clone(), self.has_sessions());
        self.scene.spawn(async move {
            scene.sleep(silence).await;
            for (of, consumer) in open {
                drop(consumer);
                if sessions && !dwell_engine::is_forward_topic(of.topic_name()) {
                    scene.record(Event::Membership(of));
                }
            }
        });
        let processes = self.clone();
        self.scene.spawn(async move {
            processes.scene.sleep(pause).await;
            processes.start(who.process);
        });
    }

    fn has_sessions(&self) -> bool {
        matches!(self.scene.plan.target, Target::Log(_))
    }

    /// Returns a process that can accept requests: this one, or another.
    pub(crate) fn ready(&self, process: usize) -> Option<(Arc<Life>, Engine)> {
        let count = self.seats.len();
        (0..count).find_map(|offset| {
            let seat = self.seat((process + offset) % count);
            let engine = seat.engine.clone().filter(|_| seat.life.is_alive())?;
            Some((seat.life.clone(), engine))
        })
    }

    pub(crate) fn crash(&self, process: usize) {
        let life = self.seat(process).life.clone();
        self.scene.crash(&life);
    }

    /// Asks a process to stop in order.
    pub(crate) fn stop(&self, process: usize) {
        self.seat(process).stop.send_replace(true);
    }

    /// Pauses a process for a while. The log declares it dead if the pause is long.
    pub(crate) fn pause(self: &Arc<Self>, process: usize, pause: Duration) {
        const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
        let (life, session) = {
            let seat = self.seat(process);
            (seat.life.clone(), seat.session)
        };
        if !life.is_alive() {
            return;
        }
        self.scene.record(Event::Life(life.who, Stage::Paused));
        life.pause();
        let processes = self.clone();
        self.scene.spawn(async move {
            let scene = &processes.scene;
            if pause > SESSION_TIMEOUT && session.is_some() {
                scene.sleep(SESSION_TIMEOUT).await;
                processes.drop_session(process, session);
            }
            scene.sleep(pause.saturating_sub(SESSION_TIMEOUT)).await;
            life.resume();
            if life.is_alive() {
                scene.record(Event::Life(life.who, Stage::Resumed));
            }
        });
    }

    /// Makes the log declare a process dead.
    pub(crate) fn drop_session(&self, process: usize, session: Option<u64>) {
        let session = session.or(self.seat(process).session);
        if let (Brokers::Log(broker, _), Some(session)) = (&self.brokers, session) {
            broker.drop_session(session);
            self.seat(process).links.iter().for_each(|link| link.lose_session());
            for settings in &self.scene.plan.processes[process].subscriptions {
                self.scene.record(Event::Membership(settings.subscription().address()));
            }
        }
    }

    /// Stops the log's broker with all its sessions, or starts it again.
    pub(crate) fn set_log_running(&self, running: bool) {
        if let Brokers::Log(broker, _) = &self.brokers {
            if running {
                return broker.start();
            }
            broker.stop();
            for process in 0..self.seats.len() {
                self.seat(process).links.iter().for_each(|link| link.lose_session());
            }
            for settings in self.scene.plan.subscriptions() {
                self.scene.record(Event::Membership(settings.subscription().address()));
            }
        }
    }

    /// Pauses the pumps of a process for a while.
    pub(crate) fn pause_pumps(&self, process: usize, pause: Duration) {
        let engine = self.seat(process).engine.clone();
        let pumps = engine.map(|engine| engine.monitor().pumps()).unwrap_or_default();
        pumps.iter().for_each(Pump::pause);
        let scene = self.scene.clone();
        self.scene.spawn(async move {
            scene.sleep(pause).await;
            pumps.iter().for_each(Pump::resume);
        });
    }

    /// Restarts performers that have stopped because of a limit or a misconfiguration.
    pub(crate) fn restart_pumps(&self) {
        let is_down = |status: &Status| matches!(status, Status::LimitExceeded | Status::Misconfigured(_));
        for process in 0..self.seats.len() {
            let engine = self.seat(process).engine.clone();
            let pumps = engine.map(|engine| engine.monitor().pumps()).unwrap_or_default();
            pumps.iter().filter(|pump| pump.status().iter().any(is_down)).for_each(Pump::restart);
        }
    }

    /// Ends all processes at the end of the world.
    pub(crate) fn end(&self) {
        for seat in &self.seats {
            seat.lock().unwrap_or_else(PoisonError::into_inner).life.end();
        }
    }
}
