//! How a message waits: not at all, inside the broker, or by way of a store. Decided here and nowhere else.

use dwell_core::{
    Address, AtomicMove, Capabilities, Clock, Due, Envelope, Error, ErrorKind, Result, Scheduler, Text,
    Transport, check_topic, duration::format_duration, wire,
};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc, time::Duration};

/// Topics in a store where messages for other brokers wait start like this. Each broker has one of its own: names, ids and
/// control are per topic, so brokers that share a store do not meet there.
pub const FORWARD_TOPICS: &str = "dwell.forward.";

/// The topic in a store where messages for the broker `via` wait.
pub fn forward_topic(via: &str) -> Text {
    [FORWARD_TOPICS, via].concat().into()
}

/// Whether messages for another broker wait in this topic.
pub fn is_forward_topic(topic: &str) -> bool {
    topic.starts_with(FORWARD_TOPICS) && !wire::is_dead_letter_topic(topic)
}

/// Who holds a message while it waits.
///
/// ```
/// use dwell_engine::DelayMode;
///
/// assert_eq!(DelayMode::default(), DelayMode::Native);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DelayMode {
    /// The broker, as far as it can; a store beyond that.
    #[default]
    Native,
    /// A store, so that what waits can be listed and cancelled.
    Scheduler,
}

/// By way of another transport, which can wait. `via` names the broker to forward to, and so the subscription of its
/// forwarders: a dead broker holds up nothing but its own messages.
#[derive(Clone)]
pub struct Detour {
    /// Where messages wait.
    pub store: Arc<dyn Transport>,
    /// Control over what waits there.
    pub scheduler: Arc<dyn Scheduler>,
    /// The broker that they are for.
    pub via: Text,
}

impl Detour {
    /// The topic of this broker in the store.
    pub fn topic(&self) -> Text {
        forward_topic(&self.via)
    }

    /// Where the forwarder of this broker reads.
    pub fn address(&self) -> Address {
        Address::subscription(self.topic(), self.via.clone())
    }

    /// The same envelope, addressed to the forwarder.
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

/// The way that one message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// At once: never touches a store.
    Now,
    /// The broker holds it.
    Native,
    /// A store holds it.
    Detour,
}

/// How messages of one transport wait.
#[derive(Clone)]
pub struct Delay {
    capabilities: Capabilities,
    mode: DelayMode,
    detour: Option<Detour>,
    clock: Arc<dyn Clock>,
}

impl Delay {
    /// Checks that the store can do what it is for. A volatile one behind a durable transport is refused unless
    /// allowed by name: it would lose every deferral at the next restart.
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
                "`delay = \"scheduler\"` needs a store: set `[scheduler] url`, for instance to \"sqlite://dwell.db\"",
            ));
        }
        Ok(Self { capabilities, mode, detour, clock })
    }

    /// The store, if there is one.
    pub fn detour(&self) -> Option<&Detour> {
        self.detour.as_ref()
    }

    /// Whether every message that waits goes by way of the store.
    pub fn always_detours(&self) -> bool {
        self.detour.is_some() && self.mode == DelayMode::Scheduler
    }

    /// Whether the store remembers the ids of users' sends. A transport that remembers them and holds every pending message
    /// itself needs no second record: cancelling an entry there would leave that record behind.
    pub(crate) fn stores_ids(&self) -> bool {
        let can = &self.capabilities;
        let transport_does = can.remembers_ids && can.delay == Duration::MAX && !self.always_detours();
        !transport_does && self.detour().is_some_and(|detour| detour.store.capabilities().remembers_ids)
    }

    /// Whether the broker itself may hold messages that it cannot list or change.
    pub(crate) fn hides_what_waits(&self) -> bool {
        let can = &self.capabilities;
        can.delay > Duration::ZERO && !can.delay_control && !self.always_detours()
    }

    /// Whether this transport can make a message wait so long, in one way or another. `what` needs it.
    pub fn check(&self, longest: Duration, what: &str) -> Result<()> {
        match self.route(Due::After(longest)) {
            Ok(_) => Ok(()),
            Err(error) => Err(config(format!("{what}: {error}"))),
        }
    }

    /// The way that a message with this due time goes.
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
                    Duration::ZERO => "cannot delay messages by itself".to_owned(),
                    reach => format!("delays messages by at most {}", format_duration(reach)),
                };
                Err(config(format!(
                    "this transport {reach}, and a delay of {} was asked for: set `[scheduler] url` to a store that \
                     can wait, for instance \"sqlite://dwell.db\"",
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
        let text = "cannot be the name of a broker in a store: use at most 100 of the characters A-Z a-z 0-9 and _.-, and not \
                    `.dlq` or `.invalid` at the end";
        return Err(config(format!("`{via}` {text}")));
    }
    let can = store.capabilities();
    let scheduler = store.scheduler().filter(|_| can.delay_control && can.atomic_move != AtomicMove::No);
    let Some(scheduler) = scheduler else {
        return Err(config(
            "`[scheduler] url` names a transport that cannot hold messages until they are due: use memory, sqlite, \
             postgres, redis or mssql",
        ));
    };
    if target.durable && !can.durable && !allow_volatile {
        return Err(config(
            "`[scheduler] url` names a store that forgets at a restart, behind a transport that does not: every delayed \
             message would be lost; use a durable store, or set `[scheduler] allow_volatile = true`",
        ));
    }
    Ok(Detour { store, scheduler, via })
}

fn config(text: impl Into<Box<str>>) -> Error {
    Error::new(ErrorKind::Config, text)
}
