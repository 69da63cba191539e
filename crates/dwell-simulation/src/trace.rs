//! Everything that happened in a world, in order: the input of the checker, and the output for
//! people when it finds a violation.

use crate::life::Who;
use dwell_core::{
    Address, Attempts, Changed, Due, ErrorKind, LeaseId, Message, MessageId, OnConflict, ScheduleId,
    Timestamp,
};
use std::{fmt, time::Duration};

/// One message as its sender meant it. An id may be sent again with other content, which is another
/// generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The message id.
    pub id: MessageId,
    /// Number of the content that was sent under this id.
    pub generation: u32,
}

impl Subject {
    /// Returns the subject of a message, whose body contains its generation.
    pub fn of(message: &Message) -> Self {
        let body = std::str::from_utf8(&message.body).unwrap_or_default();
        let number = body.strip_prefix('g').and_then(|rest| rest.trim_end_matches('!').parse().ok());
        Self { id: message.id.clone(), generation: number.unwrap_or(u32::MAX) }
    }

    /// Returns the body for this generation.
    pub fn body(generation: u32) -> String {
        format!("g{generation}")
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/g{}", self.id, self.generation)
    }
}

/// The broker itself, or the store in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// The broker that feeds the handlers.
    Target,
    /// The store for pending messages that the broker cannot hold.
    Store,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Target => "broker",
            Self::Store => "store",
        })
    }
}

/// Kind of injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The call returned an error and had no effect.
    Refused,
    /// Some items of a batch were refused, the others were not.
    PartlyRefused,
    /// The call took effect but returned an error.
    Unconfirmed,
    /// The call took effect, but its result omits some items.
    ShortAnswer,
    /// The call never arrived; it returned an error after a long time.
    LostRequest,
    /// Delivered messages never arrived.
    LostDelivery,
    /// The call does not return until the process ends.
    Hung,
    /// The call takes so long that leases may expire.
    Slow,
    /// The call arrives late, even if its caller is gone by then.
    Detached,
    /// A process ends between two steps.
    Crash,
    /// A process pauses.
    Pause,
    /// A broker or store is unavailable for a time.
    Outage,
    /// The wall clock jumps.
    ClockStep,
    /// The broker declares a live process dead.
    DroppedSession,
}

impl Fault {
    /// All kinds of faults.
    pub const ALL: [Self; 14] = [
        Self::Refused,
        Self::PartlyRefused,
        Self::Unconfirmed,
        Self::ShortAnswer,
        Self::LostRequest,
        Self::LostDelivery,
        Self::Hung,
        Self::Slow,
        Self::Detached,
        Self::Crash,
        Self::Pause,
        Self::Outage,
        Self::ClockStep,
        Self::DroppedSession,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "refused",
            Self::PartlyRefused => "partly refused",
            Self::Unconfirmed => "unconfirmed",
            Self::ShortAnswer => "short answer",
            Self::LostRequest => "lost request",
            Self::LostDelivery => "lost delivery",
            Self::Hung => "hung",
            Self::Slow => "slow",
            Self::Detached => "detached",
            Self::Crash => "crash",
            Self::Pause => "pause",
            Self::Outage => "outage",
            Self::ClockStep => "clock step",
            Self::DroppedSession => "dropped session",
        })
    }
}

/// Message affected by a fault, in one subscription or at any destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The message.
    pub subject: Subject,
    /// Its destination.
    pub to: Address,
}

/// An accepted message.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The service that accepted it.
    pub service: Service,
    /// The process that placed it.
    pub who: Option<Who>,
    /// The request of the workload that placed it, if any.
    pub request: Option<usize>,
    /// The message.
    pub subject: Subject,
    /// The topic that stores it.
    pub topic: dwell_core::Text,
    /// Its final destination.
    pub to: Address,
    /// Its counts.
    pub attempts: Attempts,
    /// Its due time.
    pub due: Due,
    /// Its name while it is pending.
    pub schedule: ScheduleId,
    /// Hash of its content: the same id may have been sent with other content.
    pub content: u128,
    /// Treatment of a known id.
    pub once: Option<OnConflict>,
    /// Set if no message was placed, because it already existed.
    pub duplicate: bool,
    /// Set if it was moved from another place in one step.
    pub moved: bool,
    /// Stamps of a dead letter.
    pub dead: Option<Stamps>,
}

