//! Topics, their partitions, settings and offsets. Nothing here is on the path of a message.

use crate::{
    catalogue,
    fault::{code, fault, is_unknown_topic, of_code},
    probe::Probe,
    settings::KafkaSettings,
    trouble::Trouble,
};
use dwell_core::{Clock, Error, ErrorKind, Result, Text};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication},
    config::FromClientConfigAndContext,
    consumer::{BaseConsumer, CommitMode, Consumer as _},
    error::{KafkaError, RDKafkaErrorCode as Code},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How long the broker may take to answer one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take until every broker knows a new topic, and until a coordinator is ready.
const SPREAD: Duration = Duration::from_secs(15);
const STEP: Duration = Duration::from_millis(20);
/// Limit of one blocking call of librdkafka, whatever timeout the call itself has.
const LONGEST: Duration = Duration::from_secs(60);
/// Minimum age of a client before it is replaced because it gets no answers.
const RENEW: Duration = Duration::from_secs(10);
/// Interval at which the events of the client are polled while no request does so.
const LISTEN: Duration = Duration::from_secs(5);

/// A topic to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewOne {
    pub(crate) name: Text,
    pub(crate) partitions: u16,
    pub(crate) settings: Vec<(&'static str, String)>,
}

/// The committed position of a group in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) offset: i64,
    /// The metadata of the offset: which records above it are settled as well.
    pub(crate) details: String,
}

impl Mark {
    /// Returns a position above which nothing is settled.
    pub(crate) fn at(offset: i64) -> Self {
        Self { offset, details: String::new() }
    }
}

/// Sends administrative requests to the brokers. Blocking calls run on threads of their own.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    settings: KafkaSettings,
    client_id: String,
    clock: Arc<dyn Clock>,
    trouble: Trouble,
    /// The client for requests. It belongs to no group.
    asker: Mutex<Asker>,
    /// Topics that are known to exist, with their number of partitions.
    known: Mutex<BTreeMap<Text, usize>>,
    probe: Arc<Probe>,
}

struct Asker {
    client: Arc<BaseConsumer<Trouble>>,
    /// When the client was opened.
    since: Duration,
}

impl Inner {
    fn asker(&self) -> Arc<BaseConsumer<Trouble>> {
        self.asker.lock().unwrap_or_else(PoisonError::into_inner).client.clone()
    }

    /// Replaces a client that got no answer: it may have removed its last broker and never connect
    /// again. Blocks the thread.
    fn renew(&self, silent: &Arc<BaseConsumer<Trouble>>) {
        let mut asker = self.asker.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.elapsed();
        if !Arc::ptr_eq(&asker.client, silent) || now.saturating_sub(asker.since) < RENEW {
            return;
        }
        let config = self.settings.finish(self.settings.client(&self.client_id));
        if let Ok(client) = config.create_with_context(self.trouble.clone()) {
            *asker = Asker { client: Arc::new(client), since: now };
        }
    }
}

impl Cluster {
    /// Connects. Fails if no broker answers or the brokers refuse the credentials.
    pub(crate) async fn connect(
        settings: KafkaSettings,
        client_id: String,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let trouble = Trouble::new(clock.clone());
        let config = settings.finish(settings.client(&client_id));
        let asker = config.create_with_context(trouble.clone());
        let client = Arc::new(asker.map_err(|error| fault("set up a client", error))?);
        let asker = Mutex::new(Asker { client, since: clock.elapsed() });
        let known = Mutex::default();
        let probe = Arc::new(Probe::new(settings.clone(), clock.clone()));
        let cluster = Self(Arc::new(Inner { settings, client_id, clock, trouble, asker, known, probe }));
        let what = format!("connect to {}", cluster.0.settings.brokers);
        let (clock, trouble) = (cluster.clock(), cluster.0.trouble.clone());
        let answered = cluster.ask(&what, move |asker| {
            let start = clock.elapsed();
            loop {
                let answer = asker.fetch_metadata(Some(catalogue::TOPIC), PATIENCE / 10);
                listen(asker, &trouble);
                let over = trouble.is_hopeless() || clock.elapsed().saturating_sub(start) > PATIENCE / 2;
                if answer.is_ok() || over {
                    return answer.map(drop);
                }
            }
        });
        answered.await.map_err(|error| cluster.0.trouble.explain(&what, error))?;
        cluster.keep_listening();
        Ok(cluster)
    }

