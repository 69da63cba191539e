//! The engine of Dwell, built on the contract of `dwell-core`: rules, gap filler, delays,
//! forwarder, pumps, supervision, monitor and the memory transport.
//!
//! [`Engine`] combines them. Below it, a message passes these parts:
//!
//! 1. A [`Pump`] receives it.
//! 2. A [`Handler`] runs and returns a [`Verdict`].
//! 3. [`decide`] turns the verdict into an action.
//! 4. [`settle_with_gaps`] carries out the action on any transport.
//! 5. A [`Forwarder`] moves messages that were pending in a store to their broker.
//!
//! ```
#![doc = include_str!("../examples/first_message.rs")]
//! ```
#![forbid(unsafe_code)]

mod backoff;
mod delay;
mod engine;
mod forward;
mod gaps;
mod handler;
mod inside;
pub mod memory;
mod monitor;
mod observe;
#[cfg(feature = "planted-bugs")]
#[doc(hidden)]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
mod pump;
mod rules;
mod settings;
mod spawn;

pub use delay::{Delay, DelayMode, Detour, FORWARD_TOPICS, Route, forward_topic, is_forward_topic};
pub use engine::{Engine, EngineBuilder};
pub use forward::Forwarder;
pub use gaps::{Gaps, Lane, settle_with_gaps};
pub use handler::{Begun, BlockingHandler, Context, Handler, Place, Surround};
pub use monitor::{Monitor, Seen, Stage, Tally};
pub use observe::{Decided, Observer, Ran};
pub use pump::{BlockingRun, Counts, Pump, Status, Work, drop_caught, or_panic};
pub use rules::{Decision, Rejection, Rules, Verdict, decide, replay};
pub use settings::{DeadLetter, MaxRuns, OnUnknown, SubscriptionSettings};
pub use spawn::take_turns;
