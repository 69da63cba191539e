//! The transport: one connection to Kafka.

use crate::{
    cluster::Cluster,
    consumer::KafkaConsumer,
    group::{Fetch, Member, MemberSettings},
    names::group_name,
    outbox::Outbox,
    producer::KafkaProducer,
    provision::{Provisioner, Reads, not_found},
    record::Record,
    relay::{Counts, Relay},
    settings::KafkaSettings,
};
use dwell_core::{
    BoxFuture, Capabilities, Consumer, Error, ErrorKind, Measure, Measured, OnMissing, Producer, Result,
    Seams, Subscription, Topic, Transport,
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::OnceCell;

/// Interval at which a consumer checks whether the topics of its subscription have changed.
const LOOK: Duration = Duration::from_secs(5);
/// Limit of what a consumer that has all partitions fetches ahead.
const AHEAD_RECORDS: usize = 100_000;
const AHEAD_BYTES: usize = 64 << 20;
/// Minimum per partition: one fetch response brings about as much anyway.
const LEAST_RECORDS: usize = 1_000;
const AT_ONCE: usize = 1 << 20;

/// Returns the fetch limits of each partition; librdkafka applies its limits per partition. While
/// a consumer has this much of its topic, librdkafka fetches from the retry topic alone and sends
/// no other fetch before that one is answered: the request must not wait long.
fn fetch(partitions: usize) -> Fetch {
    // Every subscription has at least one partition of its topic and one of its retry topic.
    let partitions = partitions.max(2);
    Fetch {
        records: (AHEAD_RECORDS / partitions).max(LEAST_RECORDS),
        bytes: (AHEAD_BYTES / partitions).max(AT_ONCE),
        at_once: AT_ONCE,
        wait: Duration::from_millis(25),
    }
}

/// A connection to Kafka.
pub struct Kafka {
    cluster: Cluster,
    outbox: Arc<Outbox>,
    seams: Seams,
    client_id: String,
    capabilities: Capabilities,
    /// The members that were opened and may still be in their group.
    members: Mutex<Vec<Weak<Member>>>,
    /// Counts of the relay, once it runs in this process.
    relayed: OnceLock<Arc<Counts>>,
    /// Set once the delay topics were checked, or when they are not to be checked.
    shelves: Arc<OnceCell<()>>,
    closed: AtomicBool,
    /// Number of consumer clients that were replaced.
    replaced: Arc<AtomicU64>,
}

impl Kafka {
    /// Connects. Fails if no broker answers or the brokers refuse the credentials.
    pub async fn connect(settings: KafkaSettings, seams: Seams) -> Result<Self> {
        settings.check()?;
        let client_id = format!("{}-{}", seams.instance, seams.incarnation);
        let capabilities = Self::declared(&settings);
        let cluster = Cluster::connect(settings.clone(), client_id.clone(), seams.clock.clone()).await?;
        let outbox = Outbox::new(settings, client_id.clone(), seams.clock.clone());
        let outbox = Arc::new(outbox.with_probe(cluster.probe()));
        let (members, relayed, shelves, closed, replaced) = Default::default();
        Ok(Self {
            cluster,
            outbox,
            seams,
            client_id,
            capabilities,
            members,
            relayed,
            shelves,
            closed,
            replaced,
        })
    }

    /// Returns the capabilities that a transport with these settings declares.
    pub fn declared(settings: &KafkaSettings) -> Capabilities {
        Capabilities {
            delay: Duration::MAX,
            key_order: true,
            max_body: settings.max_body(),
            ..Capabilities::LEAST
        }
    }

    fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "this connection to Kafka was closed: connect again"));
        }
        Ok(())
    }

    fn provisioner(&self) -> Provisioner {
        let (cluster, outbox) = (self.cluster.clone(), self.outbox.clone());
        Provisioner { cluster, outbox, clock: self.seams.clock.clone() }
    }

    async fn join(&self, of: Subscription) -> Result<KafkaConsumer> {
        self.open()?;
        let (group, provisioner) = (group_name(&of.topic, &of.name), self.provisioner());
        let Reads { topics, may_change } = provisioner.reads(&of).await?;
        let mut known = self.cluster.partitions(&topics[1]).await?.is_some();
        if !known && of.name == of.topic {
            known = provisioner.default_subscription(&of.topic).await?;
        }
        if !known {
            return Err(not_found(&format!("subscription `{}`", of.address())));
        }
        let mut partitions = 0;
        for topic in &topics {
            partitions += self.cluster.partitions(topic).await?.unwrap_or(0);
        }
        let settings = self.cluster.settings();
        let member = Arc::new(Member::join(MemberSettings {
            connection: settings,
            client_id: &self.client_id,
            group,
            topics: topics.clone(),
            max_span: settings.max_span,
            commits: true,
            proves: false,
            fetch: fetch(partitions),
            read: Record::read_message,
            epoch: self.seams.random.next(),
            clock: self.seams.clock.clone(),
            probe: self.cluster.probe(),
            replaced: self.replaced.clone(),
        })?);
        if may_change {
            tokio::spawn(keep_looking(provisioner, of.clone(), topics.clone(), Arc::downgrade(&member)));
        }
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&member));
        Ok(KafkaConsumer { member, subscription: of, clock: self.seams.clock.clone(), topics })
    }
}

