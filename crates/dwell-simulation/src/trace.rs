//! What happened in a world, in order: what the checker reads, and what people read when it found something.

use crate::life::Who;
use dwell_core::{
    Address, Attempts, Changed, Due, ErrorKind, LeaseId, Message, MessageId, OnConflict, ScheduleId,
    Timestamp,
};
use std::{fmt, time::Duration};

/// One message, as its sender meant it: an id may be sent again with other content, which is another generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The message id.
    pub id: MessageId,
    /// Which of the contents that were sent under it.
    pub generation: u32,
}

impl Subject {
    /// What a message is about: its body says its generation.
    pub fn of(message: &Message) -> Self {
        let body = std::str::from_utf8(&message.body).unwrap_or_default();
        let number = body.strip_prefix('g').and_then(|rest| rest.trim_end_matches('!').parse().ok());
        Self { id: message.id.clone(), generation: number.unwrap_or(u32::MAX) }
    }

    /// The body that says so.
    pub fn body(generation: u32) -> String {
        format!("g{generation}")
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/g{}", self.id, self.generation)
    }
}

/// The broker itself, or the store behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// The broker that handlers are fed from.
    Target,
    /// Where messages wait that the broker cannot make wait.
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

/// What can be made to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Answered with an error, and did not happen.
    Refused,
    /// Some items of a batch were refused, the others were not.
    PartlyRefused,
    /// Happened, and was answered with an error.
    Unconfirmed,
    /// Happened, and the answer says nothing about some items.
    ShortAnswer,
    /// Never arrived; answered with an error after a long time.
    LostRequest,
    /// What was handed out never arrived.
    LostDelivery,
    /// No answer until the process is gone.
    Hung,
    /// So slow that leases may run out.
    Slow,
    /// Arrives late, even if the one who asked is gone by then.
    Detached,
    /// A process is gone between two steps.
    Crash,
    /// A process stands still.
    Pause,
    /// A broker or store serves nobody for a time.
    Outage,
    /// The wall clock jumps.
    ClockStep,
    /// The broker takes a living process for dead.
    DroppedSession,
}

impl Fault {
    /// All of them.
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

/// A message that a fault touched: in one subscription, or wherever it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The message.
    pub subject: Subject,
    /// Where it is, or was, going.
    pub to: Address,
}

/// A message was accepted.
#[derive(Clone, Debug)]
pub struct Placed {
    /// By whom.
    pub service: Service,
    /// Who put it there.
    pub who: Option<Who>,
    /// The request of the workload that did, if it was one.
    pub request: Option<usize>,
    /// The message.
    pub subject: Subject,
    /// The topic that holds it.
    pub topic: dwell_core::Text,
    /// Where it goes in the end.
    pub to: Address,
    /// Its counts.
    pub attempts: Attempts,
    /// When it may be handled.
    pub due: Due,
    /// The name that it waits under, if it waits.
    pub schedule: ScheduleId,
    /// What it says, in a number: the same id may have been sent with another.
    pub content: u128,
    /// What a known id means.
    pub once: Option<OnConflict>,
    /// Nothing was placed: it was there before.
    pub duplicate: bool,
    /// It moved from where it was, in one step.
    pub moved: bool,
    /// For what lies in a dead-letter channel: what is wrong with its stamps, if anything.
    pub dead: Option<Stamps>,
}

/// What is written on a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// The subscription that gave it up, and why; `None` if the stamps do not say.
    pub from: Option<(Address, String)>,
    /// What is missing.
    pub missing: Vec<&'static str>,
}

/// A message came into a process's hands.
#[derive(Clone, Debug)]
pub struct Received {
    /// From whom.
    pub service: Service,
    /// Into whose.
    pub who: Who,
    /// Which consumer of theirs.
    pub consumer: u64,
    /// The subscription that it was received for.
    pub subscription: Address,
    /// Where it goes in the end.
    pub to: Address,
    /// The message.
    pub subject: Subject,
    /// Its counts.
    pub attempts: Attempts,
    /// The right to settle it.
    pub lease: LeaseId,
    /// How often it was handed out.
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
    /// Whose broker.
    pub service: Service,
    /// Out of whose hands.
    pub who: Who,
    /// The subscription.
    pub subscription: Address,
    /// The message.
    pub subject: Subject,
    /// Which delivery.
    pub lease: LeaseId,
    /// How often it had been handed out.
    pub deliveries: Option<u32>,
    /// In which way.
    pub how: How,
}

