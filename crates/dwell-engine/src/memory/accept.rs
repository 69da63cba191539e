//! Acceptance of sends and copies. All checks come before the first change, so a refused message
//! changes nothing.

use super::{
    hashed::HashedId,
    ids::Known,
    item::new_item,
    state::{QueueAt, State, Target, TopicAt},
    waiting::Chosen,
};
use crate::planted::{Bug, planted};
use dwell_core::{
    Envelope, Error, ErrorKind, Message, Moment, OnConflict, Result, ScheduleId, Sent, Unclaimed, wheel::Key,
    wire,
};
use std::borrow::Cow;

/// The entry for a pending envelope.
pub(super) struct Slot {
    /// Name of the entry.
    pub(super) id: HashedId,
    /// Existing entry with this name.
    pub(super) replaces: Option<Key>,
}

/// Returns the content hash of a user's send with a chosen id. It reads the whole body, so call it
/// without the lock.
pub(super) fn content(envelope: &Envelope) -> Option<u128> {
    envelope.once.map(|_| envelope.message.content_hash(envelope.to.topic_name()))
}

impl State {
    /// Accepts one envelope. `content` is its [`content`].
    pub(super) fn accept(
        &mut self,
        envelope: Cow<'_, Envelope>,
        content: Option<u128>,
        now: Moment,
    ) -> Result<Sent> {
        self.done += 1;
        let target = self.target(&envelope.to)?;
        self.check_size(&envelope.message)?;
        let topic = target.topic();
        let (due, now) = (envelope.due.resolve(now), now.floor());
        let waits = due > now;
        let chosen = envelope.once.zip(content).map(|(on_conflict, content)| Chosen { on_conflict, content });
        let slot = match chosen {
            None if !waits => None,
            None if envelope.copy => Some(self.slot_of_copy(topic, &envelope)),
            None if !planted(Bug::PlainSendReplaces) => Some(self.free_slot(topic, &envelope)),
            None | Some(_) => Some(self.slot(topic, ScheduleId::of(&envelope))),
        };
        if let (Some(Slot { id, .. }), Some(Chosen { on_conflict: OnConflict::Fail, content })) =
            (&slot, chosen)
            && let Some(sent) = self.sent_before(topic, id, &envelope, content)?
        {
            return Ok(sent);
        }
        let replaced = slot.as_ref().and_then(|slot| slot.replaces);
        self.check_room(target, waits, replaced, envelope.copy)?;

        if let Some(key) = replaced.filter(|_| !planted(Bug::ReplacedStillFires)) {
            self.unhold(topic, key);
        }
        let is_copy = envelope.copy;
        let message = match envelope {
            Cow::Owned(envelope) => envelope.message,
            Cow::Borrowed(envelope) => envelope.message.clone(),
        };
        let mut item = new_item(message, self.next(), due.max(now), now);
        item.spare = (!waits).then(|| item.message.clone());
        match (slot, chosen) {
            (Some(slot), chosen) if waits => self.hold(target, item, slot.id, chosen, is_copy),
            (Some(slot), Some(chosen)) => {
                let known = Known::new(Some(chosen.content), None);
                self.remember(topic, &item.message.id, slot.id, known);
                self.deliver(target, item, now);
            }
            _ => self.deliver(target, item, now),
        }
        Ok(Sent { due: waits.then_some(due), duplicate: false })
    }

    /// Records that an envelope is about to be sent to another broker. `content` is its
    /// [`content`].
    pub(super) fn begin_send(&mut self, envelope: &Envelope, content: u128) -> Result<Sent> {
        let topic = self.target(&envelope.to)?.topic();
        let Slot { id, .. } = self.slot(topic, ScheduleId::of(envelope));
        if envelope.once == Some(OnConflict::Fail)
            && let Some(sent) = self.sent_before(topic, &id, envelope, content)?
        {
            return Ok(sent);
        }
        self.begin(topic, &envelope.message.id, id, content);
        Ok(Sent::default())
    }

    /// Records the result of such a send.
    pub(super) fn end_send(&mut self, envelope: &Envelope, content: u128, sent: Option<Sent>) -> Result<()> {
        let topic = self.target(&envelope.to)?.topic();
        let Slot { id, .. } = self.slot(topic, ScheduleId::of(envelope));
        match sent {
            Some(sent) => {
                let known = Known::new(Some(content), sent.due);
                self.remember(topic, &envelope.message.id, id, known);
            }
            None => self.forget_sending(topic, &envelope.message.id, id, content),
        }
        Ok(())
    }

    /// Returns the slot with this name. An existing entry is replaced.
    fn slot(&self, topic: TopicAt, name: ScheduleId) -> Slot {
        let id = self.hasher.of(&name.0);
        Slot { replaces: self.topics[topic.0].waiting.find(&id), id }
    }

