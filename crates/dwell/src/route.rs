//! Where messages of a type go.

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

/// Where messages of one type go, or those that are posted to a topic.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) kind: TypeName,
    pub(crate) to: Address,
    pub(crate) role: Role,
    /// A handler of this bus handles it.
    pub(crate) handled_here: bool,
    /// Its topic was seen to be there.
    is_there: AtomicBool,
}

/// As what a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Command,
    Event,
    /// Raw: nobody said which of the two.
    Posted,
}

/// A type that has a handler here.
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

/// The topics of all types: of those that are handled here from the start, of others from their first send.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    topics: BTreeMap<String, Text>,
    /// Types that have a handler here: never changed, and so without a lock.
    handled: BTreeMap<TypeId, Arc<Route>>,
    others: RwLock<BTreeMap<TypeId, Arc<Route>>>,
    /// Topics to which something can be posted: they were seen to be there.
    posted: RwLock<BTreeSet<Text>>,
}

impl Routes {
    /// `topics` is what the configuration says, by type name. `handled` are the types that have a handler here.
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

    /// The topic of a type, by its names.
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

    /// The way of what is posted to a topic, unless that is known to be there. A subscription is there, or it is not.
    pub(crate) fn of_posted(&self, to: &Address) -> Option<Arc<Route>> {
        let Address::Topic(topic) = to else { return None };
        (!self.takes_posts(topic)).then(|| Arc::new(Route::new("", to.clone(), Role::Posted, false)))
    }

    fn takes_posts(&self, topic: &Text) -> bool {
        self.posted.read().unwrap_or_else(PoisonError::into_inner).contains(topic)
    }

    /// Whether the topic of this route was seen to be there. Each post has a route of its own: another one may have seen it.
    pub(crate) fn is_there(&self, route: &Route) -> bool {
        route.is_there() || route.role == Role::Posted && self.takes_posts(route.topic())
    }

    /// The topic of this route was seen to be there.
    pub(crate) fn found(&self, route: &Route) {
        route.is_there.store(true, Ordering::Relaxed);
        if route.role == Role::Posted {
            self.posted.write().unwrap_or_else(PoisonError::into_inner).insert(route.topic().clone());
        }
    }
}
