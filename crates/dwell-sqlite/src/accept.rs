//! Acceptance of messages sent by users and of copies. All checks precede the first change, so a
//! refused message has changed nothing.

use crate::{
    fault::Sql,
    halt::{Halt, refused},
    ids::Known,
    places::Target,
    row::{COPY, Chosen, Content, Held, New, Phase, held, message, read_message},
    tx::Tx,
};
use dwell_core::{Envelope, ErrorKind, Message, OnConflict, ScheduleId, Sent, State, Timestamp, wire};
use rusqlite::OptionalExtension;
use std::fmt::Display;

/// Returns the content hash of a message whose id was chosen by the user. This reads the whole
/// body, so it does not run on the writer thread.
pub(crate) fn content(envelope: &Envelope) -> Option<u128> {
    envelope.once.map(|_| envelope.message.content_hash(envelope.to.topic_name()))
}

/// Returns whether two messages of one topic have the same content, as defined by
/// [`Message::content_hash`].
pub(crate) fn is_same_content(a: &Message, b: &Message) -> bool {
    (&a.kind, &a.key, &a.content_type, &a.body) == (&b.kind, &b.key, &b.content_type, &b.body)
}

/// Pending entry that an envelope is stored as.
pub(crate) struct Slot {
    pub(crate) name: ScheduleId,
    /// Current entry of this name.
    pub(crate) replaces: Option<Held>,
}

/// Origin of an envelope.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By<'a> {
    /// A user or the sender of a copy, with the [`content`] of the envelope.
    Producer(Option<u128>),
    /// Another program, which inserted it into the file, with the reason if it cannot be read. Each
    /// row is a separate message, whatever its id.
    OtherProgram(Option<&'a str>),
}

