//! The handlers of a builder, validated and grouped by subscription.

use crate::{
    codec::decode,
    config::{Config, Overlay},
    extract::States,
    jobs::{self, Check, Handled},
    message::{Command, Message},
    pipeline::{Built, Chain, Pipeline},
    route::{OwnType, Routes},
    subscription::Subscription,
};
use dwell_core::{Error, ErrorKind, Result, RetryOverride, Text, check_user_topic, format_duration};
use dwell_engine::SubscriptionSettings;
use serde_json::Value;
use std::{
    any::{TypeId, type_name},
    collections::BTreeMap,
    sync::Arc,
    time::Duration,
};

/// One handler as registered with the builder.
pub(crate) struct Registered {
    subscription: Option<Subscription>,
    of: OwnType,
    rust_type: &'static str,
    /// The topic of the job type, or the default topic of the message type.
    topic: Text,
    /// Check of the payload of a job; `None` if this is not a job.
    job: Option<Check>,
    handler: Result<Built>,
}

impl Registered {
    pub(crate) fn new<M: Message>(
        subscription: Option<Subscription>,
        command: bool,
        handler: Pipeline<M>,
    ) -> Self {
        Self {
            subscription,
            of: OwnType { type_id: TypeId::of::<M>(), kind: M::NAME, topic: M::TOPIC, command },
            rust_type: type_name::<M>(),
            topic: M::TOPIC.into(),
            job: None,
            handler: handler.build(),
        }
    }

    /// Creates a job handler. Topic and subscription both have the name that belongs to the job
    /// type.
    pub(crate) fn job<M: Command>(mut subscription: Subscription, handler: Pipeline<M>) -> Self {
        let topic = jobs::topic_of(M::NAME);
        subscription.settings.name = topic.clone();
        let check: Check =
            |content_type, payload| decode::<M::Codec, M>(content_type, payload).map(|_: M| ());
        Self { topic, job: Some(check), ..Self::new(Some(subscription), true, handler) }
    }
}

/// The handlers of one subscription.
pub(crate) struct Group {
    pub(crate) settings: SubscriptionSettings,
    pub(crate) chains: BTreeMap<Text, Arc<Chain>>,
    /// The subscription as set in code, to detect contradicting registrations.
    described: Option<Subscription>,
    retries: BTreeMap<String, RetryOverride>,
    handlers: Vec<(Text, Text, bool)>,
    /// The longest delay that a step of its handlers can request.
    pub(crate) longest_delay: Duration,
    /// Check of the payload of a job, if the subscription carries jobs.
    job: Option<Check>,
}

/// All handlers of a bus.
pub(crate) struct Registry {
    pub(crate) groups: Vec<Group>,
    /// The message types, without jobs, that have a handler on this bus.
    pub(crate) handled: Vec<OwnType>,
    /// The configured topics, by message type.
    pub(crate) topics: BTreeMap<String, Text>,
}

fn refused(text: String) -> Error {
    Error::new(ErrorKind::Config, text)
}

impl Registry {
    pub(crate) fn new(registered: Vec<Registered>, config: &Config, states: &States) -> Result<Self> {
        let topics: BTreeMap<String, Text> =
            config.routes.iter().map(|route| (route.kind.clone(), route.topic.as_str().into())).collect();
        let messages = registered.iter().filter(|one| one.job.is_none());
        let handled = messages.map(|one| one.of).collect();
        let mut types: BTreeMap<&str, (TypeId, &str)> = BTreeMap::new();
        let mut commands: BTreeMap<Text, (bool, Text, Text)> = BTreeMap::new();
        let mut groups: BTreeMap<(Text, Text), Group> = BTreeMap::new();
        for one in registered {
            let built = one.handler?;
            let handler = built.name.clone();
            let (_, first) =
                *types.entry(one.of.kind).and_modify(|_| {}).or_insert((one.of.type_id, one.rust_type));
            if types[one.of.kind].0 != one.of.type_id {
                return Err(refused(format!(
                    "the types `{first}` and `{}` have the same wire name `{}`: change the name of one of them",
                    one.rust_type, one.of.kind
                )));
            }
            for (id, name) in &built.needs {
                if !states.has(*id) {
                    return Err(refused(format!(
                        "the handler `{handler}` takes `State<{name}>`, but the builder has no such state: add \
                         `.state(…)` with a value of type `{name}`"
                    )));
                }
            }
            let topic = match one.job {
                Some(_) => {
                    jobs::check_kind(one.of.kind)?;
                    if built.needs_inbox {
                        return Err(refused(format!(
                            "the job handler `{handler}` has the step `inbox`, which would complete a redelivered job without \
                             its result: remove the step; submissions with the same id already create one job"
                        )));
                    }
                    one.topic
                }
                None => Routes::topic(&topics, one.of.kind, &one.topic),
            };
            if one.job.is_none() {
                check_user_topic(&topic)?;
            }
            let described = one.subscription.clone().unwrap_or_else(|| Subscription::named(topic.clone()));
            let name = described.settings.name.clone();
            let (command, others, other) = commands
                .entry(topic.clone())
                .or_insert_with(|| (one.of.command, name.clone(), handler.clone()))
                .clone();
            if command != one.of.command {
                return Err(refused(format!(
                    "the topic `{topic}` has commands and events (handlers `{other}` and `{handler}`): set another topic \
                     for one of the two message types"
                )));
            }
            if command && others != name {
                return Err(refused(format!(
                    "the commands of the topic `{topic}` have two subscriptions, `{others}` (handler `{other}`) and `{name}` \
                     (handler `{handler}`), and each would receive every command: use one subscription"
                )));
            }
            let group = groups.entry((topic.clone(), name.clone())).or_insert_with(|| Group {
                settings: SubscriptionSettings::new(topic.clone(), name.clone()),
                chains: BTreeMap::new(),
                described: None,
                retries: BTreeMap::new(),
                handlers: vec![],
                longest_delay: Duration::ZERO,
                job: None,
            });
            group.settings.command = one.of.command;
            group.job = one.job;
            group.describe(described, &topic)?;
            group.add(one.of.kind, built, one.of.command)?;
        }
        let groups = groups.into_values().map(|group| group.finish(config)).collect::<Result<_>>()?;
        Ok(Self { groups, handled, topics })
    }

