//! Taking in what users and copies send: every check comes before the first change, so that what is refused has changed
//! nothing.

use super::{
    hashed::HashedId,
    ids::Known,
    item::new_item,
    state::{QueueAt, State, Target, TopicAt},
    waiting::Chosen,
};
use crate::planted::{Bug, planted};
use dwell_core::{
    Envelope, Error, ErrorKind, Message, OnConflict, Result, ScheduleId, Sent, Timestamp, Unclaimed,
    wheel::Key,
};
use std::borrow::Cow;

/// The hash of what a user sends under an id of the user's own. It reads the whole body, so not under the lock.
pub(super) fn content(envelope: &Envelope) -> Option<u128> {
    envelope.once.map(|_| envelope.message.content_hash(envelope.to.topic_name()))
}

impl State {
    /// Takes in one envelope; `content` is its [`content`].
    pub(super) fn accept(
        &mut self,
        envelope: Cow<'_, Envelope>,
        content: Option<u128>,
        now: Timestamp,
    ) -> Result<Sent> {
        self.done += 1;
        let target = self.target(&envelope.to)?;
        self.check_size(&envelope.message)?;
        let topic = target.topic();
        let due = envelope.due.resolve(now);
        let waits = due > now;
        let chosen = envelope.once.zip(content).map(|(on_conflict, content)| Chosen { on_conflict, content });
        let id = (waits || chosen.is_some()).then(|| match chosen {
            None => self.name_of_copy(topic, &envelope),
            Some(_) => self.hasher.of(&ScheduleId::of(&envelope).0),
        });
        let waiting = id.as_ref().and_then(|id| self.topics[topic.0].waiting.find(id));
        if let (Some(id), Some(Chosen { on_conflict: OnConflict::Fail, content })) = (&id, chosen)
            && let Some(sent) = self.sent_before(topic, id, &envelope.message, content)?
        {
            return Ok(sent);
        }
        self.check_room(target, waits, waiting, envelope.copy)?;

        if let Some(key) = waiting.filter(|_| !planted(Bug::ReplacedStillFires)) {
            self.unhold(topic, key);
        }
        let message = match envelope {
            Cow::Owned(envelope) => envelope.message,
            Cow::Borrowed(envelope) => envelope.message.clone(),
        };
        let mut item = new_item(message, self.next(), due.max(now), now);
        item.spare = (!waits).then(|| item.message.clone());
        match (id, chosen) {
            (Some(id), chosen) if waits => self.hold(target, item, id, chosen),
            (Some(id), Some(chosen)) => {
                self.ids.remember(topic, id, Known { content: Some(chosen.content), due: None });
                self.deliver(target, item, now);
            }
            _ => self.deliver(target, item, now),
        }
        Ok(Sent { due: waits.then_some(due), duplicate: false })
    }

    /// The name under which a copy waits: its own, so that storing it again replaces it. Where an id was sent again with
    /// other content after the first had fired, both messages are on their way under one id, and a copy of one must not
    /// take the place of the other: then it waits beside it.
    pub(super) fn name_of_copy(&self, topic: TopicAt, envelope: &Envelope) -> HashedId {
        let id = self.hasher.of(&ScheduleId::of(envelope).0);
        let waiting = &self.topics[topic.0].waiting;
        let other = waiting
            .find(&id)
            .and_then(|key| waiting.get(key))
            .filter(|(_, other)| !is_same_content(&other.item.message, &envelope.message));
        if other.is_none() {
            return id;
        }
        let content = envelope.message.content_hash(envelope.to.topic_name());
        self.hasher.of(&format!("{}&{content:032x}", id.id).into())
    }

    pub(super) fn check_size(&self, message: &Message) -> Result<()> {
        let (size, most) = (message.body.len(), self.settings.max_body);
        if size <= most {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "the body of `{}` has {size} bytes, and this memory transport takes at most {most}: \
                 send less, or raise `max_body`",
                message.id
            ),
        ))
    }

    /// Whether this is a second send under an id that is known: what became of the first, or a conflict.
    fn sent_before(
        &self,
        topic: TopicAt,
        id: &HashedId,
        message: &Message,
        content: u128,
    ) -> Result<Option<Sent>> {
        let of = &self.topics[topic.0];
        let waiting = of.waiting.find(id).and_then(|key| of.waiting.get(key));
        let (is_same, due) = if let Some((due, first)) = waiting {
            (is_same_content(&first.item.message, message), Some(due))
        } else if let Some(Known { content: Some(first), due }) = self.ids.get(topic, id) {
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
                "`{}` was sent to `{}` before, with other content: choose another id, or ask to replace it",
                message.id, of.name
            ),
        ))
    }

    /// Whether all that would hold the message have room for it. What it replaces makes room.
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
                Err(full(format!("{held} publishes wait in the topic `{}`", of.name)))
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
    let remedy = "as many as `capacity` allows: try again once its consumers have caught up, or raise it";
    Error::new(ErrorKind::Full, format!("{what}, {remedy}"))
}

/// The same content as [`Message::content_hash`] sees, in one topic.
pub(super) fn is_same_content(a: &Message, b: &Message) -> bool {
    (&a.kind, &a.key, &a.content_type, &a.body) == (&b.kind, &b.key, &b.content_type, &b.body)
}