    /// Returns the slot for a copy or a moved message. An earlier copy with the same name and
    /// content is replaced, because it is the same message: the settlement that made it is
    /// repeated. Every other entry stays.
    pub(super) fn slot_of_copy(&mut self, topic: TopicAt, envelope: &Envelope) -> Slot {
        let own = self.slot(topic, ScheduleId::of(envelope));
        if own.replaces.is_none() || self.is_earlier_copy(topic, &own, &envelope.message) {
            return own;
        }
        let content = envelope.message.content_hash(envelope.to.topic_name());
        let beside = self.slot(topic, format!("{}&{content:032x}", own.id.id).into());
        if beside.replaces.is_none() || self.is_earlier_copy(topic, &beside, &envelope.message) {
            return beside;
        }
        self.free_slot(topic, envelope)
    }

    fn is_earlier_copy(&self, topic: TopicAt, slot: &Slot, message: &Message) -> bool {
        let entry = slot.replaces.and_then(|key| self.topics[topic.0].waiting.get(key));
        entry.is_some_and(|(_, entry)| entry.is_copy && is_same_content(&entry.item.message, message))
    }

    /// Returns a slot without an existing entry.
    fn free_slot(&mut self, topic: TopicAt, envelope: &Envelope) -> Slot {
        let mut slot = self.slot(topic, ScheduleId::of(envelope));
        while slot.replaces.is_some() {
            let number = self.next();
            slot = self.slot(topic, format!("{}&{number}", ScheduleId::of(envelope)).into());
        }
        slot
    }

    pub(super) fn check_size(&self, message: &Message) -> Result<()> {
        let (size, most) = (message.body.len(), self.settings.max_body);
        if size <= most {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "the body of `{}` has {size} bytes, but the maximum of this memory transport is {most}: \
                     send a smaller body, or increase `max_body`",
                message.id
            ),
        ))
    }

    /// Returns the result of the first send if the id is known with the same content, or a
    /// `Conflict` if it is known with other content. `None` if the id is not known.
    fn sent_before(
        &self,
        topic: TopicAt,
        id: &HashedId,
        envelope: &Envelope,
        content: u128,
    ) -> Result<Option<Sent>> {
        let (of, message) = (&self.topics[topic.0], &envelope.message);
        let waiting = of.waiting.find(id).and_then(|key| of.waiting.get(key));
        let (is_same, due) = if let Some((due, first)) = waiting {
            (is_same_content(&first.item.message, message), Some(due))
        } else if let Some(Known { content: Some(first), due, sending }) = self.ids.get(topic, id) {
            if sending > 0 && first == content && !planted(Bug::SendingTakenForSent) {
                return Ok(None);
            }
            (first == content, due)
        } else {
            return Ok(None);
        };
        if is_same {
            return Ok(Some(Sent { due, duplicate: true }));
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "`{}` was sent to `{}` before with other content: choose another id, or send with `Replace`",
                message.id,
                wire::final_destination(envelope)
            ),
        ))
    }

    /// Checks that all queues for the message have room. A replaced entry frees its place.
    fn check_room(&self, target: Target, waits: bool, replaced: Option<Key>, is_copy: bool) -> Result<()> {
        let of = &self.topics[target.topic().0];
        let most = self.settings.capacity;
        let replaced = replaced
            .and_then(|key| of.waiting.get(key))
            .map(|(_, waiting)| waiting.queue.map(|queue| self.adopter(queue)));
        let check = |queue: QueueAt| {
            let held = self.queues[queue.0].len() - usize::from(replaced == Some(Some(queue)));
            if held < most || is_copy {
                return Ok(());
            }
            let name = &self.queues[queue.0].name;
            Err(full(format!("the subscription `{}/{name}` holds {held} messages", of.name)))
        };
        match target {
            Target::Queue(_, queue) => check(queue),
            Target::Topic(_) if waits => {
                let held = of.publishes.total() - usize::from(replaced == Some(None));
                if held < most || is_copy {
                    return Ok(());
                }
                Err(full(format!("the topic `{}` holds {held} pending publishes", of.name)))
            }
            Target::Topic(_) if of.subscribed.is_empty() => match of.kept {
                Some(kept) if of.unclaimed == Unclaimed::Keep => check(kept),
                _ => Ok(()),
            },
            Target::Topic(_) => of.subscribed.iter().try_for_each(|queue| check(*queue)),
        }
    }
}

fn full(what: String) -> Error {
    let remedy = "the maximum of `capacity`: retry once its consumers have caught up, or increase it";
    Error::new(ErrorKind::Full, format!("{what}, {remedy}"))
}

/// Whether two messages in one topic have the same content, as in [`Message::content_hash`].
pub(super) fn is_same_content(a: &Message, b: &Message) -> bool {
    (&a.kind, &a.key, &a.content_type, &a.body) == (&b.kind, &b.key, &b.content_type, &b.body)
}