    /// Returns every message type that has a handler on this bus.
    pub(crate) fn kinds(&self) -> Vec<Text> {
        self.groups.iter().flat_map(|group| group.chains.keys().cloned()).collect()
    }

    /// Returns the types of jobs that have a handler on this bus.
    pub(crate) fn jobs(&self) -> Vec<(Text, Handled)> {
        let jobs = self.groups.iter().filter_map(|group| Some((group, group.job?)));
        jobs.flat_map(|(group, check)| {
            let settings = || group.settings.clone();
            group.chains.keys().map(move |kind| (kind.clone(), Handled { settings: settings(), check }))
        })
        .collect()
    }

    pub(crate) fn check_inbox(&self, there_is_one: bool) -> Result<()> {
        let needs = |group: &&Group| group.handlers.iter().any(|(.., needs)| *needs);
        match self.groups.iter().find(needs) {
            Some(group) if !there_is_one => {
                let (handler, ..) = group
                    .handlers
                    .iter()
                    .find(|(.., needs)| *needs)
                    .expect("this group has a handler with an inbox");
                Err(refused(format!(
                    "the handler `{handler}` has the step `inbox`, but neither the transport nor a store supports an inbox: \
                     set `[scheduler] url` to a store that does, for example \"sqlite://dwell.db\""
                )))
            }
            _ => Ok(()),
        }
    }

    /// Warns about configured types and subscriptions that do not exist on this bus. They are
    /// probably misspelt, or meant for another program that reads the same file.
    pub(crate) fn warn_about_what_is_not_here(&self, config: &Config) {
        let (known, general) = (self.kinds(), config.overrides());
        for kind in general.keys() {
            if !known.iter().any(|known| **known == *kind) {
                let hint = hint(kind, known.iter().map(|known| &**known));
                tracing::warn!(
                    target: "dwell", kind,
                    "`[[retry.override]]` names the type `{kind}`, which has no handler on this bus{hint}"
                );
            }
        }
        for Group { settings, chains, .. } in &self.groups {
            // General overrides may be meant for other subscriptions.
            let own = settings.overrides.keys().filter(|kind| !general.contains_key(*kind));
            for kind in own.filter(|kind| !chains.contains_key(kind.as_str())) {
                let (topic, subscription) = (&*settings.topic, &*settings.name);
                let hint = hint(kind, chains.keys().map(|known| &**known));
                tracing::warn!(
                    target: "dwell", kind, topic, subscription,
                    "`overrides` of the subscription `{topic}/{subscription}` names the type `{kind}`, which has no \
                     handler there{hint}"
                );
            }
        }
        let place = |settings: &SubscriptionSettings| format!("{}/{}", settings.topic, settings.name);
        let known: Vec<_> = self.groups.iter().map(|group| place(&group.settings)).collect();
        for overlay in &config.subscriptions {
            let named = format!("{}/{}", overlay.topic, overlay.name);
            if !known.contains(&named) {
                let hint = hint(&named, known.iter().map(String::as_str));
                tracing::warn!(
                    target: "dwell", subscription = named,
                    "`[[subscription]]` names `{named}`, which is not a subscription of this bus{hint}"
                );
            }
        }
    }
}

fn hint<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    dwell_core::suggest(given, known).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}

