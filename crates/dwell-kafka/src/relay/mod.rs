//! The delay topics, and the relay that empties them.
//!
//! A delayed record is stored in the topic of a *level*, and leaves it when the level has passed
//! since the broker appended the record. It then goes to the largest level that fits into its
//! remaining delay. If that is less than the shortest level, it goes to the topic of the last
//! stretch, whose records wait in memory and are forwarded on the millisecond. Any number of relays
//! share the partitions. The only state of a relay is the offsets of its groups.

mod budget;
mod counts;
mod digest;
mod hop;
mod ladder;
mod passing;
mod settings;
mod suspension;
mod targets;
mod topics;
mod upkeep;
mod worker;

pub use counts::{Counts, Tally};
pub(crate) use hop::AFTER;
pub use ladder::Ladder;
pub use settings::RelaySettings;
pub(crate) use topics::{look, make};

use crate::{
    cluster::Cluster,
    group::{Fetch, Member, MemberSettings, REACH},
    outbox::{Outbox, Transactions},
    record::Record,
    settings::KafkaSettings,
};
use budget::Budget;
use digest::Digest;
use dwell_core::{BoxFuture, Error, ErrorKind, Result, Seams};
use futures_util::{
    FutureExt as _,
    future::{FusedFuture as _, join_all},
};
use passing::Shared;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use targets::Targets;
use tokio::{sync::watch, task::JoinSet};
use topics::Level;
use upkeep::Upkeep;
use worker::Worker;

/// Prefetch of a level: only the first record of each partition is examined, and there are many
/// levels.
const LEVEL: Fetch =
    Fetch { records: 500, bytes: 512 << 10, at_once: 64 << 10, wait: Duration::from_millis(50) };
/// Prefetch of the last stretch, which takes in as many records as permitted.
const DUE: Fetch =
    Fetch { records: 1_000, bytes: 1 << 20, at_once: 128 << 10, wait: Duration::from_millis(10) };

/// Pause before a failed relay restarts.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs a relay until `stop` completes, for a process that does nothing else. A bus runs the same
/// in the background.
///
/// Fails if the brokers are unreachable at the start or refuse the relay, or if a delay topic has
/// settings that could lose a record or deliver it early. Once the relay has worked, it retries
/// after errors that may pass: a missing topic is recreated, and a revoked permission may be
/// granted again.
pub async fn relay(
    settings: KafkaSettings,
    seams: Seams,
    counts: Arc<Counts>,
    stop: BoxFuture<'static, ()>,
) -> Result<()> {
    settings.check()?;
    let client_id = format!("{}-{}", seams.instance, seams.incarnation);
    let cluster = Cluster::connect(settings, client_id, seams.clock.clone()).await?;
    topics::check(&cluster).await?;
    let (stop, begun) = (stop.shared(), Arc::new(AtomicBool::new(false)));
    loop {
        let mut relay = Relay::new(cluster.clone(), seams.clone(), counts.clone());
        relay.begun = begun.clone();
        match relay.run(Box::pin(stop.clone())).await {
            Err(error) if error.is_retryable() || begun.load(Ordering::SeqCst) && may_pass(&error) => {
                tracing::error!(%error, "relay failed; restarting")
            }
            Ok(()) => return served(&counts),
            ended => return ended,
        }
        tokio::select! {
            () = stop.clone() => return served(&counts),
            () = seams.clock.sleep(PAUSE) => {}
        }
    }
}

/// Returns an error if the relay ended while records of a delay topic did not arrive.
fn served(counts: &Counts) -> Result<()> {
    let troubled = counts.tally().troubled;
    if troubled.is_empty() {
        return Ok(());
    }
    let each: Vec<_> = troubled.iter().map(|(topic, why)| format!("`{topic}`: {why}")).collect();
    let text = format!("the relay ended while records of delay topics did not arrive: {}", each.join("; "));
    Err(Error::new(ErrorKind::Unavailable, text))
}

/// Returns whether a relay that has worked may work again with the same settings.
fn may_pass(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::Config | ErrorKind::Conflict | ErrorKind::Unsupported)
}

/// Warns if another group relays the same delay topics. A relay with a different group name
/// forwards every record once more, from the first one on. That is never intended, and easily done.
async fn warn_of_other_groups(cluster: Cluster) {
    let settings = &cluster.settings().relay;
    // A user that may not list groups or topics may still relay.
    let (Ok(groups), Ok(topics)) = (cluster.groups().await, cluster.topics().await) else { return };
    if let Some(other) = other_group(settings, &groups, &topics) {
        tracing::warn!(
            group = %settings.group,
            "the group `{other}` relays these delay topics as well, or has done so; each group forwards every record, so that \
             messages are duplicated. Give all relays the same group; a relay inside a bus has the group `dwell`"
        );
    }
}

