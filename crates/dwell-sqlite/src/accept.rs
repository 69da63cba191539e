//! Taking in what users and copies send: every check comes before the first change, so that what is refused has changed
//! nothing.

use crate::{
    fault::Sql,
    halt::{Halt, refused},
    ids::Known,
    places::Target,
    row::{Chosen, Content, Held, New, Phase, held, message, read_message},
    tx::Tx,
};
use dwell_core::{Envelope, ErrorKind, Message, OnConflict, ScheduleId, Sent, State, Timestamp};
use rusqlite::OptionalExtension;
use std::fmt::Display;

/// The hash of what a user sends under an id of the user's own. It reads the whole body, so not where others wait.
pub(crate) fn content(envelope: &Envelope) -> Option<u128> {
    envelope.once.map(|_| envelope.message.content_hash(envelope.to.topic_name()))
}

/// The same content as [`Message::content_hash`] sees, in one topic.
pub(crate) fn is_same_content(a: &Message, b: &Message) -> bool {
    (&a.kind, &a.key, &a.content_type, &a.body) == (&b.kind, &b.key, &b.content_type, &b.body)
}

/// Who sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By<'a> {
    /// A user, or whoever has a copy on its way; with the [`content`] of the envelope.
    Producer(Option<u128>),
    /// Another program, which put it into the file; with why it cannot be read, if it cannot. Each row is a message, whatever
    /// its id is.
    OtherProgram(Option<&'a str>),
}

