//! The contract between Dwell and its transports: the values that travel, seven traits, and what every side shares
//! (clock, errors, retry policy, timing wheel, text forms). No I/O. It is all that a transport author needs.
//!
//! A transport implements [`Transport`], [`Producer`] and [`Consumer`]; where it can hold messages until they are due,
//! also [`Scheduler`]; where it can look them up, [`Ledger`]; where it can remember what was handled, [`Inbox`]. Time
//! comes from a [`Clock`], randomness from [`Random`], ids from [`Ids`]: see [`Seams`]. What it declares in
//! [`Capabilities`], it does by itself; every gap is filled above it, once for all transports.
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

/// Shared text. Names repeat, so a clone is a reference count.
pub type Text = std::sync::Arc<str>;