/// Returns another group that relays one of these delay topics.
fn other_group<'a>(settings: &RelaySettings, groups: &'a [String], topics: &[String]) -> Option<&'a String> {
    let levels = topics::levels(settings);
    groups.iter().find(|group| {
        // `dwell-test-delay-5s` reads `test-delay-5s` if that topic exists, and not `delay-5s`.
        let is_of = |topic: &str| group.strip_suffix(topic).is_some_and(|start| start.ends_with('-'));
        let is_of_longer = |topic: &str| {
            topics.iter().any(|other| other.len() > topic.len() && other.ends_with(topic) && is_of(other))
        };
        levels.iter().any(|Level { topic, .. }| {
            is_of(topic) && **group != settings.group_of(topic) && !is_of_longer(topic)
        })
    })
}

/// Registers the transactional ids of these producers. Errors that may pass are left to the callers
/// that need a producer, which retry.
async fn begin(outboxes: impl Iterator<Item = &Arc<Outbox>>) -> Result<()> {
    let begun = join_all(outboxes.map(|outbox| outbox.prepare_transactions())).await;
    let hopeless = |error: &Error| !error.is_retryable();
    begun.into_iter().filter_map(Result::err).find(hopeless).map_or(Ok(()), Err)
}

/// A relay that has not started.
pub(crate) struct Relay {
    cluster: Cluster,
    seams: Seams,
    counts: Arc<Counts>,
    /// Whether it had everything it needs, at least once.
    begun: Arc<AtomicBool>,
}

impl Relay {
    pub(crate) fn new(cluster: Cluster, seams: Seams, counts: Arc<Counts>) -> Self {
        Self { cluster, seams, counts, begun: Arc::default() }
    }

    pub(crate) async fn run(self, stop: BoxFuture<'static, ()>) -> Result<()> {
        topics::check(&self.cluster).await?;
        self.counts.start();
        let settings = self.cluster.settings();
        let client_id = format!("{}-relay-{}", self.seams.instance, self.seams.incarnation);
        // The broker decides which record a topic accepts; the parking topic accepts all of them.
        let outbox = || {
            Outbox::new(settings.clone(), client_id.clone(), self.seams.clock.clone())
                .with_largest(topics::largest(settings))
                .with_probe(self.cluster.probe())
        };
        let levels = topics::levels(&settings.relay);
        let shared = Arc::new(Shared {
            to_targets: outbox(),
            to_shelves: outbox(),
            cluster: self.cluster.clone(),
            clock: self.seams.clock.clone(),
            // A transaction is answered as a whole, so single targets cannot be silent.
            targets: Targets::new(
                settings.relay.transactions.is_none().then(|| worker::share(&settings.relay)),
            ),
            counts: self.counts.clone(),
            budget: Budget::new(settings.relay.read_ahead, levels.len()),
            digest: Digest::new(self.seams.clock.clone()),
        });
        for outbox in [&shared.to_targets, &shared.to_shelves] {
            outbox.prepare()?;
        }
        let transactions_of = |level: &Level| {
            let timeout = settings.relay.transactions?;
            let id = format!("{}-{}", settings.relay.group_of(&level.topic), self.seams.incarnation);
            Some(Arc::new(outbox().with_transactions(Transactions { id, timeout })))
        };
        let transactions: Vec<_> = levels.iter().map(transactions_of).collect();
        let mut stop = stop.fuse();
        // A broker that will never accept such transactions fails here, before anything relies on
        // them.
        tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            begun = begin(transactions.iter().flatten()) => begun?,
        }
        self.begun.store(true, Ordering::SeqCst);
        // Not awaited: it queries every broker, and one of them may be unavailable.
        let looking = tokio::spawn(warn_of_other_groups(self.cluster.clone()));
        let (tell, told) = watch::channel(false);
        let joiner = Joiner {
            cluster: self.cluster.clone(),
            seams: self.seams.clone(),
            client_id: client_id.clone(),
            replaced: self.counts.replaced.clone(),
        };
        // Each worker is a task, so that a busy level does not delay due records.
        let mut workers = JoinSet::new();
        let mut upkeep = Upkeep::new(self.cluster.clone(), &levels);
        for (level, transactions) in levels.into_iter().zip(transactions) {
            let member = Arc::new(joiner.join(&level)?);
            let worker = Worker::new(shared.clone(), joiner.clone(), member, level, transactions);
            workers.spawn(worker.run(told.clone()));
        }
        let mut result = Ok(());
        let mut is_stopping = false;
        // A worker that ends by itself ends all others: the whole relay is then restarted.
        while !workers.is_empty() {
            tokio::select! {
                biased;
                () = &mut stop, if !stop.is_terminated() => {}
                found = upkeep.next(), if !is_stopping => {
                    shared.digest.log_due();
                    let joined = found.and_then(|levels| {
                        let join = |level: Level| Ok((Arc::new(joiner.join(&level)?), level));
                        levels.into_iter().map(join).collect::<Result<Vec<_>>>()
                    });
                    match joined {
                        Ok(joined) => {
                            for (member, level) in joined {
                                let transactions = transactions_of(&level);
                                let joiner = joiner.clone();
                                let worker =
                                    Worker::new(shared.clone(), joiner, member, level, transactions);
                                workers.spawn(worker.run(told.clone()));
                            }
                            continue;
                        }
                        Err(error) => result = Err(error),
                    }
                }
                Some(ended) = workers.join_next() => {
                    result = result.and(ended.unwrap_or_else(|error| match error.try_into_panic() {
                        Ok(panic) => std::panic::resume_unwind(panic),
                        Err(_) => Err(Error::new(ErrorKind::Closed, "the relay ended with its runtime")),
                    }));
                }
            }
            is_stopping = true;
            let _ = tell.send(true);
        }
        shared.digest.log_all();
        looking.abort();
        shared.to_targets.close().await;
        shared.to_shelves.close().await;
        result
    }
}

