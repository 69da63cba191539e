//! Topics and subscriptions of the file, cached by the writer thread.

use crate::{
    fault::Sql,
    halt::{Halt, refused},
    tx::Tx,
};
use dwell_core::{Address, ErrorKind, Headers, Subscription, Text, is_job_topic, suggest, wire};
use rusqlite::{Connection, OptionalExtension};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// Topic. Topics are never removed.
#[derive(Clone, Debug)]
pub(crate) struct Topic {
    pub(crate) name: Text,
    /// Keeps messages that have no subscriber.
    pub(crate) keeps: bool,
    /// Declared explicitly, rather than created for a subscription.
    pub(crate) is_declared: bool,
    /// Stores dead letters.
    pub(crate) is_dead: bool,
    /// Stores jobs.
    pub(crate) is_job: bool,
    /// Declared subscriptions, in the order of their creation.
    pub(crate) subscribed: Vec<i64>,
    /// Keeps messages without a subscriber, until the first subscription is declared.
    pub(crate) kept: Option<i64>,
    /// Subscription that took over the kept messages, and that also answers to the topic's own
    /// name.
    pub(crate) adopter: Option<i64>,
    /// Set once the discarding of messages without a subscriber was logged.
    pub(crate) is_warned: bool,
}

/// Subscription. Subscriptions are never removed.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// Its settings; the subscription of kept messages has the defaults.
    pub(crate) settings: Subscription,
}

/// Resolved destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// All subscriptions that exist when it is due.
    Topic(i64),
    /// This subscription alone.
    Queue(i64, i64),
}

impl Target {
    pub(crate) fn topic(self) -> i64 {
        match self {
            Self::Topic(topic) | Self::Queue(topic, _) => topic,
        }
    }

    /// Returns the place that stores the message while it is pending.
    pub(crate) fn place(self) -> i64 {
        match self {
            Self::Topic(place) | Self::Queue(_, place) => place,
        }
    }
}

/// All topics and subscriptions, by the number of their place.
#[derive(Default)]
pub(crate) struct Places {
    pub(crate) topics: BTreeMap<i64, Topic>,
    pub(crate) queues: BTreeMap<i64, Queue>,
    topic_names: HashMap<Text, i64>,
    queue_names: HashMap<(i64, Text), i64>,
}

/// Converts a duration to its form in the file.
pub(crate) fn to_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

fn to_address(text: String) -> Address {
    match text.split_once('/') {
        Some((topic, name)) => Address::subscription(topic, name),
        None => Address::topic(text),
    }
}

impl Places {
    pub(crate) fn load(connection: &Connection) -> Sql<Self> {
        let mut places = Self::default();
        let mut topics = connection.prepare_cached(
            "SELECT t.id, p.topic, t.keeps, t.declared, t.discarded FROM topic t JOIN place p ON p.id = t.id",
        )?;
        let mut rows = topics.query([])?;
        while let Some(row) = rows.next()? {
            let name: Text = row.get(1)?;
            let topic = Topic {
                keeps: row.get(2)?,
                is_declared: row.get(3)?,
                is_dead: wire::is_dead_letter_topic(&name),
                is_job: is_job_topic(&name),
                subscribed: Vec::new(),
                kept: None,
                adopter: None,
                is_warned: row.get::<_, i64>(4)? > 0,
                name: name.clone(),
            };
            let id = row.get(0)?;
            places.topic_names.insert(name, id);
            places.topics.insert(id, topic);
        }
        let mut queues = connection.prepare_cached(
            "SELECT s.id, s.topic, p.topic, p.subscription, s.declared, s.adopted, s.lease, s.ordered, s.dead_letter,
                    s.invalid
             FROM subscription s JOIN place p ON p.id = s.id ORDER BY s.id",
        )?;
        let mut rows = queues.query([])?;
        while let Some(row) = rows.next()? {
            let settings = Subscription {
                topic: row.get(2)?,
                name: row.get(3)?,
                lease: Duration::from_millis(u64::try_from(row.get::<_, i64>(6)?).unwrap_or(0)),
                ordered: row.get(7)?,
                dead_letter: row.get::<_, Option<String>>(8)?.map(to_address),
                invalid: row.get::<_, Option<String>>(9)?.map(to_address),
            };
            places.add_queue(row.get(0)?, row.get(1)?, settings, row.get(4)?, row.get(5)?);
        }
        Ok(places)
    }

    fn add_queue(
        &mut self,
        id: i64,
        topic: i64,
        settings: Subscription,
        is_declared: bool,
        is_adopter: bool,
    ) {
        if let Some(of) = self.topics.get_mut(&topic) {
            match is_declared {
                true => of.subscribed.push(id),
                false => of.kept = Some(id),
            }
            if is_adopter {
                of.adopter = Some(id);
            }
        }
        if is_declared {
            self.queue_names.insert((topic, settings.name.clone()), id);
        }
        self.queues.insert(id, Queue { settings });
    }

    pub(crate) fn topic_named(&self, name: &str) -> Option<i64> {
        self.topic_names.get(name).copied()
    }