/// Stamps on a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// The subscription that gave it up, and the reason; `None` if the stamps do not contain them.
    pub from: Option<(Address, String)>,
    /// Names of missing stamps.
    pub missing: Vec<&'static str>,
}

/// A message delivered to a process.
#[derive(Clone, Debug)]
pub struct Received {
    /// The service that delivered it.
    pub service: Service,
    /// The process that received it.
    pub who: Who,
    /// The consumer of the process.
    pub consumer: u64,
    /// The subscription of the consumer.
    pub subscription: Address,
    /// Its final destination.
    pub to: Address,
    /// The message.
    pub subject: Subject,
    /// Its counts.
    pub attempts: Attempts,
    /// Its lease.
    pub lease: LeaseId,
    /// Number of its deliveries so far.
    pub deliveries: Option<u32>,
}

/// The store's answer to somebody who is about to send a message with a chosen id.
#[derive(Clone, Debug)]
pub struct SendBegun {
    /// The request of the workload.
    pub request: Option<usize>,
    /// The message.
    pub subject: Subject,
    /// Where it goes.
    pub to: Address,
    /// It was sent before, and is not to be sent again.
    pub duplicate: bool,
}

/// A message left a process's hands, in the broker's eyes.
#[derive(Clone, Debug)]
pub struct Settled {
    /// The service.
    pub service: Service,
    /// The process that held the lease.
    pub who: Who,
    /// The subscription.
    pub subscription: Address,
    /// The message.
    pub subject: Subject,
    /// The lease of the settled delivery.
    pub lease: LeaseId,
    /// Number of its deliveries so far.
    pub deliveries: Option<u32>,
    /// The settlement.
    pub how: How,
}

/// Kind of settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Acknowledged.
    Ack,
    /// Released.
    Release,
    /// Moved elsewhere.
    Move,
}

/// Start of a handler.
#[derive(Clone, Debug)]
pub struct Run {
    /// Number of the run.
    pub run: usize,
    /// The process that runs it.
    pub who: Who,
    /// The subscription.
    pub subscription: Address,
    /// The message.
    pub subject: Subject,
    /// Its counts.
    pub attempts: Attempts,
    /// The lease of its delivery.
    pub lease: LeaseId,
    /// Number of its deliveries so far.
    pub deliveries: Option<u32>,
    /// The part of the message that differs from what was sent, if any.
    pub altered: Option<&'static str>,
}

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The message was handled.
    Handled,
    /// The message was deferred, to a given due time or by the subscription's default.
    Deferred(Option<Due>),
    /// The handler failed.
    Failed,
    /// The handler timed out.
    TimedOut,
    /// The message was released.
    Released,
    /// The message was rejected.
    Rejected,
    /// The message was unreadable.
    Invalid,
    /// The type was unknown.
    Unknown,
    /// The pipeline cannot work.
    Misconfigured,
    /// The run was dropped.
    Interrupted,
}

/// Request of the workload.
#[derive(Clone, Debug)]
pub enum Request {
    /// A send.
    Send {
        /// The message.
        subject: Subject,
        /// Its destination.
        to: Address,
        /// Its due time.
        due: Due,
        /// Treatment of a known id.
        once: Option<OnConflict>,
    },
    /// Cancels the pending entries of this id.
    Cancel(MessageId),
    /// Changes the due time of the pending entries of this id.
    Reschedule(MessageId, Due),
    /// Replays some dead letters of this topic.
    Replay(dwell_core::Text),
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The send is confirmed; the value is whether it is a duplicate.
    Sent(bool),
    /// Result of a change.
    Changed(Changed),
    /// Number of dead letters replayed.
    Replayed(usize),
    /// An error.
    Failed(ErrorKind),
}

/// Stage of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The process starts.
    Started,
    /// Its engine is built and its pumps are started.
    Ready,
    /// It ends between two steps.
    Crashed,
    /// It pauses.
    Paused,
    /// It resumes.
    Resumed,
    /// It was asked to stop in order.
    Stopping,
    /// It has stopped in order.
    Stopped,
}

