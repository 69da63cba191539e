//! One run: load and kills, then a drain, then the check.

use super::{
    checker::{Checker, Dead, Holding, Inventory, Terms},
    crew::Crew,
    journal::micros,
    load::{LONGEST_DELAY, Load},
    report::{Finding, Kind, Report},
    tail::Tail,
    worker::{Role, directory},
};
use crate::{Namespace, Pace, Rig};
use dwell_core::{
    Action, AtomicMove, BoxError, Capabilities, Consumer, Lease, Note, OnMissing, Outcome, Record,
    RecordQuery, Settle, State, Subscription, Text, Transport, wire,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// Options of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of kills.
    pub kills: usize,
    /// Seed of the plan.
    pub seed: u64,
}

/// Time within which a new member has joined its group.
const SETTLED_IN: Duration = Duration::from_secs(5);
/// Interval between scans of the journals.
const ROUND: Duration = Duration::from_millis(200);
/// Longest time to wait for the load to drain.
const LONGEST_DRAIN: Duration = Duration::from_secs(300);

/// Runs the plan and reports its progress. The second result is the directory of the journals,
/// which are kept if there are findings.
pub(super) async fn run(
    rig: &dyn Rig,
    options: Options,
    tell: &mut dyn FnMut(&str),
) -> Result<(Report, Option<PathBuf>), BoxError> {
    let Options { seed, .. } = options;
    let seams = rig.seams();
    let namespace = Namespace::new("faults", &seams.incarnation);
    let directory = directory(&namespace);
    fs::create_dir_all(&directory)?;

    let load = Load::new(namespace.clone(), seed, rig.pace().lease);
    let transport = rig.connect(&namespace, seams.clone()).await?;
    let store = rig.store(&namespace, seams.clone()).await?;
    let has_control = transport.capabilities().delay_control || store.is_some();
    let subscriptions: Vec<_> = load.subscriptions().iter().map(|settings| settings.subscription()).collect();
    transport.provision(&[], &subscriptions, OnMissing::Create).await?;
    let letters = Letters::open(&*transport, &subscriptions).await?;
    let terms = terms(transport.capabilities(), store.is_some(), &subscriptions, rig.pace());
    let quiet = match terms.holding {
        Holding::Lease(_) => rig.pace().lease,
        Holding::Session(_) => rig.pace().session,
    };
    let mut show = Show {
        rig,
        crew: Crew::new(namespace.clone(), seed, seams.clock.clone(), has_control, rig.abilities().promoters),
        checker: Checker::new(terms),
        tail: Tail::new(&directory),
        letters,
        inventory: Inventory::default(),
        kills: 0,
        tell,
        said: String::new(),
    };
    show.kill_under_load(&load, options.kills).await?;
    show.drain(quiet * 2 + LONGEST_DELAY).await?;
    show.crew.stop(Role::Consumer).await?;
    show.crew.stop(Role::Promoter).await?;
    show.look()?;
    show.inventory.left = left(&*transport, &subscriptions).await?;

    let mut report = show.checker.report(&show.inventory);
    let problems = std::mem::take(&mut show.crew.problems);
    for text in problems.into_iter().chain(rig.inspect(&namespace).await?) {
        report.add(Finding { kind: Kind::Broken, id: None, text });
    }
    report.transport = rig.name().to_owned();
    (report.kills, report.seed) = (show.kills, seed);
    drop(show);
    transport.close().await?;
    if report.is_ok() {
        fs::remove_dir_all(&directory)?;
        return Ok((report, None));
    }
    Ok((report, Some(directory)))
}

