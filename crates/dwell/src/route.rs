//! Routes: the topics of message types.

use crate::message::Message;
use dwell_core::{Address, Result, Text, TypeName, check_user_topic};
use std::{
    any::TypeId,
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// The destination of messages of one type, or of messages posted to a topic.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) kind: TypeName,
    pub(crate) to: Address,
    pub(crate) role: Role,
    /// Set if a handler of this bus handles the type.
    pub(crate) handled_here: bool,
    /// Set once the topic is known to exist.
    is_there: AtomicBool,
}

/// The kind of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Command,
    Event,
    /// A raw message, which is neither known to be a command nor an event.
    Posted,
}

/// A message type that has a handler on this bus.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnType {
    pub(crate) type_id: TypeId,
    pub(crate) kind: &'static str,
    pub(crate) topic: &'static str,
    pub(crate) command: bool,
}

impl Route {
    fn new(kind: &'static str, to: Address, role: Role, handled_here: bool) -> Self {
        Self {
            kind: TypeName::constant(kind),
            to,
            role,
            handled_here,
            is_there: AtomicBool::new(handled_here),
        }
    }

    pub(crate) fn topic(&self) -> &Text {
        self.to.topic_name()
    }

    pub(crate) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }
}

impl Role {
    fn of(command: bool) -> Self {
        if command { Self::Command } else { Self::Event }
    }
}

/// The routes of all message types. Types with a handler are added at the start, others with their
/// first send.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    topics: BTreeMap<String, Text>,
    /// Types with a handler on this bus. They never change, so they need no lock.
    handled: BTreeMap<TypeId, Arc<Route>>,
    others: RwLock<BTreeMap<TypeId, Arc<Route>>>,
    /// Topics that are known to exist and accept posted messages.
    posted: RwLock<BTreeSet<Text>>,
}

impl Routes {
    /// Creates the routes. `topics` are the configured topics by type name, and `handled` the types
    /// that have a handler.
    pub(crate) fn new(topics: BTreeMap<String, Text>, handled: impl IntoIterator<Item = OwnType>) -> Self {
        let route = |one: OwnType| {
            let to = Address::Topic(Self::topic(&topics, one.kind, one.topic));
            let route = Route::new(one.kind, to, Role::of(one.command), true);
            (one.type_id, Arc::new(route))
        };
        let handled: BTreeMap<_, _> = handled.into_iter().map(route).collect();
        let posted = RwLock::new(handled.values().map(|route| route.topic().clone()).collect());
        Self { topics, handled, others: RwLock::default(), posted }
    }

    /// Returns the configured topic of a type, or its default.
    pub(crate) fn topic(topics: &BTreeMap<String, Text>, name: &str, topic: &str) -> Text {
        topics.get(name).cloned().unwrap_or_else(|| topic.into())
    }

    pub(crate) fn of<M: Message>(&self, command: bool) -> Result<Cow<'_, Arc<Route>>> {
        let id = TypeId::of::<M>();
        if let Some(route) = self.handled.get(&id) {
            return Ok(Cow::Borrowed(route));
        }
        self.of_other::<M>(id, command).map(Cow::Owned)
    }

    fn of_other<M: Message>(&self, id: TypeId, command: bool) -> Result<Arc<Route>> {
        if let Some(route) = self.others.read().unwrap_or_else(PoisonError::into_inner).get(&id) {
            return Ok(route.clone());
        }
        let topic = Self::topic(&self.topics, M::NAME, M::TOPIC);
        check_user_topic(&topic)?;
        let route = Arc::new(Route::new(M::NAME, Address::Topic(topic), Role::of(command), false));
        self.others.write().unwrap_or_else(PoisonError::into_inner).insert(id, route.clone());
        Ok(route)
    }

    /// Returns the route for a post to a topic, unless the topic is known to exist. Posts to a
    /// subscription have no route, because a subscription is never created by a send.
    pub(crate) fn of_posted(&self, to: &Address) -> Option<Arc<Route>> {
        let Address::Topic(topic) = to else { return None };
        (!self.takes_posts(topic)).then(|| Arc::new(Route::new("", to.clone(), Role::Posted, false)))
    }

    fn takes_posts(&self, topic: &Text) -> bool {
        self.posted.read().unwrap_or_else(PoisonError::into_inner).contains(topic)
    }

    /// Returns whether the topic of a route is known to exist. Each post has a separate route, so
    /// another one may have found it.
    pub(crate) fn is_there(&self, route: &Route) -> bool {
        route.is_there() || route.role == Role::Posted && self.takes_posts(route.topic())
    }

    /// Records that the topic of a route exists.
    pub(crate) fn found(&self, route: &Route) {
        route.is_there.store(true, Ordering::Relaxed);
        if route.role == Role::Posted {
            self.posted.write().unwrap_or_else(PoisonError::into_inner).insert(route.topic().clone());
        }
    }
}
