//! A simulation of everything that stands between a send and its handler, and a checker of the promises.
//!
//! Dwell promises that messages are never early and never lost, that duplicates are explained by a fault, that what was
//! deferred comes back to the one who deferred it, and that budgets hold. Tests show that this is so in the situations
//! that somebody thought of. Here, the situations are drawn from a seed.
//!
//! # What is simulated
//!
//! One seed is one *world* ([`run`]). In it live one to three worker processes, each a real [`dwell_engine::Engine`] with
//! its pumps, forwarder and services, on a broker that outlives them: the memory transport with its own delay, the same
//! with a store in front of it, or the model of a partitioned log with such a store, so that every gap is filled. Topics,
//! subscriptions, their settings and the handlers' whims are drawn, and so is a workload: sends now, later and at a time,
//! alone and in batches, under generated and chosen ids, repeated, replaced, cancelled, rescheduled; dead letters are
//! replayed.
//!
//! * **Time** is virtual: days pass in milliseconds. The broker's wall clock is set forward and back by up to an hour,
//!   and every process's own is wrong by up to as much.
//! * **Order** is drawn: whenever several tasks could go on, the dice say which one does.
//! * **Faults** happen at every call between a process and a broker. It is refused, for the whole batch or for some items;
//!   it happens and is answered with an error, or with half an answer; it is lost; it arrives after its sender is gone;
//!   it is slower than a lease; it never returns. Processes crash between any two steps, stand still, and are stopped in
//!   order; brokers and stores go away for a time; a log takes living members for dead. From some moment on, nothing goes
//!   wrong any more, and everything has to come to an end.
//!
//! # What is checked
//!
//! The decorator that injects the faults also writes down what really happened at the broker. Handlers and users write
//! down what they asked for and saw. The checker holds the two against each other, message by message and in every
//! subscription:
//!
//! 1. No handler starts before the due time on the clock of whoever held the message.
//! 2. Whatever was accepted is handled, dead with all its stamps, cancelled, replaced or discarded; exactly once if no
//!    fault touched it; and nothing is left in any queue.
//! 3. There are no more runs than were placed and no more copies than were asked for, but for those that a fault
//!    explains which touched this very message: a crash or a pause of whoever held it, a settlement, a copy or a renewal
//!    that did not get through, a change of who reads a partition of the log. No stale receipt is ever accepted. A copy
//!    that is known to be there is not made again.
//! 4. A delay is what was asked for.
//! 5. What runs again runs in the subscription that asked for it.
//! 6. Both counts are what the verdicts so far say, over every hop; their limits hold; nobody is given up early.
//! 7. Answers to cancel, reschedule and send are true.
//!
//! That the checker bites is proven by planting bugs in the engine, one after the other ([`Bug`]): each is found.
//!
//! # What is not simulated
//!
//! Threads: blocking handlers run where they stand. Real brokers and their clients: the conformance suite has them. Loss
//! of what a broker confirmed: the models keep it. Subscriptions that come and go. Order per key, lateness, speed, and
//! promises 8 and 9, which have tests of their own.
//!
//! # Repeating a world
//!
//! The same seed gives the same trace, to the byte. A failure ends with the command that repeats it:
//!
//! ```text
//! cargo run --release -p dwell-simulation -- --seeds 1 --from 4711 --trace
//! ```
//!
//! ```
//! let report = dwell_simulation::run(4711, dwell_simulation::Options::default());
//! assert!(report.violation.is_none());
//! assert!(report.tally.runs > 0);
//! ```
#![forbid(unsafe_code)]

mod checker;
mod clock;
mod crew;
mod dice;
mod faulty;
mod handler;
mod life;
mod message;
mod plan;
mod process;
mod request;
mod scene;
pub mod trace;
mod trace_text;
mod world;

pub use checker::{Promise, Tally, Violation};
pub use dwell_engine::planted::Bug;
pub use life::Who;
pub use plan::{Executor, Options};
pub use world::{Report, run};