/// Joins the groups of delay topics.
#[derive(Clone)]
struct Joiner {
    cluster: Cluster,
    seams: Seams,
    client_id: String,
    replaced: Arc<AtomicU64>,
}

impl Joiner {
    fn join(&self, level: &Level) -> Result<Member> {
        let settings = self.cluster.settings();
        let transactional = settings.relay.transactions.is_some();
        Member::join(MemberSettings {
            connection: settings,
            client_id: &self.client_id,
            group: settings.relay.group_of(&level.topic),
            topics: vec![level.topic.to_string()],
            // With transactions, the metadata must list all records that are settled above the
            // mark.
            max_span: settings.relay.read_ahead.0.min(if transactional { REACH } else { usize::MAX }),
            commits: !transactional,
            proves: !transactional,
            fetch: if level.wait.is_some() { LEVEL } else { DUE },
            read: Record::read,
            epoch: self.seams.random.next(),
            clock: self.seams.clock.clone(),
            probe: self.cluster.probe(),
            replaced: self.replaced.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_relay_ends_only_on_permanent_errors() {
        let of = |kind| may_pass(&Error::new(kind, "it failed"));
        for kind in [ErrorKind::NotFound, ErrorKind::Denied, ErrorKind::Stale, ErrorKind::Unavailable] {
            assert!(of(kind), "{kind}");
        }
        for kind in [ErrorKind::Config, ErrorKind::Conflict, ErrorKind::Unsupported] {
            assert!(!of(kind), "{kind}");
        }
    }

    #[test]
    fn a_relay_that_ends_with_an_unserved_level_names_it_in_its_error() {
        let counts = Counts::default();
        assert!(served(&counts).is_ok());
        counts.serves("delay-5s", Some("outside its group for 12 s".to_owned()));
        let error = served(&counts).unwrap_err().to_string();
        assert!(error.contains("`delay-5s`: outside its group"), "{error}");
        counts.serves("delay-5s", None);
        assert!(served(&counts).is_ok());
    }

    #[test]
    fn a_warning_is_logged_only_for_another_group_of_the_same_delay_topics() {
        let of = |groups: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let topics = owned(&["orders", "delay-5s", "delay-due", "test-delay-5s", "test-delay-due"]);
            other_group(&RelaySettings::default(), &owned(groups), &topics).cloned()
        };
        let ours = ["dwell-delay-5s", "dwell-delay-due"];
        assert_eq!(of(&ours), None);
        // Groups of the prefix `test-delay-`, and of subscriptions.
        let others =
            ["dwell-test-delay-5s", "dwell-test-delay-due", "orders.mail", "delay-5s", "my_delay-5s"];
        assert_eq!(of(&[&ours[..], &others].concat()), None);
        for other in ["relays-delay-5s", "dwell-two-delay-due"] {
            assert_eq!(of(&[&ours[..], &others, &[other]].concat()).as_deref(), Some(other));
        }
    }
}