/// The ways to settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Done with.
    Ack,
    /// Put back.
    Release,
    /// Moved elsewhere.
    Move,
}

/// A handler begins.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its number.
    pub run: usize,
    /// Where.
    pub who: Who,
    /// The subscription.
    pub subscription: Address,
    /// The message.
    pub subject: Subject,
    /// Its counts.
    pub attempts: Attempts,
    /// Which delivery.
    pub lease: LeaseId,
    /// How often it was handed out.
    pub deliveries: Option<u32>,
    /// What of the message is not as it was sent, if anything.
    pub altered: Option<&'static str>,
}

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It handled the message.
    Handled,
    /// It asked to be run again: then, or by the subscription's default.
    Deferred(Option<Due>),
    /// It failed.
    Failed,
    /// It failed by taking too long.
    TimedOut,
    /// It gave the message back.
    Released,
    /// It gave the message up.
    Rejected,
    /// It could not read the message.
    Invalid,
    /// It does not know the type.
    Unknown,
    /// Its pipeline cannot work.
    Misconfigured,
    /// It was dropped while it ran.
    Interrupted,
}

/// What the workload asks for.
#[derive(Clone, Debug)]
pub enum Request {
    /// A send.
    Send {
        /// The message.
        subject: Subject,
        /// Where to.
        to: Address,
        /// When.
        due: Due,
        /// What a known id means.
        once: Option<OnConflict>,
    },
    /// All that waits under this id shall never fire.
    Cancel(MessageId),
    /// All that waits under this id is due then.
    Reschedule(MessageId, Due),
    /// Some dead letters of this topic go back.
    Replay(dwell_core::Text),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The send is confirmed; whether it was known before.
    Sent(bool),
    /// A change came to this.
    Changed(Changed),
    /// So many dead letters were sent back.
    Replayed(usize),
    /// An error.
    Failed(ErrorKind),
}

/// What happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It begins.
    Started,
    /// It has built its engine and started its pumps.
    Ready,
    /// It is gone between two steps.
    Crashed,
    /// It stands still.
    Paused,
    /// It goes on.
    Resumed,
    /// It was told to stop in order.
    Stopping,
    /// It has stopped in order.
    Stopped,
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// What the world is like.
    Note(String),
    /// A process.
    Life(Who, Stage),
    /// The wall clock of the broker was set, by so many milliseconds.
    Step(i64),
    /// Something was made to go wrong, in whose call of what.
    Fault {
        /// What.
        fault: Fault,
        /// Whose call.
        who: Option<Who>,
        /// Of what.
        call: &'static str,
        /// Messages that may be delivered again because of it.
        touched: Vec<Touched>,
    },
    /// From now on, or no longer, a process cannot keep what it receives here.
    Impaired(Who, Address, bool),
    /// The members of a group changed, and with them who reads what.
    Membership(Address),
    /// The workload asks: the number of the request, and of the item in it.
    Asked(usize, usize, Who, Request),
    /// And gets an answer.
    Answered(usize, usize, Answer),
    /// A message was accepted.
    Placed(Box<Placed>),
    /// A copy was confirmed to the one who made it.
    Confirmed {
        /// Who made it.
        who: Who,
        /// The message.
        subject: Subject,
        /// Where it goes.
        to: Address,
        /// Its handled count.
        handled: u32,
        /// Whether it was the workload's own.
        asked: bool,
    },
    /// A delivery.
    Received(Box<Received>),
    /// The end of a delivery.
    Settled(Box<Settled>),
    /// A consumer left, and the broker took back what it held.
    GaveBack(Who, u64, Address),
    /// A consumer was dropped without leaving: what it held comes again when its leases have run out.
    Dropped(Who, u64, Address),
    /// A store recorded that a message with a chosen id is about to be sent, or answered that it was sent before.
    SendBegun(SendBegun),
    /// A store recorded how such a send ended: whether the broker took the message.
    SendEnded(Subject, Address, bool),
    /// A cancel of the pending entries of this message in this service.
    Cancelled(Service, MessageId, Changed),
    /// A reschedule of them.
    Rescheduled(Service, MessageId, Due, Changed),
    /// A handler begins.
    Run(Box<Run>),
    /// A handler ends.
    Ended(usize, Ending),
}

/// Something happened then.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Monotonic time since the world began.
    pub at: Duration,
    /// What the broker's wall clock said.
    pub wall: Timestamp,
    /// What.
    pub event: Event,
}

impl Event {
    /// Whether it concerns this message, or everybody.
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

/// The lines of a trace that concern one message.
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