impl Tx<'_> {
    /// Takes in one envelope.
    pub(crate) fn accept(&mut self, envelope: &Envelope, by: By<'_>) -> Result<Sent, Halt> {
        let (content, problem) = match by {
            By::Producer(content) => (content, None),
            By::OtherProgram(problem) => (None, problem),
        };
        let target = self.target(&envelope.to)?;
        self.check_size(format_args!("`{}`", envelope.message.id), envelope.message.body.len())?;
        let topic = target.topic();
        let due = envelope.due.resolve(self.now);
        let waits = due > self.now;
        let chosen = envelope.once.zip(content).map(|(on_conflict, content)| Chosen { on_conflict, content });
        let name = match chosen {
            None if !waits => None,
            None if matches!(by, By::OtherProgram(_)) => Some(self.free_name(topic, envelope)?),
            None => Some(self.name_of_copy(topic, envelope)?),
            Some(_) => Some(ScheduleId::of(envelope)),
        };
        let waiting = match &name {
            Some(name) => self.waiting(topic, name)?,
            None => None,
        };
        if let (Some(name), Some(Chosen { on_conflict: OnConflict::Fail, content })) = (&name, chosen)
            && let Some(sent) = self.sent_before(topic, name, waiting.as_ref(), &envelope.message, content)?
        {
            return Ok(sent);
        }
        self.check_room(envelope.copy, self.copies(target), envelope.message.body.len())?;

        if let Some(replaced) = &waiting {
            self.remove(replaced)?;
        }
        let written = Content::of(&envelope.message);
        if waits {
            if let (Some(name), Some(_)) = (&name, chosen) {
                self.write_down_fired(topic, &name.0)?;
            }
            let outcome = None;
            let state = State::of_waiting(envelope.message.attempts, outcome);
            let home = self.home(topic, target.place(), &envelope.message.headers)?;
            self.insert(&New {
                topic,
                place: target.place(),
                home,
                phase: Phase::Waits,
                state: self.shown(topic, state),
                schedule: name.as_ref().map(|name| &*name.0),
                due,
                chosen,
                problem,
                content: &written,
            })?;
            self.expect(topic, due);
            return Ok(Sent { due: Some(due), duplicate: false });
        }
        if let (Some(name), Some(chosen)) = (&name, chosen) {
            self.forget_rows(topic, &name.0)?;
            self.remember(topic, &name.0, Known { content: Some(chosen.content), due: None })?;
        }
        self.deliver_new(target, chosen, problem, &written)?;
        Ok(Sent { due: None, duplicate: false })
    }

    /// The name under which a copy waits: its own, so that storing it again replaces it. Where an id was sent again with
    /// other content after the first had fired, both messages are on their way under one id, and a copy of one must not
    /// take the place of the other: then it waits beside it.
    pub(crate) fn name_of_copy(&self, topic: i64, envelope: &Envelope) -> Sql<ScheduleId> {
        let name = ScheduleId::of(envelope);
        match self.waiting(topic, &name)? {
            Some(other) if !self.has_content(&other, &envelope.message)? => {
                let content = envelope.message.content_hash(envelope.to.topic_name());
                Ok(ScheduleId(format!("{name}&{content:032x}").into()))
            }
            _ => Ok(name),
        }
    }

    /// A name that nothing waits under yet.
    pub(crate) fn free_name(&mut self, topic: i64, envelope: &Envelope) -> Sql<ScheduleId> {
        let mut name = ScheduleId::of(envelope);
        while self.waiting(topic, &name)?.is_some() {
            name = ScheduleId(format!("{}&{}", ScheduleId::of(envelope), self.next()).into());
        }
        Ok(name)
    }

    /// What waits under this name: that of its id, or one of its own.
    pub(crate) fn waiting(&self, topic: i64, name: &ScheduleId) -> Sql<Option<Held>> {
        self.sql(concat!(
            "SELECT ",
            held!(),
            " FROM message INDEXED BY message_id WHERE id = ?1 AND topic = ?2 AND phase = 0 AND schedule IS NULL
             UNION ALL SELECT ",
            held!(),
            " FROM message INDEXED BY message_schedule WHERE schedule = ?1 AND topic = ?2 LIMIT 1"
        ))?
        .query_row((&*name.0, topic), Held::read)
        .optional()
    }

    fn has_content(&self, held: &Held, message: &Message) -> Sql<bool> {
        let of = self
            .sql(concat!("SELECT ", message!(), " FROM message WHERE number = ?1"))?
            .query_row([held.number], |row| read_message(row, 0))?;
        Ok(is_same_content(&of, message))
    }

    /// Whether a body of so many bytes may come in.
    pub(crate) fn check_size(&self, of: impl Display, size: usize) -> Result<(), Halt> {
        let most = self.settings.max_body;
        if size <= most {
            return Ok(());
        }
        Err(refused(
            ErrorKind::TooLarge,
            format!(
                "the body of {of} has {size} bytes, and `{}` takes at most {most}: send less, or raise `max_body`",
                self.file_name()
            ),
        ))
    }

    /// Whether this is a second send under an id that is known: what became of the first, or a conflict.
    fn sent_before(
        &self,
        topic: i64,
        name: &ScheduleId,
        waiting: Option<&Held>,
        message: &Message,
        content: u128,
    ) -> Result<Option<Sent>, Halt> {
        let (is_same, due): (bool, Option<Timestamp>) = if let Some(first) = waiting {
            (self.has_content(first, message)?, Some(first.due))
        } else if let Some(Known { content: Some(first), due }) = self.known(topic, &name.0)? {
            (first == content, due)
        } else {
            return Ok(None);
        };
        if is_same {
            return Ok(Some(Sent { due, duplicate: true }));
        }
        let topic = &self.places().topics[&topic].name;
        Err(refused(
            ErrorKind::Conflict,
            format!(
                "`{}` was sent to `{topic}` before, with other content: choose another id, or ask to replace it",
                message.id
            ),
        ))
    }

    /// Makes a new message ready, for one subscription or for all that there are.
    fn deliver_new(
        &mut self,
        target: Target,
        chosen: Option<Chosen>,
        problem: Option<&str>,
        content: &Content<'_>,
    ) -> Sql<()> {
        let topic = target.topic();
        let places = self.destinations(target)?;
        let new = New {
            topic,
            place: topic,
            home: topic,
            phase: Phase::Ready,
            state: self.shown(topic, State::Ready),
            schedule: None,
            due: self.now,
            chosen,
            problem,
            content,
        };
        if places.is_empty() {
            self.unclaimed(topic);
            if !self.settings.done.is_zero() {
                self.insert(&New { phase: Phase::Over, state: State::Discarded, ..new })?;
            }
            return Ok(());
        }
        for place in places {
            let home = self.home(topic, place, &content.message.headers)?;
            self.insert(&New { place, home, ..new })?;
            self.signal(place, crate::signals::Signal::One);
        }
        Ok(())
    }

    /// How many rows a message is in the end.
    pub(crate) fn copies(&self, target: Target) -> usize {
        match target {
            Target::Queue(..) => 1,
            Target::Topic(topic) => self.places().topics[&topic].subscribed.len().max(1),
        }
    }

    /// Where a message that is due goes: to this subscription, to all of the topic, to the one that keeps what nobody
    /// wants, or nowhere.
    pub(crate) fn destinations(&mut self, target: Target) -> Sql<Vec<i64>> {
        let topic = match target {
            Target::Queue(_, place) => return Ok(vec![place]),
            Target::Topic(topic) => topic,
        };
        let of = &self.places().topics[&topic];
        if of.subscribed.is_empty() {
            return if of.keeps { Ok(vec![self.kept(topic)?]) } else { Ok(Vec::new()) };
        }
        Ok(of.subscribed.clone())
    }
}
