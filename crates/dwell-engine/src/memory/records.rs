//! Records of stored messages, for the ledger.

use super::{
    finished::Entry,
    item::Item,
    leases::Lease,
    state::{QueueAt, State, TopicAt},
    waiting::Waiting,
};
use bytes::Bytes;
use dwell_core::{Record, ScheduleId, State as MessageState, Text, Timestamp, Transition};
use std::time::Duration;

/// Place of a stored message.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Waiting(Timestamp, &'a Waiting),
    Ready(&'a Item),
    Leased(&'a Lease),
}

/// A stored message, before it is converted to a record.
#[derive(Clone, Copy)]
pub(super) struct Held<'a> {
    pub(super) topic: TopicAt,
    /// `None` for a pending publish.
    pub(super) queue: Option<QueueAt>,
    pub(super) place: Place<'a>,
}

impl<'a> Held<'a> {
    pub(super) fn item(&self) -> &'a Item {
        match self.place {
            Place::Waiting(_, waiting) => &waiting.item,
            Place::Ready(item) => item,
            Place::Leased(lease) => &lease.item,
        }
    }

    /// Returns who rescheduled the message last.
    pub(super) fn rescheduled_by(&self) -> Option<&'a Text> {
        match self.place {
            Place::Waiting(_, waiting) => waiting.rescheduled_by.as_deref(),
            Place::Ready(_) | Place::Leased(_) => None,
        }
    }

    pub(super) fn due(&self) -> Timestamp {
        match self.place {
            Place::Waiting(due, _) => due,
            Place::Ready(item) => item.due,
            Place::Leased(lease) => lease.item.due,
        }
    }
}

/// How a message was finished.
pub(super) struct Ending {
    pub(super) state: MessageState,
    pub(super) at: Timestamp,
    pub(super) by: Option<Text>,
    pub(super) error: Option<Text>,
    pub(super) result: Option<Bytes>,
}

impl Ending {
    pub(super) fn new(state: MessageState, at: Timestamp) -> Self {
        Self { state, at, by: None, error: None, result: None }
    }
}

impl State {
    /// Iterates over all stored messages, in no particular order.
    pub(super) fn held(&self) -> impl Iterator<Item = Held<'_>> {
        let waiting = self.topics.iter().enumerate().flat_map(move |(index, topic)| {
            topic.waiting.iter().map(move |(due, waiting)| self.waiting(TopicAt(index), due, waiting))
        });
        waiting.chain(self.held_by_queues())
    }

    /// Iterates over all ready and leased messages, in no particular order.
    pub(super) fn held_by_queues(&self) -> impl Iterator<Item = Held<'_>> {
        self.queues.iter().enumerate().flat_map(|(index, queue)| {
            let ready = queue.iter_ready().map(Place::Ready);
            let places = ready.chain(queue.leases.iter().map(Place::Leased));
            places.map(move |place| Held { topic: queue.topic, queue: Some(QueueAt(index)), place })
        })
    }

    pub(super) fn waiting<'a>(&self, topic: TopicAt, due: Timestamp, waiting: &'a Waiting) -> Held<'a> {
        let queue = waiting.queue.map(|queue| self.adopter(queue));
        Held { topic, queue, place: Place::Waiting(due, waiting) }
    }

    pub(super) fn state_of(&self, held: &Held<'_>) -> MessageState {
        match held.place {
            _ if self.topics[held.topic.0].is_dead => MessageState::Dead,
            Place::Waiting(_, waiting) => waiting.state,
            Place::Ready(_) => MessageState::Ready,
            Place::Leased(_) => MessageState::Processing,
        }
    }

    /// Returns the record of a stored message, without its history. `now` and `elapsed` convert the
    /// end of its lease to wall time.
    pub(super) fn record(&self, held: &Held<'_>, now: Timestamp, elapsed: Duration) -> Record {
        let item = held.item();
        let (topic, subscription) = self.home(held.topic, held.queue, &item.message);
        let last_run = item.last_run.as_deref();
        let (worker, lease_until) = match held.place {
            Place::Leased(lease) => {
                let consumer = || format!("{}#{}", self.instance, lease.consumer).into();
                let worker = lease.worker.clone().unwrap_or_else(consumer);
                (Some(worker), Some(now.after(lease.until.saturating_sub(elapsed))))
            }
            _ => (last_run.map(|run| run.worker.clone()), None),
        };
        Record {
            message: item.message.clone(),
            topic,
            subscription,
            state: self.state_of(held),
            due: Some(held.due()),
            created_at: item.created_at,
            updated_at: item.updated_at,
            deliveries: item.deliveries,
            worker,
            lease_until,
            error: last_run.and_then(|run| run.error.clone()),
            result: None,
            history: Vec::new(),
        }
    }

    /// Finishes a message. Keeps its record if the settings request it.
    pub(super) fn finish(&mut self, topic: TopicAt, queue: Option<QueueAt>, item: Item, ending: Ending) {
        let of = &self.topics[topic.0];
        if !of.is_dead && !self.finished.keeps(&of.name, &item.message.headers, ending.state) {
            return self.spent.push(item.message);
        }
        let (topic, subscription) = self.home(topic, queue, &item.message);
        if !self.finished.keeps(&topic, &item.message.headers, ending.state) {
            return;
        }
        // A done message was last changed when it was delivered.
        let is_done = ending.state == MessageState::Done;
        let started = is_done.then_some(item.updated_at);
        let last_run = item.last_run;
        let record = Record {
            topic,
            subscription,
            state: ending.state,
            due: Some(item.due),
            created_at: item.created_at,
            updated_at: ending.at,
            deliveries: item.deliveries,
            worker: ending.by.or_else(|| last_run.as_ref().map(|run| run.worker.clone())),
            lease_until: None,
            error: ending.error.or_else(|| last_run.as_ref().and_then(|run| run.error.clone())),
            result: ending.result,
            history: Vec::new(),
            message: item.message,
        };
        let id = self.hasher.of_message(&record.message.id);
        let started = started.or(last_run.map(|run| run.started));
        if let Some(gone) = self.finished.push(Entry::new(item.serial, id, record, started))
            && let Some(at) = self.names.get(&gone.topic)
        {
            let name = ScheduleId::of_publish(&gone.message.id.0, &gone.topic);
            self.ids.remove(*at, self.hasher.of(&name.0));
        }
    }
}

/// Returns the history in a memory transport: the last run and the current state.
pub(super) fn history(record: &Record, started: Option<Timestamp>) -> Vec<Transition> {
    let run = started.map(|started| Transition {
        at: started,
        state: MessageState::Processing,
        by: record.worker.clone(),
        error: None,
        attempts: record.message.attempts,
    });
    // The last error is kept with the message, but is shown only for the states that it caused.
    let led_to = [MessageState::Retrying, MessageState::Deferred, MessageState::Dead];
    let present = Transition {
        at: record.updated_at,
        state: record.state,
        by: record.worker.clone(),
        error: record.error.clone().filter(|_| led_to.contains(&record.state)),
        attempts: record.message.attempts,
    };
    run.into_iter().chain([present]).collect()
}