    /// Polls the events of the client. While no broker is available, librdkafka retries every
    /// second and queues an error each time until somebody polls.
    fn keep_listening(&self) {
        let (clock, inner) = (self.clock(), Arc::downgrade(&self.0));
        tokio::spawn(async move {
            loop {
                clock.tick(LISTEN).await;
                let Some(inner) = inner.upgrade() else { return };
                // This may drop the last reference, which blocks for a while.
                let heard = tokio::task::spawn_blocking(move || listen(&inner.asker(), &inner.trouble));
                if heard.await.is_err() {
                    return;
                }
            }
        });
    }

    pub(crate) fn settings(&self) -> &KafkaSettings {
        &self.0.settings
    }

    /// Returns the probe, see [`Probe`].
    pub(crate) fn probe(&self) -> Arc<Probe> {
        self.0.probe.clone()
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock.clone()
    }

    /// Returns the number of partitions of a topic, or `None` if the topic does not exist.
    pub(crate) async fn partitions(&self, topic: &str) -> Result<Option<usize>> {
        if let Some(count) = self.known(topic) {
            return Ok(Some(count));
        }
        let (what, name) = (format!("look up the topic `{topic}`"), topic.to_owned());
        let count = self.ask(&what, move |asker| {
            let metadata = asker.fetch_metadata(Some(&name), PATIENCE)?;
            let topic = metadata.topics().iter().find(|topic| topic.name() == name);
            match topic.map(|topic| (topic.error().map(code), topic.partitions())) {
                Some((None, partitions)) => Ok(Some(partitions.len()).filter(|count| *count > 0)),
                Some((Some(error), _)) if !is_unknown_topic(error) => Err(KafkaError::MetadataFetch(error)),
                _ => Ok(None),
            }
        });
        let count = count.await?;
        if let Some(count) = count {
            self.lock().insert(topic.into(), count);
        }
        Ok(count)
    }

    /// Returns the number of partitions from the cache alone.
    pub(crate) fn known(&self, topic: &str) -> Option<usize> {
        self.lock().get(topic).copied()
    }

    /// Removes a topic from the cache, because it may have been deleted.
    pub(crate) fn forget(&self, topic: &str) {
        self.lock().remove(topic);
    }

