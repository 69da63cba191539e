//! The contract between Dwell and its transports. This crate is all that the author of a transport
//! needs, and it does no I/O.
//!
//! It contains the values that transports carry, seven traits, and the parts that all sides share:
//! clock, errors, retry policy, timing wheel and text forms.
//!
//! * Every transport implements [`Transport`], [`Producer`] and [`Consumer`].
//! * A transport that can hold messages until they are due also implements [`Scheduler`].
//! * A transport that can look up stored messages also implements [`Ledger`].
//! * A transport that can record handled messages also implements [`Inbox`].
//!
//! A transport takes the time from a [`Clock`], random numbers from [`Random`] and new ids from
//! [`Ids`]: see [`Seams`]. It implements natively what it declares in [`Capabilities`]. The engine
//! above it provides the rest, in one implementation for all transports.
#![forbid(unsafe_code)]

mod address;
mod capabilities;
mod clock;
mod constant;
mod delivery;
pub mod duration;
mod error;
mod headers;
mod headers_json;
mod id;
mod inbox;
mod ledger;
mod low_water;
mod measure;
mod message;
mod name;
mod quote;
mod random;
mod retry;
mod scheduler;
mod seams;
mod secret;
mod subscription;
mod suggest;
mod time;
mod time_text;
mod transport;
mod url;
pub mod wheel;
pub mod wire;

pub use address::Address;
pub use capabilities::{AtomicMove, Capabilities, Lease};
pub use clock::{Busy, Clock, SystemClock, VirtualClock};
pub use constant::{ContentType, TypeName};
pub use delivery::{Action, Delivery, LeaseId, Note, Outcome, Receipt, Settle, Unsettled};
pub use duration::{format_duration, parse_duration};
pub use error::{BoxError, Error, ErrorKind, Result};
pub use headers::{Headers, MAX_HEADER_NAME, MAX_HEADER_VALUE};
pub use id::{IdText, Ids, MessageId, ScheduleId, UuidIds};
pub use inbox::{Claim, Inbox};
pub use ledger::{
    Answer, Change, Count, Cursor, Ledger, Of, Oldest, Page, Record, RecordQuery, State, Transition,
};
pub use low_water::LowWater;
pub use measure::{Measure, Measured};
pub use message::{Attempts, Envelope, Message, MessageFields, Sent};
pub use name::{
    JOB_TOPIC, check_id, check_subscription, check_topic, check_user_topic, is_job_topic, is_own_topic,
};
pub use random::{Random, SeededRandom};
pub use retry::{RetryOverride, RetryPolicies, RetryPolicy};
pub use scheduler::{Changed, Entries, OnConflict, Pending, Query, Scheduler};
pub use seams::Seams;
pub use secret::Secret;
pub use subscription::{OnMissing, SettingChanges, Subscription, Topic, Unclaimed};
pub use suggest::suggest;
pub use time::{Due, Moment, Timestamp};
pub use transport::{BoxFuture, Consumer, Producer, Receive, SendAtOnce, Transport, ready};
pub use url::{Options, TransportUrl};

/// Shared text. Names repeat, so a clone only increments a reference count.
pub type Text = std::sync::Arc<str>;
