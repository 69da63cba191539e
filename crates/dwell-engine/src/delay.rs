//! Routes of delayed messages: immediately, by the broker, or through a store.

use dwell_core::{
    Address, AtomicMove, Capabilities, Clock, Due, Envelope, Error, ErrorKind, Result, Scheduler, Text,
    Transport, check_topic, duration::format_duration, wire,
};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc, time::Duration};

/// Prefix of topics in a store that hold messages for other brokers. Each broker has its own topic.
/// Names, ids and control are per topic, so brokers that share a store do not interfere.
pub const FORWARD_TOPICS: &str = "dwell.forward.";

/// Returns the topic in a store that holds messages for the broker `via`.
pub fn forward_topic(via: &str) -> Text {
    [FORWARD_TOPICS, via].concat().into()
}

/// Whether this topic holds messages for another broker.
pub fn is_forward_topic(topic: &str) -> bool {
    topic.starts_with(FORWARD_TOPICS) && !wire::is_dead_letter_topic(topic)
}

/// Where pending messages are stored.
///
/// ```
/// use dwell_engine::DelayMode;
///
/// assert_eq!(DelayMode::default(), DelayMode::Native);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DelayMode {
    /// In the broker, as far as it supports the delay, else in the store.
    #[default]
    Native,
    /// In the store, so that pending messages can be listed and cancelled.
    Scheduler,
}

/// A store for messages of one broker. `via` is the name of that broker, and of the subscription of
/// its forwarders. An unavailable broker therefore delays only its own messages.
#[derive(Clone)]
pub struct Detour {
    /// Transport that holds the messages.
    pub store: Arc<dyn Transport>,
    /// Control over the pending messages in the store.
    pub scheduler: Arc<dyn Scheduler>,
    /// Name of the broker.
    pub via: Text,
}

impl Detour {
    /// Returns the topic of this broker in the store.
    pub fn topic(&self) -> Text {
        forward_topic(&self.via)
    }

    /// Returns the address that the forwarder of this broker reads.
    pub fn address(&self) -> Address {
        Address::subscription(self.topic(), self.via.clone())
    }

    /// Addresses an envelope to the forwarder.
    pub fn wrap(&self, mut envelope: Envelope) -> Envelope {
        wire::set_destination(&mut envelope.message.headers, &envelope.to);
        Envelope { to: self.address(), ..envelope }
    }
}

impl fmt::Debug for Detour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detour").field("via", &self.via).finish_non_exhaustive()
    }
}

/// Route of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Sent immediately, without a store.
    Now,
    /// Held by the broker.
    Native,
    /// Held by a store.
    Detour,
}

/// Routing of messages for one transport.
#[derive(Clone)]
pub struct Delay {
    capabilities: Capabilities,
    mode: DelayMode,
    detour: Option<Detour>,
    clock: Arc<dyn Clock>,
}

impl Delay {
    /// Checks that the store has the required capabilities. A volatile store behind a durable
    /// transport is refused unless `allow_volatile` is set, because it loses every deferral at the
    /// next restart.
    pub fn new(
        capabilities: Capabilities,
        mode: DelayMode,
        store: Option<(Arc<dyn Transport>, Text)>,
        allow_volatile: bool,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let detour = match store {
            Some((store, via)) => Some(detour(&capabilities, store, via, allow_volatile)?),
            None => None,
        };
        if mode == DelayMode::Scheduler && detour.is_none() && !capabilities.delay_control {
            return Err(config(
                "`delay = \"scheduler\"` needs a store: set `[scheduler] url`, for example to \"sqlite://dwell.db\"",
            ));
        }
        Ok(Self { capabilities, mode, detour, clock })
    }

    /// Returns the store, if there is one.
    pub fn detour(&self) -> Option<&Detour> {
        self.detour.as_ref()
    }

    /// Whether every delayed message goes to the store.
    pub fn always_detours(&self) -> bool {
        self.detour.is_some() && self.mode == DelayMode::Scheduler
    }

    /// Whether the store records the ids of users' sends. A transport that remembers ids and holds
    /// every pending message needs no second record: cancelling an entry there would leave that
    /// record behind.
    pub(crate) fn stores_ids(&self) -> bool {
        let can = &self.capabilities;
        let transport_does = can.remembers_ids && can.delay == Duration::MAX && !self.always_detours();
        !transport_does && self.detour().is_some_and(|detour| detour.store.capabilities().remembers_ids)
    }

    /// Whether the broker may hold pending messages that it cannot list or change.
    pub(crate) fn hides_what_waits(&self) -> bool {
        let can = &self.capabilities;
        can.delay > Duration::ZERO && !can.delay_control && !self.always_detours()
    }

    /// Checks whether a message can be delayed by `longest`, natively or by the store. `what` names
    /// the setting or code that needs it.
    pub fn check(&self, longest: Duration, what: &str) -> Result<()> {
        match self.route(Due::After(longest)) {
            Ok(_) => Ok(()),
            Err(error) => Err(config(format!("{what}: {error}"))),
        }
    }

    /// Returns the route of a message with this due time.
    pub fn route(&self, due: Due) -> Result<Route> {
        if due == Due::NOW {
            return Ok(Route::Now);
        }
        let now = self.clock.now();
        let wait = due.wait(now);
        if wait.is_zero() {
            return Ok(Route::Now);
        }
        let native = self.capabilities.reaches(due, now);
        match (&self.detour, self.mode) {
            (Some(_), DelayMode::Scheduler) => Ok(Route::Detour),
            _ if native => Ok(Route::Native),
            (Some(_), DelayMode::Native) => Ok(Route::Detour),
            (None, _) => {
                let reach = match self.capabilities.delay {
                    Duration::ZERO => "cannot delay messages natively".to_owned(),
                    reach => format!("delays messages by at most {}", format_duration(reach)),
                };
                Err(config(format!(
                    "this transport {reach}, but a delay of {} was requested: set `[scheduler] url` to a store, \
                     for example \"sqlite://dwell.db\"",
                    format_duration(wait)
                )))
            }
        }
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delay")
            .field("mode", &self.mode)
            .field("detour", &self.detour)
            .finish_non_exhaustive()
    }
}

fn detour(
    target: &Capabilities,
    store: Arc<dyn Transport>,
    via: Text,
    allow_volatile: bool,
) -> Result<Detour> {
    let topic = forward_topic(&via);
    if !is_forward_topic(&topic) || check_topic(&format!("{topic}.dlq")).is_err() {
        let text = "is not a valid name for a broker in a store: use at most 100 of the characters A-Z a-z 0-9 and _.-, \
                    without `.dlq` or `.invalid` at the end";
        return Err(config(format!("`{via}` {text}")));
    }
    let can = store.capabilities();
    let scheduler = store.scheduler().filter(|_| can.delay_control && can.atomic_move != AtomicMove::No);
    let Some(scheduler) = scheduler else {
        return Err(config(
            "`[scheduler] url` names a transport that cannot hold messages until they are due: use memory, sqlite \
             or redis",
        ));
    };
    if target.durable && !can.durable && !allow_volatile {
        return Err(config(
            "`[scheduler] url` names a volatile store behind a durable transport, which would lose every delayed message at a \
             restart: use a durable store, or set `[scheduler] allow_volatile = true`",
        ));
    }
    Ok(Detour { store, scheduler, via })
}

fn config(text: impl Into<Box<str>>) -> Error {
    Error::new(ErrorKind::Config, text)
}