impl Group {
    /// Records the settings of the subscription. Several handlers can share a subscription. Those
    /// that set its settings must agree; the others pass only its name.
    fn describe(&mut self, described: Subscription, topic: &str) -> Result<()> {
        let is_plain = |subscription: &Subscription| {
            *subscription == Subscription::named(subscription.settings.name.clone())
        };
        match &self.described {
            Some(first) if is_plain(&described) || *first == described => {}
            Some(first) if !is_plain(first) => {
                return Err(refused(format!(
                    "the subscription `{topic}/{}` is described twice with different settings: pass the settings with one \
                     handler, and only its name with the others",
                    described.settings.name
                )));
            }
            _ => self.described = Some(described),
        }
        Ok(())
    }

    fn add(&mut self, kind: &str, built: Built, command: bool) -> Result<()> {
        let Built { name, chain, retry, needs_inbox, longest_delay, .. } = built;
        self.longest_delay = self.longest_delay.max(longest_delay);
        let place = format!("{}/{}", self.settings.topic, self.settings.name);
        if let Some((first, ..)) = self.handlers.iter().find(|(_, of, _)| **of == *kind) {
            return Err(refused(match command {
                true => format!(
                    "the command `{kind}` has two handlers, `{first}` and `{name}`: a command has exactly one"
                ),
                false => format!(
                    "the event `{kind}` has two handlers in the subscription `{place}`, `{first}` and `{name}`: use a \
                     separate subscription for each, so that a retry of one never reruns the other"
                ),
            }));
        }
        self.handlers.push((name, kind.into(), needs_inbox));
        self.chains.insert(kind.into(), Arc::new(chain));
        self.retries.extend(retry.map(|retry| (kind.to_owned(), retry)));
        Ok(())
    }

    /// Combines the settings. Those of code override the general configuration, and the
    /// configuration of this subscription overrides code.
    fn finish(mut self, config: &Config) -> Result<Self> {
        let described = self.described.take().expect("a group has at least one handler");
        let Subscription { mut settings, sets_retry } = described;
        settings.topic = self.settings.topic.clone();
        settings.command = self.settings.command;
        if !sets_retry {
            settings.retry = config.retry.policy;
        }
        for (kind, retry) in std::mem::take(&mut self.retries) {
            let special = settings.overrides.entry(kind).or_default();
            *special = over(retry, *special);
        }
        let overlay = config.overlay(&settings.topic, &settings.name);
        for special in settings.overrides.values_mut() {
            overlay.iter().for_each(|overlay| give_way(special, overlay));
        }
        for (kind, special) in config.overrides() {
            let entry = settings.overrides.entry(kind).or_default();
            *entry = over(special, *entry);
        }
        if let Some(overlay) = overlay {
            settings = overlay.apply(settings)?;
        }
        check_delays(&settings)?;
        self.settings = settings;
        Ok(self)
    }
}

/// Removes the overrides of a type that the configuration of the subscription sets.
fn give_way(special: &mut RetryOverride, overlay: &Overlay) {
    let written = overlay.settings();
    let retry =
        |name: &str| matches!(written.get("retry"), Some(Value::Object(retry)) if retry.contains_key(name));
    special.max_retries = special.max_retries.filter(|_| !retry("max_retries"));
    special.base_delay = special.base_delay.filter(|_| !retry("base_delay"));
    special.max_delay = special.max_delay.filter(|_| !retry("max_delay"));
    special.jitter = special.jitter.filter(|_| !retry("jitter"));
    special.handler_timeout = special.handler_timeout.filter(|_| !written.contains_key("handler_timeout"));
}

/// Refuses a `base_delay` above the `max_delay`, which would be cut without a warning.
fn check_delays(settings: &SubscriptionSettings) -> Result<()> {
    let policies = settings.retry_policies();
    let types = settings.overrides.keys().map(|kind| (Some(kind), policies.of(kind)));
    for (kind, policy) in types.chain([(None, settings.retry)]) {
        if policy.base_delay > policy.max_delay {
            let of = kind.map(|kind| format!(" for the type `{kind}`")).unwrap_or_default();
            return Err(refused(format!(
                "the subscription `{}/{}`: the retry policy{of} has a `base_delay` of {}, above its `max_delay` of {}: set \
                 both",
                settings.topic,
                settings.name,
                format_duration(policy.base_delay),
                format_duration(policy.max_delay)
            )));
        }
    }
    Ok(())
}

/// Combines two overrides; values of the first take precedence.
fn over(first: RetryOverride, second: RetryOverride) -> RetryOverride {
    RetryOverride {
        max_retries: first.max_retries.or(second.max_retries),
        base_delay: first.base_delay.or(second.base_delay),
        max_delay: first.max_delay.or(second.max_delay),
        jitter: first.jitter.or(second.jitter),
        handler_timeout: first.handler_timeout.or(second.handler_timeout),
    }
}