/// An event.
#[derive(Clone, Debug)]
pub enum Event {
    /// Description of the world.
    Note(String),
    /// A change of a process.
    Life(Who, Stage),
    /// A change of the broker's wall clock, in milliseconds.
    Step(i64),
    /// An injected fault.
    Fault {
        /// Kind of fault.
        fault: Fault,
        /// The process whose call it affects.
        who: Option<Who>,
        /// The affected call.
        call: &'static str,
        /// Messages that may be redelivered because of it.
        touched: Vec<Touched>,
    },
    /// Start or end of a period in which a process cannot renew its leases of this subscription.
    Impaired(Who, Address, bool),
    /// The members of a group changed, and with them the readers of its partitions.
    Membership(Address),
    /// A request of the workload: its number, and the number of the item in it.
    Asked(usize, usize, Who, Request),
    /// The result of a request.
    Answered(usize, usize, Answer),
    /// An accepted message.
    Placed(Box<Placed>),
    /// A copy that was confirmed to the process that made it.
    Confirmed {
        /// The process that made it.
        who: Who,
        /// The message.
        subject: Subject,
        /// Its destination.
        to: Address,
        /// Its handled count.
        handled: u32,
        /// Whether it was a request of the workload.
        asked: bool,
    },
    /// A delivery.
    Received(Box<Received>),
    /// The end of a delivery.
    Settled(Box<Settled>),
    /// A consumer was closed, and the broker released its messages.
    GaveBack(Who, u64, Address),
    /// A consumer was dropped without being closed: its messages return when their leases have
    /// expired.
    Dropped(Who, u64, Address),
    /// A store recorded that a message with a chosen id is about to be sent, or answered that it
    /// was sent before.
    SendBegun(SendBegun),
    /// A store recorded how such a send ended: whether the broker took the message.
    SendEnded(Subject, Address, bool),
    /// A cancel of the pending entries of this message in this service.
    Cancelled(Service, MessageId, Changed),
    /// A reschedule of the pending entries of this message in this service.
    Rescheduled(Service, MessageId, Due, Changed),
    /// Start of a handler.
    Run(Box<Run>),
    /// End of a handler.
    Ended(usize, Ending),
}

/// An event with its time.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Monotonic time since the start of the world.
    pub at: Duration,
    /// The broker's wall clock.
    pub wall: Timestamp,
    /// The event.
    pub event: Event,
}

impl Event {
    /// Returns whether the event concerns this message, or all messages.
    pub fn concerns(&self, id: &MessageId) -> bool {
        match self {
            Self::Note(_) | Self::Life(..) | Self::Step(_) | Self::Impaired(..) | Self::Membership(_) => true,
            Self::GaveBack(..) | Self::Dropped(..) | Self::Answered(..) | Self::Ended(..) => false,
            Self::Fault { touched, .. } => {
                touched.is_empty() || touched.iter().any(|touched| touched.subject.id == *id)
            }
            Self::Asked(_, _, _, request) => match request {
                Request::Send { subject, .. } => subject.id == *id,
                Request::Cancel(of) | Request::Reschedule(of, _) => of == id,
                Request::Replay(_) => true,
            },
            Self::Placed(placed) => placed.subject.id == *id,
            Self::Confirmed { subject, .. } => subject.id == *id,
            Self::Received(received) => received.subject.id == *id,
            Self::Settled(settled) => settled.subject.id == *id,
            Self::SendBegun(begun) => begun.subject.id == *id,
            Self::SendEnded(subject, ..) => subject.id == *id,
            Self::Cancelled(_, of, _) | Self::Rescheduled(_, of, ..) => of == id,
            Self::Run(run) => run.subject.id == *id,
        }
    }
}

/// Returns the entries of a trace that concern one message.
pub fn of_message<'a>(trace: &'a [Entry], id: &'a MessageId) -> impl Iterator<Item = &'a Entry> {
    let runs: Vec<usize> = trace.iter().filter_map(|entry| run_of(&entry.event, id)).collect();
    let requests: Vec<(usize, usize)> =
        trace.iter().filter_map(|entry| request_of(&entry.event, id)).collect();
    trace.iter().filter(move |entry| match &entry.event {
        Event::Ended(run, _) => runs.contains(run),
        Event::Answered(number, item, _) => requests.contains(&(*number, *item)),
        event => event.concerns(id),
    })
}

fn run_of(event: &Event, id: &MessageId) -> Option<usize> {
    match event {
        Event::Run(run) if run.subject.id == *id => Some(run.run),
        _ => None,
    }
}

fn request_of(event: &Event, id: &MessageId) -> Option<(usize, usize)> {
    match event {
        Event::Asked(number, item, ..) if event.concerns(id) => Some((*number, *item)),
        _ => None,
    }
}