    /// Creates topics and waits until they can be used. Returns those that did not exist before. If
    /// several processes create a topic, only one of them gets it in the result.
    pub(crate) async fn create(&self, topics: &[NewOne]) -> Result<Vec<Text>> {
        if topics.is_empty() {
            return Ok(vec![]);
        }
        let replication = self.0.settings.replication.map_or(-1, i32::from);
        let new: Vec<_> = topics
            .iter()
            .map(|topic| {
                let plain = NewTopic::new(
                    &topic.name,
                    i32::from(topic.partitions),
                    TopicReplication::Fixed(replication),
                );
                topic.settings.iter().fold(plain, |new, (name, value)| new.set(name, value))
            })
            .collect();
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE));
        let admin = self.admin()?;
        let answers = admin.share().create_topics(&new, &options).await;
        let mut made = vec![];
        for answer in answers.map_err(|error| fault("create topics", error))? {
            match answer {
                Ok(name) => made.push(Text::from(name)),
                Err((_, Code::TopicAlreadyExists)) => {}
                Err((name, code)) => return Err(of_code(&format!("create the topic `{name}`"), code)),
            }
        }
        for topic in topics {
            self.wait_for(&topic.name).await?;
        }
        Ok(made)
    }

    async fn wait_for(&self, topic: &str) -> Result<()> {
        let start = self.0.clock.elapsed();
        while self.partitions(topic).await?.is_none() {
            if self.0.clock.elapsed().saturating_sub(start) > SPREAD {
                let text = format!(
                    "the topic `{topic}` was created, but is not known to all brokers yet: try again"
                );
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            self.0.clock.sleep(STEP).await;
        }
        // A broker may know a partition before it leads it, and refuses requests for it until then.
        let partitions = self.known(topic).unwrap_or(0);
        self.ends(topic, partitions).await.map(drop)
    }

    /// Deletes a group that is no longer needed. One that still has members is left to expire.
    pub(crate) async fn delete_group(&self, group: &str) {
        let deleted = match self.admin() {
            Ok(admin) => admin.share().delete_groups(&[group], &AdminOptions::new()).await,
            Err(error) => {
                return tracing::warn!(%error, group, "obsolete group could not be deleted; leaving it to expire");
            }
        };
        let refused = match deleted {
            Ok(answers) => {
                answers.into_iter().filter_map(Result::err).map(|(_, code)| code.to_string()).next()
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = refused {
            tracing::warn!(%error, group, "obsolete group could not be deleted; leaving it to expire");
        }
    }

    /// Returns the settings of topics, in order.
    pub(crate) async fn describe(&self, topics: &[&str]) -> Result<Vec<ConfigResource>> {
        let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let options = AdminOptions::new().request_timeout(Some(PATIENCE));
        let admin = self.admin()?;
        let answers = admin.share().describe_configs(&resources, &options).await;
        let answers = answers.map_err(|error| fault("read the settings of topics", error))?;
        let named = |answer| Result::map_err(answer, |code| of_code("read the settings of a topic", code));
        answers.into_iter().map(named).collect()
    }

    /// Returns the first offset of each partition, and the offset after its last record.
    pub(crate) async fn ends(&self, topic: &str, partitions: usize) -> Result<Vec<(i64, i64)>> {
        let (what, name) = (format!("read the offsets of `{topic}`"), topic.to_owned());
        self.insist(&what, move |asker| {
            (0..partitions as i32)
                .map(|partition| asker.fetch_watermarks(&name, partition, PATIENCE))
                .collect()
        })
        .await
    }

    /// Returns the names of all groups, with or without members.
    pub(crate) async fn groups(&self) -> Result<Vec<String>> {
        self.ask("list the consumer groups", |asker| {
            let groups = asker.fetch_group_list(None, PATIENCE)?;
            Ok(groups.groups().iter().map(|group| group.name().to_owned()).collect())
        })
        .await
    }

    /// Returns the names of all topics that this user may see.
    pub(crate) async fn topics(&self) -> Result<Vec<String>> {
        self.ask("list the topics", |asker| {
            let metadata = asker.fetch_metadata(None, PATIENCE)?;
            Ok(metadata.topics().iter().map(|topic| topic.name().to_owned()).collect())
        })
        .await
    }

    /// Returns what a group has committed for the partitions of a topic.
    pub(crate) async fn committed(
        &self,
        group: &str,
        topic: &str,
        partitions: usize,
    ) -> Result<Vec<Option<Mark>>> {
        let member = self.member(group)?;
        let (what, name, asker) =
            (format!("read the committed offsets of `{group}`"), topic.to_owned(), member.share());
        self.insist(&what, move |_| {
            let mut list = TopicPartitionList::new();
            list.add_partition_range(&name, 0, partitions as i32 - 1);
            let list = committed(&asker, list)?;
            let offsets = list.elements().into_iter().map(|element| match element.offset() {
                Offset::Offset(offset) => Some(Mark { offset, details: element.metadata().to_owned() }),
                _ => None,
            });
            Ok(offsets.collect())
        })
        .await
    }

    /// Commits the initial offsets of a group that has no members yet. Offsets that were committed
    /// before are left as they are. If the group has members by now, the commit is refused, which
    /// is not an error: they have their own offsets.
    pub(crate) async fn begin(&self, group: &str, marks: Vec<(Text, Vec<Mark>)>) -> Result<()> {
        let member = self.member(group)?;
        let (what, asker) = (format!("commit the initial offsets of `{group}`"), member.share());
        self.insist(&what, move |_| {
            let mut list = TopicPartitionList::new();
            for (topic, marks) in &marks {
                list.add_partition_range(topic, 0, marks.len() as i32 - 1);
            }
            let committed = committed(&asker, list)?;
            let mut list = TopicPartitionList::new();
            for (topic, marks) in &marks {
                for (partition, Mark { offset, details }) in (0..).zip(marks) {
                    let before = committed.find_partition(topic, partition);
                    if before.is_some_and(|before| matches!(before.offset(), Offset::Offset(_))) {
                        continue;
                    }
                    list.add_partition_offset(topic, partition, Offset::Offset(*offset))?;
                    if let Some(mut mark) =
                        list.find_partition(topic, partition).filter(|_| !details.is_empty())
                    {
                        mark.set_metadata(details);
                    }
                }
            }
            if list.count() == 0 {
                return Ok(());
            }
            match asker.commit(&list, CommitMode::Sync) {
                Err(KafkaError::ConsumerCommit(Code::UnknownMemberId | Code::IllegalGeneration)) => Ok(()),
                other => other,
            }
        })
        .await
    }

    /// Returns a client that reads or commits offsets of a group without joining it.
    pub(crate) fn member(&self, group: &str) -> Result<Guest<BaseConsumer<Trouble>>> {
        let mut config = self.0.settings.client(&self.0.client_id);
        config.set("group.id", group).set("enable.auto.commit", "false").set("enable.partition.eof", "true");
        // The end of a topic is known when a fetch returns nothing, which must not take long.
        config.set("auto.offset.reset", "earliest").set("fetch.wait.max.ms", "5");
        let config = self.0.settings.finish(config);
        self.guest(&config)
    }

    /// Returns a client that creates, describes and deletes. Use it once: rdkafka offers no way to
    /// poll the events of an admin client, so a permanent one would queue errors about unavailable
    /// brokers without a limit.
    fn admin(&self) -> Result<Guest<AdminClient<Trouble>>> {
        self.guest(&self.0.settings.finish(self.0.settings.client(&self.0.client_id)))
    }

    fn guest<T>(&self, config: &ClientConfig) -> Result<Guest<T>>
    where
        T: FromClientConfigAndContext<Trouble> + Send + Sync + 'static,
    {
        let opened = config.create_with_context(self.0.trouble.clone());
        opened.map(|client| Guest(Some(Arc::new(client)))).map_err(|error| fault("set up a client", error))
    }

    /// Retries a request while the broker is not ready, as after a topic was created or a
    /// coordinator moved.
    async fn insist<T: Send + 'static>(
        &self,
        what: &str,
        question: impl Fn(&BaseConsumer<Trouble>) -> Result<T, KafkaError> + Clone + Send + 'static,
    ) -> Result<T> {
        let start = self.0.clock.elapsed();
        loop {
            match self.ask(what, question.clone()).await {
                Err(error)
                    if (error.is_retryable() || error.kind() == ErrorKind::NotFound)
                        && self.0.clock.elapsed().saturating_sub(start) < SPREAD =>
                {
                    self.0.clock.sleep(STEP).await;
                }
                answer => return answer,
            }
        }
    }

    /// Sends one request, on a thread that may block.
    async fn ask<T: Send + 'static>(
        &self,
        what: &str,
        question: impl FnOnce(&BaseConsumer<Trouble>) -> Result<T, KafkaError> + Send + 'static,
    ) -> Result<T> {
        let inner = self.0.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let asker = inner.asker();
            let answer = question(&asker);
            if answer.as_ref().is_err_and(is_unanswered) {
                inner.renew(&asker);
            }
            answer
        });
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            // librdkafka has calls without a timeout. The thread of such a call is left behind.
            () = self.0.clock.sleep(LONGEST) => {
                let text = format!("Kafka could not {what} within {} s: check the brokers", LONGEST.as_secs());
                return Err(Error::new(ErrorKind::Timeout, text));
            }
        };
        let answer = answer.map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("Kafka cannot {what}")).with_source(error)
        })?;
        answer.map_err(|error| fault(what, error))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Text, usize>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether no broker has answered.