fn terms(capabilities: Capabilities, has_store: bool, subscriptions: &[Subscription], pace: Pace) -> Terms {
    let mut places: BTreeMap<Text, Vec<Text>> = BTreeMap::new();
    for of in subscriptions {
        places.entry(of.topic.clone()).or_default().push(Load::place(&of.topic, &of.name));
    }
    let holding = match capabilities.lease {
        Lease::Timed { .. } => Holding::Lease(micros(pace.lease)),
        Lease::Session => Holding::Session(micros(pace.session)),
    };
    let moves_at_once = capabilities.atomic_move != AtomicMove::No;
    // Without atomic moves, pending messages are stored in one place and copied to the other.
    let copies_what_waits = has_store || !moves_at_once;
    Terms { places, holding, moves_at_once, copies_what_waits }
}

/// State of a run in progress.
struct Show<'a> {
    rig: &'a dyn Rig,
    crew: Crew,
    checker: Checker,
    tail: Tail,
    letters: Letters,
    inventory: Inventory,
    kills: usize,
    tell: &'a mut dyn FnMut(&str),
    /// Last line of progress.
    said: String,
}

impl Show<'_> {
    async fn kill_under_load(&mut self, load: &Load, kills: usize) -> Result<(), BoxError> {
        let clock = self.rig.seams().clock;
        let dice = load.dice(&["kills"]);
        while self.kills < kills {
            self.start()?;
            clock.sleep(dice.millis(100, 700)).await;
            // Sometimes several workers are killed at once, and sometimes one is not restarted for
            // a while.
            let at_once = if dice.chance(20) { 2 + dice.below(2) as usize } else { 1 };
            // Sometimes the server itself is killed, if the rig can restart it. All calls fail
            // then, and confirmed data must still exist afterwards.
            if self.rig.abilities().restart && dice.chance(10) {
                if matches!(self.checker.holding(), Holding::Session(_)) {
                    clock.sleep(SETTLED_IN).await;
                }
                let from = clock.moment().micros();
                self.rig.restart_broker().await?;
                self.checker.broker_was_away(from, clock.moment().micros());
                self.kills += 1;
                self.look()?;
                continue;
            }
            for _ in 0..at_once.min(kills - self.kills) {
                let Some(name) = self.crew.kill(&dice)? else { break };
                self.checker.killed(&name, clock.moment().micros());
                self.kills += 1;
            }
            if dice.chance(50) {
                clock.sleep(dice.millis(0, 400)).await;
            }
            self.look()?;
            self.say(&format!("{} of {kills} kills", self.kills));
        }
        self.start()?;
        clock.sleep(self.rig.pace().lease).await;
        self.crew.stop(Role::Producer).await?;
        self.crew.stop(Role::Canceller).await
    }

    fn start(&mut self) -> Result<(), BoxError> {
        let now = self.rig.seams().clock.moment().micros();
        for name in self.crew.start()? {
            self.checker.started(&name, now);
        }
        Ok(())
    }

    /// Reads the new lines of the journals, and returns their number.
    fn look(&mut self) -> Result<usize, BoxError> {
        let mut lines = 0;
        self.tail.read(
            |_| true,
            |name, line| {
                lines += 1;
                self.checker.observe(name, line);
            },
        )?;
        Ok(lines)
    }

    /// Waits until nothing has happened for `quiet`, and longer once if something is missing then.
    async fn drain(&mut self, quiet: Duration) -> Result<(), BoxError> {
        self.until_quiet(quiet).await?;
        self.inventory.dead.extend(self.letters.read().await?);
        if self.checker.report(&self.inventory).lost > 0 {
            self.until_quiet(quiet + self.rig.pace().patience).await?;
            self.inventory.dead.extend(self.letters.read().await?);
        }
        Ok(())
    }

    async fn until_quiet(&mut self, quiet: Duration) -> Result<(), BoxError> {
        let clock = self.rig.seams().clock;
        let began = clock.elapsed();
        let mut last = began;
        while clock.elapsed().saturating_sub(last) < quiet {
            clock.sleep(ROUND).await;
            if self.look()? > 0 && clock.elapsed().saturating_sub(began) < LONGEST_DRAIN {
                last = clock.elapsed();
            }
            self.say(&format!("{} kills, draining", self.kills));
        }
        Ok(())
    }

    fn say(&mut self, what: &str) {
        let (sent, handled) = (self.checker.sent(), self.checker.handled());
        let line = format!("{}: {what}, {sent} sent, {handled} copies handled", self.rig.name());
        if line != self.said {
            (self.tell)(&line);
            self.said = line;
        }
    }
}

