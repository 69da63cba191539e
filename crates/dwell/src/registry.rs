//! What was given to the builder, checked and sorted by subscription.

use crate::{
    config::Config,
    extract::States,
    message::Message,
    pipeline::{Built, Chain, Pipeline},
    route::Routes,
    subscription::Subscription,
};
use dwell_core::{Error, ErrorKind, Result, RetryOverride, Text, check_user_topic};
use dwell_engine::SubscriptionSettings;
use std::{
    any::{TypeId, type_name},
    collections::BTreeMap,
    sync::Arc,
};

/// One handler, as it was given to the builder.
pub(crate) struct Registered {
    subscription: Option<Subscription>,
    command: bool,
    type_id: TypeId,
    rust_type: &'static str,
    kind: &'static str,
    topic: &'static str,
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
            command,
            type_id: TypeId::of::<M>(),
            rust_type: type_name::<M>(),
            kind: M::NAME,
            topic: M::TOPIC,
            handler: handler.build(),
        }
    }
}

/// The handlers of one subscription.
pub(crate) struct Group {
    pub(crate) settings: SubscriptionSettings,
    pub(crate) chains: BTreeMap<Text, Arc<Chain>>,
    /// As code described it, to see whether two descriptions agree.
    described: Option<Subscription>,
    retries: BTreeMap<String, RetryOverride>,
    handlers: Vec<(Text, Text, bool)>,
}

/// All of them.
pub(crate) struct Registry {
    pub(crate) groups: Vec<Group>,
    /// What the configuration says about topics, by type.
    pub(crate) topics: BTreeMap<String, Text>,
}

fn refused(text: String) -> Error {
    Error::new(ErrorKind::Config, text)
}

impl Registry {
    pub(crate) fn new(registered: Vec<Registered>, config: &Config, states: &States) -> Result<Self> {
        let topics: BTreeMap<String, Text> =
            config.routes.iter().map(|route| (route.kind.clone(), route.topic.as_str().into())).collect();
        let mut types: BTreeMap<&str, (TypeId, &str)> = BTreeMap::new();
        let mut commands: BTreeMap<Text, (bool, Text, Text)> = BTreeMap::new();
        let mut groups: BTreeMap<(Text, Text), Group> = BTreeMap::new();
        for one in registered {
            let built = one.handler?;
            let handler = built.name.clone();
            let (_, first) =
                *types.entry(one.kind).and_modify(|_| {}).or_insert((one.type_id, one.rust_type));
            if types[one.kind].0 != one.type_id {
                return Err(refused(format!(
                    "the types `{first}` and `{}` are both called `{}` on the wire: give one of them another name",
                    one.rust_type, one.kind
                )));
            }
            for (id, name) in &built.needs {
                if !states.has(*id) {
                    return Err(refused(format!(
                        "the handler `{handler}` asks for `State<{name}>`, and no such state was given: add \
                         `.state(…)` with a value of type `{name}`"
                    )));
                }
            }
            let topic = Routes::topic(&topics, one.kind, one.topic);
            check_user_topic(&topic)?;
            let described = one.subscription.clone().unwrap_or_else(|| Subscription::named(topic.clone()));
            let name = described.settings.name.clone();
            let (command, others, other) = commands
                .entry(topic.clone())
                .or_insert_with(|| (one.command, name.clone(), handler.clone()))
                .clone();
            if command != one.command {
                return Err(refused(format!(
                    "the topic `{topic}` has commands and events, `{other}` and `{handler}` handle them: give one of \
                     the two message types a topic of its own"
                )));
            }
            if command && others != name {
                return Err(refused(format!(
                    "commands of the topic `{topic}` have two subscriptions, `{others}` and `{name}`, of `{other}` and \
                     `{handler}`: each would get every command; keep one"
                )));
            }
            let group = groups.entry((topic.clone(), name.clone())).or_insert_with(|| Group {
                settings: SubscriptionSettings::new(topic.clone(), name.clone()),
                chains: BTreeMap::new(),
                described: None,
                retries: BTreeMap::new(),
                handlers: vec![],
            });
            group.settings.command = one.command;
            group.describe(described, &topic)?;
            group.add(one.kind, built, one.command)?;
        }
        let groups = groups.into_values().map(|group| group.finish(config)).collect::<Result<_>>()?;
        Ok(Self { groups, topics })
    }