impl Tx<'_> {
    /// Accepts one envelope.
    pub(crate) fn accept(&mut self, envelope: &Envelope, by: By<'_>) -> Result<Sent, Halt> {
        let (content, problem) = match by {
            By::Producer(content) => (content, None),
            By::OtherProgram(problem) => (None, problem),
        };
        let target = self.target(&envelope.to)?;
        self.check_size(format_args!("`{}`", envelope.message.id), envelope.message.body.len())?;
        let topic = target.topic();
        let due = self.resolve(envelope.due);
        let waits = due > self.now;
        let chosen = envelope.once.zip(content).map(|(on_conflict, content)| Chosen { on_conflict, content });
        let slot = match chosen {
            None if !waits => None,
            None if envelope.copy => Some(self.slot_of_copy(topic, envelope)?),
            None => Some(self.free_slot(topic, envelope)?),
            Some(_) => Some(self.slot(topic, ScheduleId::of(envelope))?),
        };
        if let (Some(slot), Some(Chosen { on_conflict: OnConflict::Fail, content })) = (&slot, chosen)
            && let Some(sent) = self.sent_before(topic, slot, envelope, content)?
        {
            return Ok(sent);
        }
        self.check_room(envelope.copy, self.copies(target), envelope.message.body.len())?;

        if let Some(replaced) = slot.as_ref().and_then(|slot| slot.replaces.as_ref()) {
            self.remove(replaced)?;
        }
        let written = Content::of(&envelope.message);
        if waits {
            if let (Some(slot), Some(_)) = (&slot, chosen) {
                self.write_down_fired(topic, &slot.name.0)?;
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
                schedule: slot.as_ref().map(|slot| &*slot.name.0),
                due,
                chosen,
                is_copy: envelope.copy,
                problem,
                content: &written,
            })?;
            self.expect(topic, due);
            return Ok(Sent { due: Some(due), duplicate: false });
        }
        if let (Some(Slot { name, .. }), Some(chosen)) = (&slot, chosen) {
            self.forget_rows(topic, &name.0)?;
            self.remember(topic, &name.0, Known::new(Some(chosen.content), None))?;
        }
        self.deliver_new(target, chosen, problem, &written)?;
        Ok(Sent { due: None, duplicate: false })
    }

    /// Records that an envelope is about to be sent to another broker. `content` is its
    /// [`content`].
    pub(crate) fn begin_send(&mut self, envelope: &Envelope, content: u128) -> Result<Sent, Halt> {
        let topic = self.target(&envelope.to)?.topic();
        let slot = self.slot(topic, ScheduleId::of(envelope))?;
        if envelope.once == Some(OnConflict::Fail)
            && let Some(sent) = self.sent_before(topic, &slot, envelope, content)?
        {
            return Ok(sent);
        }
        self.forget_rows(topic, &slot.name.0)?;
        let known = Known { is_sending: true, ..Known::new(Some(content), None) };
        self.remember(topic, &slot.name.0, known)?;
        Ok(Sent::default())
    }

    /// Records the result of such a send.
    pub(crate) fn end_send(
        &mut self,
        envelope: &Envelope,
        content: u128,
        sent: Option<Sent>,
    ) -> Result<(), Halt> {
        let (topic, name) = (self.target(&envelope.to)?.topic(), ScheduleId::of(envelope));
        match sent {
            Some(sent) => self.remember(topic, &name.0, Known::new(Some(content), sent.due))?,
            None => self.forget_sending(topic, &name.0, content)?,
        }
        Ok(())
    }

    /// Returns the slot of this name. Its current entry, if any, is replaced.
    fn slot(&self, topic: i64, name: ScheduleId) -> Sql<Slot> {
        Ok(Slot { replaces: self.waiting(topic, &name)?, name })
    }

    /// Returns the slot for a copy or a moved message. An earlier copy of the same name and content
    /// is replaced, because it is the same message, stored by an earlier attempt of the same
    /// settlement. Every other entry stays.
    pub(crate) fn slot_of_copy(&mut self, topic: i64, envelope: &Envelope) -> Sql<Slot> {
        let own = self.slot(topic, ScheduleId::of(envelope))?;
        if own.replaces.is_none() || self.is_earlier_copy(&own, &envelope.message)? {
            return Ok(own);
        }
        let content = envelope.message.content_hash(envelope.to.topic_name());
        let beside = self.slot(topic, format!("{}&{content:032x}", own.name).into())?;
        if beside.replaces.is_none() || self.is_earlier_copy(&beside, &envelope.message)? {
            return Ok(beside);
        }
        self.free_slot(topic, envelope)
    }

    fn is_earlier_copy(&self, slot: &Slot, message: &Message) -> Sql<bool> {
        let Some(entry) = &slot.replaces else { return Ok(false) };
        let is_copy: bool = self
            .sql("SELECT once IS ?2 FROM message WHERE number = ?1")?
            .query_row((entry.number, COPY), |row| row.get(0))?;
        Ok(is_copy && self.has_content(entry, message)?)
    }

    /// Returns a slot without an entry.
    fn free_slot(&mut self, topic: i64, envelope: &Envelope) -> Sql<Slot> {
        let mut slot = self.slot(topic, ScheduleId::of(envelope))?;
        while slot.replaces.is_some() {
            let number = self.next();
            slot = self.slot(topic, format!("{}&{number}", ScheduleId::of(envelope)).into())?;
        }
        Ok(slot)
    }

    /// Returns the message id if `name` is that of a plain publish to this topic. Such an entry has
    /// no `schedule`.
    pub(crate) fn published<'a>(&self, topic: i64, name: &'a str) -> Option<&'a str> {
        ScheduleId::published(name, &self.places().topics[&topic].name)
    }

    /// Returns the entry of this name.
    fn waiting(&self, topic: i64, name: &ScheduleId) -> Sql<Option<Held>> {
        self.sql(concat!(
            "SELECT ",
            held!(),
            " FROM message INDEXED BY message_id WHERE id = ?1 AND topic = ?2 AND phase = 0 AND schedule IS NULL
             UNION ALL SELECT ",
            held!(),
            " FROM message INDEXED BY message_schedule WHERE schedule = ?3 AND topic = ?2 LIMIT 1"
        ))?
        .query_row((self.published(topic, &name.0), topic, &*name.0), Held::read)
        .optional()
    }

    fn has_content(&self, held: &Held, message: &Message) -> Sql<bool> {
        let of = self
            .sql(concat!("SELECT ", message!(), " FROM message WHERE number = ?1"))?
            .query_row([held.number], |row| read_message(row, 0))?;
        Ok(is_same_content(&of, message))
    }

    /// Checks that a body of this size is allowed.
    pub(crate) fn check_size(&self, of: impl Display, size: usize) -> Result<(), Halt> {
        let most = self.settings.max_body;
        if size <= most {
            return Ok(());
        }
        Err(refused(
            ErrorKind::TooLarge,
            format!(
                "the body of {of} has {size} bytes, but `{}` accepts at most {most}: send a smaller body, or raise `max_body`",
                self.file_name()
            ),
        ))
    }

    /// Checks for an earlier send under the same id. Returns the result of that send, or a
    /// conflict.
    fn sent_before(
        &self,
        topic: i64,
        slot: &Slot,
        envelope: &Envelope,
        content: u128,
    ) -> Result<Option<Sent>, Halt> {
        let (is_same, due): (bool, Option<Timestamp>) = if let Some(first) = &slot.replaces {
            (self.has_content(first, &envelope.message)?, Some(first.due))
        } else if let Some(Known { content: Some(first), due, is_sending }) =
            self.known(topic, &slot.name.0)?
        {
            if is_sending && first == content {
                return Ok(None);
            }
            (first == content, due)
        } else {
            return Ok(None);
        };
        if is_same {
            return Ok(Some(Sent { due, duplicate: true }));
        }
        Err(refused(
            ErrorKind::Conflict,
            format!(
                "`{}` was already sent to `{}` with other content: use another id, or send with `OnConflict::Replace`",
                envelope.message.id,
                wire::final_destination(envelope)
            ),
        ))
    }

    /// Makes a new message ready, for one subscription or for all subscriptions of its topic.
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
            is_copy: false,
            problem,
            content,
        };
        if places.is_empty() {
            self.unclaimed(topic);
            if !self.record_retention(topic).is_zero() {
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

    /// Returns the number of rows that a message finally has.
    pub(crate) fn copies(&self, target: Target) -> usize {
        match target {
            Target::Queue(..) => 1,
            Target::Topic(topic) => self.places().topics[&topic].subscribed.len().max(1),
        }
    }

    /// Returns the destinations of a due message: one subscription, all subscriptions of the topic,
    /// the subscription that keeps messages without a subscriber, or none.
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
