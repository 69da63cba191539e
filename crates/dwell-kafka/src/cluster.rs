//! What is there: topics, their partitions, settings and offsets. Nothing here is on the path of a message.

use crate::{
    catalogue,
    fault::{code, fault, is_unknown_topic, of_code},
    kept,
    probe::Probe,
    settings::KafkaSettings,
    trouble::Trouble,
};
use dwell_core::{Clock, Error, ErrorKind, Result, Text, Timestamp};
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

/// How long the broker may take to answer one question.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long what was made may take until every broker knows of it, and a coordinator to get ready.
const SPREAD: Duration = Duration::from_secs(15);
const STEP: Duration = Duration::from_millis(20);
/// How long the library may take for one answer, whatever it was told itself.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a client is kept that gets no answers.
const RENEW: Duration = Duration::from_secs(10);
/// How often the library is heard of what belongs to no question, though nobody asks any.
const LISTEN: Duration = Duration::from_secs(5);

/// A topic that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewOne {
    pub(crate) name: Text,
    pub(crate) partitions: u16,
    pub(crate) settings: Vec<(&'static str, String)>,
}

/// Where a group is in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) offset: i64,
    /// What is said beside it: which records above it are settled as well.
    pub(crate) details: String,
}

impl Mark {
    /// Nothing above it is settled.
    pub(crate) fn at(offset: i64) -> Self {
        Self { offset, details: String::new() }
    }
}

/// Asks the brokers. Calls that block run on threads of their own.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    settings: KafkaSettings,
    client_id: String,
    clock: Arc<dyn Clock>,
    trouble: Trouble,
    /// Has no group: it only asks.
    asker: Mutex<Asker>,
    /// Topics that are known to be there, and how many partitions they have.
    known: Mutex<BTreeMap<Text, usize>>,
    probe: Arc<Probe>,
}

struct Asker {
    client: Arc<BaseConsumer<Trouble>>,
    /// When it was opened.
    since: Duration,
}

impl Inner {
    fn asker(&self) -> Arc<BaseConsumer<Trouble>> {
        self.asker.lock().unwrap_or_else(PoisonError::into_inner).client.clone()
    }

    /// A client that got no answer may have lost its last broker for good: another one is opened. For a thread that may
    /// wait.
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
    /// Connects: an error if no broker answers, or lets us in.
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