/// Lists the messages that a drained store should not hold, as far as its ledger shows.
async fn left(transport: &dyn Transport, subscriptions: &[Subscription]) -> Result<Vec<String>, BoxError> {
    let Some(ledger) = transport.ledger() else { return Ok(vec![]) };
    let is_over = |state| matches!(state, State::Done | State::Dead | State::Discarded | State::Cancelled);
    let counts = ledger.counts().await?.into_iter();
    let ours = counts.filter(|count| subscriptions.iter().any(|of| of.topic == count.topic));
    let mut left = vec![];
    for count in ours.filter(|count| !is_over(count.state)) {
        let query = RecordQuery {
            topic: Some(count.topic.clone()),
            subscription: count.subscription.clone(),
            states: vec![count.state],
            limit: SHOWN,
            ..RecordQuery::default()
        };
        let records: Vec<_> = ledger.list(query).await?.items.iter().map(shown).collect();
        let which =
            if records.is_empty() { "no such record is found".to_owned() } else { records.join("; ") };
        let of = count.subscription.as_deref().unwrap_or("no subscription yet");
        left.push(format!("{} {} in {} ({of}): {which}", count.count, count.state, count.topic));
    }
    Ok(left)
}

/// Maximum number of leftover records in a finding.
const SHOWN: usize = 5;

fn shown(record: &Record) -> String {
    let until = record.lease_until.map(|until| format!(" until {}", until.0)).unwrap_or_default();
    format!(
        "{} since {}, delivered {} times, last to {}{until}",
        record.message.id,
        record.updated_at.0,
        record.deliveries,
        record.worker.as_deref().unwrap_or("nobody")
    )
}

/// Reads the dead letters, on any transport.
struct Letters(Vec<Arc<dyn Consumer>>);

/// Subscription that reads the dead letters.
const READER: &str = "reader";

impl Letters {
    async fn open(transport: &dyn Transport, subscriptions: &[Subscription]) -> Result<Self, BoxError> {
        let channels: BTreeSet<_> = subscriptions
            .iter()
            .flat_map(Subscription::channels)
            .map(|channel| channel.topic_name().clone())
            .collect();
        let mut readers = vec![];
        for channel in channels {
            let of = Subscription::new(channel, READER);
            transport.provision(&[], std::slice::from_ref(&of), OnMissing::Create).await?;
            readers.push(transport.consumer(of).await?);
        }
        Ok(Self(readers))
    }

    /// Reads all dead letters.
    async fn read(&self) -> Result<Vec<Dead>, BoxError> {
        let mut read = vec![];
        for reader in &self.0 {
            loop {
                let deliveries = reader.receive(100, Duration::from_millis(500), None).await?;
                if deliveries.is_empty() {
                    break;
                }
                let mut batch = vec![];
                for delivery in deliveries {
                    let header = |name| delivery.message.headers.get_text(name).unwrap_or_default();
                    read.push(Dead {
                        id: delivery.message.id.clone(),
                        of: Load::place(header(wire::ORIGINAL_TOPIC), header(wire::SUBSCRIPTION)),
                        is_poison: header(wire::REJECTION_REASON) == "poison",
                    });
                    let note = Note {
                        outcome: Outcome::Handled,
                        error: None,
                        worker: READER.into(),
                        moved_to: None,
                    };
                    batch.push(Settle { delivery, action: Action::ACK, note });
                }
                if let Some(unsettled) = reader.settle(batch).await.pop() {
                    return Err(unsettled.error.into());
                }
            }
        }
        Ok(read)
    }
}