    /// Returns the declared subscription of this name.
    pub(crate) fn queue_named(&self, topic: i64, name: &Text) -> Option<i64> {
        self.queue_names.get(&(topic, name.clone())).copied()
    }

    /// Returns all subscriptions of a topic.
    pub(crate) fn of_topic(&self, topic: i64) -> impl Iterator<Item = i64> {
        let of = self.topics.get(&topic);
        of.into_iter().flat_map(|of| of.subscribed.iter().copied().chain(of.kept))
    }
}

impl Tx<'_> {
    pub(crate) fn topic(&self, name: &str) -> Result<i64, Halt> {
        self.places().topic_named(name).ok_or_else(|| {
            let close = suggest(name, self.places().topic_names.keys().map(|name| &**name));
            let meant = close.map(|close| format!("did you mean `{close}`? otherwise ")).unwrap_or_default();
            let text = format!(
                "there is no topic `{name}` in `{}`: {meant}start a program that handles it, with \
                 `on_missing = \"create\"`, which is the default",
                self.file_name()
            );
            refused(ErrorKind::NotFound, text)
        })
    }

    /// Returns the subscription of this name. The subscription with the topic's own name is created
    /// on first use if the topic keeps messages without a subscriber; after its adoption, its
    /// adopter answers to this name.
    pub(crate) fn queue(&mut self, topic: i64, name: &Text) -> Result<i64, Halt> {
        if let Some(queue) = self.places().queue_named(topic, name) {
            return Ok(queue);
        }
        let of = &self.places().topics[&topic];
        if of.name == *name {
            if of.keeps && of.subscribed.is_empty() {
                return Ok(self.kept(topic)?);
            }
            if let Some(adopter) = of.adopter {
                return Ok(adopter);
            }
        }
        let text = format!(
            "there is no subscription `{name}` of the topic `{}`: start a program that declares it, with \
             `on_missing = \"create\"`, which is the default",
            of.name
        );
        Err(refused(ErrorKind::NotFound, text))
    }

    /// Returns the subscription of kept messages.
    pub(crate) fn kept(&mut self, topic: i64) -> Sql<i64> {
        let of = &self.places().topics[&topic];
        if let Some(kept) = of.kept {
            return Ok(kept);
        }
        let settings = Subscription::new(of.name.clone(), of.name.clone());
        self.insert_queue(topic, &settings, false)
    }

    pub(crate) fn target(&mut self, to: &Address) -> Result<Target, Halt> {
        let topic = self.topic(to.topic_name())?;
        Ok(match to.subscription_name() {
            None => Target::Topic(topic),
            Some(name) => Target::Queue(topic, self.queue(topic, name)?),
        })
    }

    /// Returns the number of a place, and assigns one if there is none.
    pub(crate) fn place(&mut self, topic: &str, subscription: &str) -> Sql<i64> {
        let found = self
            .sql("SELECT id FROM place WHERE topic = ?1 AND subscription = ?2")?
            .query_row([topic, subscription], |row| row.get(0))
            .optional()?;
        if let Some(found) = found {
            return Ok(found);
        }
        let id = self.next();
        self.sql("INSERT INTO place (id, topic, subscription) VALUES (?1, ?2, ?3)")?.execute((
            id,
            topic,
            subscription,
        ))?;
        Ok(id)
    }

    pub(crate) fn insert_topic(&mut self, name: &Text, keeps: bool, is_declared: bool) -> Sql<i64> {
        let id = self.place(name, "")?;
        self.sql("INSERT INTO topic (id, keeps, declared) VALUES (?1, ?2, ?3)")?.execute((
            id,
            keeps,
            is_declared,
        ))?;
        self.places_changed()?;
        Ok(id)
    }

    pub(crate) fn insert_queue(
        &mut self,
        topic: i64,
        settings: &Subscription,
        is_declared: bool,
    ) -> Sql<i64> {
        let id = self.place(&settings.topic, &settings.name)?;
        self.write_queue(id, topic, settings, is_declared, false)?;
        Ok(id)
    }

    /// Writes the settings of a new or existing subscription.
    pub(crate) fn write_queue(
        &mut self,
        id: i64,
        topic: i64,
        settings: &Subscription,
        is_declared: bool,
        is_adopter: bool,
    ) -> Sql<()> {
        let channel = |address: &Option<Address>| address.as_ref().map(Address::to_string);
        self.sql(
            "INSERT OR REPLACE INTO subscription (id, topic, declared, adopted, lease, ordered, dead_letter, invalid)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute((
            id,
            topic,
            is_declared,
            is_adopter,
            to_millis(settings.lease),
            settings.ordered,
            channel(&settings.dead_letter),
            channel(&settings.invalid),
        ))?;
        self.places_changed()
    }

    /// Returns the place that a message belongs to: the place that stores it, or for a dead letter
    /// its origin.
    pub(crate) fn home(&mut self, topic: i64, place: i64, headers: &Headers) -> Sql<i64> {
        if !self.places().topics[&topic].is_dead {
            return Ok(place);
        }
        match headers.get_text(wire::ORIGINAL_TOPIC) {
            Some(original) => self.place(original, headers.get_text(wire::SUBSCRIPTION).unwrap_or_default()),
            None => Ok(place),
        }
    }
}