    /// While no broker is up the library tries each second, and keeps what it says about that until somebody listens.
    fn keep_listening(&self) {
        let (clock, inner) = (self.clock(), Arc::downgrade(&self.0));
        tokio::spawn(async move {
            loop {
                clock.tick(LISTEN).await;
                let Some(inner) = inner.upgrade() else { return };
                // Where it may be the last one to let go of it, too, which takes a while.
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

    /// See [`Probe`].
    pub(crate) fn probe(&self) -> Arc<Probe> {
        self.0.probe.clone()
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock.clone()
    }

    /// How many partitions a topic has; none if there is no such topic.
    pub(crate) async fn partitions(&self, topic: &str) -> Result<Option<usize>> {
        if let Some(count) = self.known(topic) {
            return Ok(Some(count));
        }
        let (what, name) = (format!("look for the topic `{topic}`"), topic.to_owned());
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

    /// The same, from memory alone.
    pub(crate) fn known(&self, topic: &str) -> Option<usize> {
        self.lock().get(topic).copied()
    }

    /// A topic may be gone: look anew next time.
    pub(crate) fn forget(&self, topic: &str) {
        self.lock().remove(topic);
    }

    /// Makes topics, and waits until they can be used. Returns those that were not there before: whoever made one is the
    /// only one who did.
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
        for answer in answers.map_err(|error| fault("make topics", error))? {
            match answer {
                Ok(name) => made.push(Text::from(name)),
                Err((_, Code::TopicAlreadyExists)) => {}
                Err((name, code)) => return Err(of_code(&format!("make the topic `{name}`"), code)),
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
                    "Kafka has made the topic `{topic}`, and its brokers do not know of it yet: try again"
                );
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            self.0.clock.sleep(STEP).await;
        }
        // A broker may know of a partition before it leads it, and refuses what comes until then.
        let partitions = self.known(topic).unwrap_or(0);
        self.ends(topic, partitions).await.map(drop)
    }

    /// Deletes a group that is no longer needed. One that still has members is left to expire.
    pub(crate) async fn delete_group(&self, group: &str) {
        let deleted = match self.admin() {
            Ok(admin) => admin.share().delete_groups(&[group], &AdminOptions::new()).await,
            Err(error) => {
                return tracing::warn!(%error, group, "a group that is no longer needed is left over");
            }
        };
        let refused = match deleted {
            Ok(answers) => {
                answers.into_iter().filter_map(Result::err).map(|(_, code)| code.to_string()).next()
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = refused {
            tracing::warn!(%error, group, "a group that is no longer needed is left over");
        }
    }

    /// The settings of topics, in order.
    pub(crate) async fn describe(&self, topics: &[&str]) -> Result<Vec<ConfigResource>> {
        let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let options = AdminOptions::new().request_timeout(Some(PATIENCE));
        let admin = self.admin()?;
        let answers = admin.share().describe_configs(&resources, &options).await;
        let answers = answers.map_err(|error| fault("read the settings of topics", error))?;
        let named = |answer| Result::map_err(answer, |code| of_code("read the settings of a topic", code));
        answers.into_iter().map(named).collect()
    }

    /// The first offset of each partition that is there, and the one behind the last.
    pub(crate) async fn ends(&self, topic: &str, partitions: usize) -> Result<Vec<(i64, i64)>> {
        let (what, name) = (format!("read the offsets of `{topic}`"), topic.to_owned());
        self.insist(&what, move |asker| {
            (0..partitions as i32)
                .map(|partition| asker.fetch_watermarks(&name, partition, PATIENCE))
                .collect()
        })
        .await
    }

    /// The names of all groups that there are, with or without members.
    pub(crate) async fn groups(&self) -> Result<Vec<String>> {
        self.ask("list the consumer groups", |asker| {
            let groups = asker.fetch_group_list(None, PATIENCE)?;
            Ok(groups.groups().iter().map(|group| group.name().to_owned()).collect())
        })
        .await
    }

    /// The names of all topics that there are, as far as we may know.
    pub(crate) async fn topics(&self) -> Result<Vec<String>> {
        self.ask("list the topics", |asker| {
            let metadata = asker.fetch_metadata(None, PATIENCE)?;
            Ok(metadata.topics().iter().map(|topic| topic.name().to_owned()).collect())
        })
        .await
    }

    /// What a group has committed for the partitions of a topic.
    pub(crate) async fn committed(
        &self,
        group: &str,
        topic: &str,
        partitions: usize,
    ) -> Result<Vec<Option<Mark>>> {
        let member = self.member(group)?;
        let (what, name, asker) =
            (format!("read what `{group}` has committed"), topic.to_owned(), member.share());
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

    /// The offset of the first record of each partition that was appended at this time or later; `None` if there is none.
    pub(crate) async fn offsets_since(
        &self,
        topic: &str,
        partitions: usize,
        time: Timestamp,
    ) -> Result<Vec<Option<i64>>> {
        let (what, name) = (format!("look for offsets of `{topic}` by time"), topic.to_owned());
        self.insist(&what, move |asker| {
            let mut list = TopicPartitionList::new();
            for partition in 0..partitions as i32 {
                list.add_partition_offset(&name, partition, Offset::Offset(time.0))?;
            }
            let found = asker.offsets_for_times(list, PATIENCE)?;
            let offset = |partition| match found.find_partition(&name, partition).map(|one| one.offset()) {
                Some(Offset::Offset(offset)) => Some(offset),
                _ => None,
            };
            found.elements().iter().try_for_each(|element| element.error())?;
            Ok((0..partitions as i32).map(offset).collect())
        })
        .await
    }

    /// How long the brokers keep the offsets of a group without members; `None` if they do not tell.
    pub(crate) async fn offset_retention(&self) -> Option<Duration> {
        let asked = self.ask("list the brokers", |asker| {
            let metadata = asker.fetch_metadata(Some(catalogue::TOPIC), PATIENCE)?;
            Ok(metadata.brokers().first().map(|broker| broker.id()))
        });
        let broker = ResourceSpecifier::Broker(asked.await.ok()??);
        let options = AdminOptions::new().request_timeout(Some(PATIENCE));
        let answers = self.admin().ok()?.share().describe_configs([&broker], &options).await.ok()?;
        let described = answers.into_iter().next()?.ok()?;
        let minutes = kept::value(&described, "offsets.retention.minutes")?.parse::<u64>().ok()?;
        Some(Duration::from_secs(minutes * 60))
    }

    /// Commits where a group begins that nobody is a member of yet. Where somebody already is, it is too late, and no matter;
    /// and what was committed before stays as it is.
    pub(crate) async fn begin(&self, group: &str, marks: Vec<(Text, Vec<Mark>)>) -> Result<()> {
        let member = self.member(group)?;
        let (what, asker) = (format!("commit where `{group}` begins"), member.share());
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

    /// A client that reads or commits for a group without joining it.
    pub(crate) fn member(&self, group: &str) -> Result<Guest<BaseConsumer<Trouble>>> {
        let mut config = self.0.settings.client(&self.0.client_id);
        config.set("group.id", group).set("enable.auto.commit", "false").set("enable.partition.eof", "true");
        // The end of a topic is known when a fetch comes back empty: not to be waited for.
        config.set("auto.offset.reset", "earliest").set("fetch.wait.max.ms", "5");
        let config = self.0.settings.finish(config);
        self.guest(&config)
    }

    /// A client that makes, describes and deletes. For one use: the library gives nobody a way to listen to it, so that one which
    /// stays would keep for ever what there is to say of brokers that are away.
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

    /// Asks again while the answer is that the broker is not ready, as after a topic was made or a coordinator moved.
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

    /// One question, on a thread that may wait for the answer.
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
            // The library has calls without a limit. Such a thread stays behind.
            () = self.0.clock.sleep(LONGEST) => {
                let text = format!("Kafka did not {what} within {} s: check the brokers", LONGEST.as_secs());
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

/// Whether no broker has answered.
fn is_unanswered(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(code, Some(Code::OperationTimedOut | Code::BrokerTransportFailure | Code::AllBrokersDown))
}

/// What is not known of one partition must not pass for nothing.
fn committed(
    asker: &BaseConsumer<Trouble>,
    list: TopicPartitionList,
) -> Result<TopicPartitionList, KafkaError> {
    let list = asker.committed_offsets(list, PATIENCE)?;
    list.elements().iter().try_for_each(|element| element.error())?;
    Ok(list)
}

/// Hears what the library has to say that is the answer to no question.
fn listen(to: &BaseConsumer<Trouble>, trouble: &Trouble) {
    while let Some(Err(error)) = to.poll(STEP) {
        trouble.heard(&error);
    }
}

/// A client for one use. It takes its time to go, and nobody waits for that.
pub(crate) struct Guest<T: Send + Sync + 'static>(Option<Arc<T>>);

impl<T: Send + Sync + 'static> Guest<T> {
    /// For a thread that may wait.
    pub(crate) fn share(&self) -> Arc<T> {
        self.0.clone().expect("it is there until it is dropped")
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