/// Closes a member when the topics of its subscription have changed. The worker that receives from
/// it then opens another consumer, or gets the error that explains why it cannot.
async fn keep_looking(provisioner: Provisioner, of: Subscription, topics: Vec<String>, member: Weak<Member>) {
    let Some(ended) = member.upgrade().map(|member| member.ended()) else { return };
    let look = async {
        loop {
            provisioner.clock.tick(LOOK).await;
            match provisioner.reads(&of).await {
                Ok(reads) if reads.topics != topics => return,
                Err(error) if error.kind() == ErrorKind::NotFound => return,
                // The lookup failed for another reason: try again at the next interval.
                _ => {}
            }
        }
    };
    tokio::select! {
        () = ended => {}
        () = look => {
            tracing::warn!(of = %of.address(), "another subscription was declared; reopening the consumer");
            let closed = member.upgrade().map(|member| member.close());
            if let Some(closed) = closed {
                closed.await;
            }
        }
    }
}

impl Transport for Kafka {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.open()?;
            self.provisioner().provision(topics, subscriptions, on_missing).await?;
            // With `OnMissing::Assume` the delay topics must not be checked either.
            let _ = self.shelves.set(());
            Ok(())
        })
    }

    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        let producer = self.open().map(|()| {
            let (cluster, outbox) = (self.cluster.clone(), self.outbox.clone());
            let (clock, capabilities) = (self.seams.clock.clone(), self.capabilities);
            let shelves = self.shelves.clone();
            Arc::new(KafkaProducer { cluster, outbox, clock, capabilities, shelves }) as Arc<dyn Producer>
        });
        dwell_core::ready(producer)
    }

    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        Box::pin(async move { Ok(Arc::new(self.join(of).await?) as Arc<dyn Consumer>) })
    }

    /// Returns the relay, unless it runs elsewhere.
    fn background(&self, stop: BoxFuture<'static, ()>) -> Option<BoxFuture<'static, Result<()>>> {
        if !self.cluster.settings().relay_inside {
            return None;
        }
        let counts = self.relayed.get_or_init(Arc::default).clone();
        let relay = Relay::new(self.cluster.clone(), self.seams.clone(), counts);
        Some(Box::pin(relay.run(stop)))
    }

    /// Returns the measures of the consumers and, if it runs here, of the relay.
    fn measures(&self) -> BoxFuture<'_, Result<Vec<Measure>>> {
        let mut measures = self.relayed.get().map(|counts| counts.measures()).unwrap_or_default();
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let members: Vec<_> = members.iter().filter_map(Weak::upgrade).collect();
        let mut troubled = BTreeMap::new();
        for member in members.iter().filter(|member| !member.has_ended()) {
            *troubled.entry(member.topic().to_owned()).or_default() += u64::from(member.trouble().is_some());
        }
        measures.push(Measure {
            name: "kafka_replaced_clients",
            help: "Consumer clients that did not recover and were replaced.",
            value: Measured::Counter(self.replaced.load(Ordering::SeqCst)),
        });
        measures.push(Measure {
            name: "kafka_troubled",
            help: "Number of consumers of a topic that receive no messages.",
            value: Measured::GaugeOfTopics(troubled.into_iter().collect()),
        });
        Box::pin(async { Ok(measures) })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.closed.store(true, Ordering::SeqCst);
            let members = std::mem::take(&mut *self.members.lock().unwrap_or_else(PoisonError::into_inner));
            // All members at once, because each of them may take a while.
            let leaving: Vec<_> =
                members.iter().filter_map(Weak::upgrade).map(|member| member.close()).collect();
            futures_util::future::join_all(leaving).await;
            self.outbox.close().await;
            Ok(())
        })
    }
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kafka").field("brokers", &self.cluster.settings().brokers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_consumer_prefetches_the_same_for_any_number_of_partitions() {
        let of = |partitions| {
            let Fetch { records, bytes, at_once, .. } = fetch(partitions);
            // One fetch response may exceed the limit.
            (records, bytes, (bytes + at_once) * partitions)
        };
        assert_eq!(of(8), (12_500, 8 << 20, 72 << 20));
        for partitions in 2..=64 {
            let (.., all) = of(partitions);
            assert!(all <= AHEAD_BYTES * 2, "{partitions}: {all}");
        }
        assert_eq!(of(200), (1_000, 1 << 20, 400 << 20));
    }
}