    /// Every type that is handled here.
    pub(crate) fn kinds(&self) -> Vec<Text> {
        self.groups.iter().flat_map(|group| group.chains.keys().cloned()).collect()
    }

    pub(crate) fn check_inbox(&self, there_is_one: bool) -> Result<()> {
        let needs = |group: &&Group| group.handlers.iter().any(|(.., needs)| *needs);
        match self.groups.iter().find(needs) {
            Some(group) if !there_is_one => {
                let (handler, ..) =
                    group.handlers.iter().find(|(.., needs)| *needs).expect("it was found to have one");
                Err(refused(format!(
                    "the handler `{handler}` has the step `inbox`, and neither the transport nor a store can remember what \
                     was handled: set `[scheduler] url` to a store that can, for instance \"sqlite://dwell.db\""
                )))
            }
            _ => Ok(()),
        }
    }

    /// Most likely misspelt.
    pub(crate) fn warn_about_overrides(&self, config: &Config) {
        let known = self.kinds();
        for kind in config.overrides().into_keys() {
            if !known.iter().any(|known| **known == *kind) {
                let near = dwell_core::suggest(&kind, known.iter().map(|known| &**known));
                let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                tracing::warn!(
                    target: "dwell", kind,
                    "`[[retry.override]]` names the type `{kind}`, which nobody here handles{hint}"
                );
            }
        }
    }
}

impl Group {
    /// Several handlers may share a subscription; its settings are given once.
    fn describe(&mut self, described: Subscription, topic: &str) -> Result<()> {
        let is_plain = |subscription: &Subscription| {
            *subscription == Subscription::named(subscription.settings.name.clone())
        };
        match &self.described {
            Some(first) if is_plain(&described) || *first == described => {}
            Some(first) if !is_plain(first) => {
                return Err(refused(format!(
                    "the subscription `{topic}/{}` is described twice, with different settings: give them once, and its \
                     name alone to the other handlers",
                    described.settings.name
                )));
            }
            _ => self.described = Some(described),
        }
        Ok(())
    }

    fn add(&mut self, kind: &str, built: Built, command: bool) -> Result<()> {
        let Built { name, chain, retry, needs_inbox, .. } = built;
        let place = format!("{}/{}", self.settings.topic, self.settings.name);
        if let Some((first, ..)) = self.handlers.iter().find(|(_, of, _)| **of == *kind) {
            return Err(refused(match command {
                true => format!(
                    "the command `{kind}` has two handlers, `{first}` and `{name}`: a command has exactly one"
                ),
                false => format!(
                    "the event `{kind}` has two handlers in the subscription `{place}`, `{first}` and `{name}`: give each \
                     a subscription of its own, so that a retry of one never reruns the other"
                ),
            }));
        }
        self.handlers.push((name, kind.into(), needs_inbox));
        self.chains.insert(kind.into(), Arc::new(chain));
        self.retries.extend(retry.map(|retry| (kind.to_owned(), retry)));
        Ok(())
    }

    /// Code over the general configuration, and what the configuration says about this one over code.
    fn finish(mut self, config: &Config) -> Result<Self> {
        let described = self.described.take().expect("a group has at least one handler");
        let Subscription { mut settings, sets_retry } = described;
        settings.topic = self.settings.topic.clone();
        settings.command = self.settings.command;
        if !sets_retry {
            settings.retry = config.retry.policy;
        }
        for (kind, retry) in self.retries.clone() {
            let special = settings.overrides.entry(kind).or_default();
            *special = over(retry, *special);
        }
        if let Some(overlay) = config.overlay(&settings.topic, &settings.name) {
            settings = overlay.apply(settings)?;
        }
        for (kind, special) in config.overrides() {
            let entry = settings.overrides.entry(kind).or_default();
            *entry = over(special, *entry);
        }
        self.settings = settings;
        Ok(self)
    }
}

/// The first where it says something, else the second.
fn over(first: RetryOverride, second: RetryOverride) -> RetryOverride {
    RetryOverride {
        max_retries: first.max_retries.or(second.max_retries),
        base_delay: first.base_delay.or(second.base_delay),
        max_delay: first.max_delay.or(second.max_delay),
        jitter: first.jitter.or(second.jitter),
        handler_timeout: first.handler_timeout.or(second.handler_timeout),
    }
}