fn is_unanswered(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(code, Some(Code::OperationTimedOut | Code::BrokerTransportFailure | Code::AllBrokersDown))
}

/// Returns the committed offsets. An error for one partition fails the whole request: it must not
/// be mistaken for a missing offset.
fn committed(
    asker: &BaseConsumer<Trouble>,
    list: TopicPartitionList,
) -> Result<TopicPartitionList, KafkaError> {
    let list = asker.committed_offsets(list, PATIENCE)?;
    list.elements().iter().try_for_each(|element| element.error())?;
    Ok(list)
}

/// Polls the events of a client that belong to no request.
fn listen(to: &BaseConsumer<Trouble>, trouble: &Trouble) {
    while let Some(Err(error)) = to.poll(STEP) {
        trouble.heard(&error);
    }
}

/// A client for one use. Dropping it blocks for a while, so that happens on another thread.
pub(crate) struct Guest<T: Send + Sync + 'static>(Option<Arc<T>>);

impl<T: Send + Sync + 'static> Guest<T> {
    /// Returns the client, for a thread that may block.
    pub(crate) fn share(&self) -> Arc<T> {
        self.0.clone().expect("the client exists until this is dropped")
    }
}

impl<T: Send + Sync + 'static> Drop for Guest<T> {
    fn drop(&mut self) {
        let client = self.0.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(client));
        }
    }
}
