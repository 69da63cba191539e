//! A simulation of everything between a send and its handler, with a checker of the guarantees.
//!
//! Dwell guarantees that messages are never early and never lost, that every duplicate is caused by
//! a fault, that a deferred message returns to the subscription that deferred it, and that budgets
//! hold. Tests show this for the situations that their authors thought of. Here, the situations are
//! drawn from a seed.
//!
//! # What is simulated
//!
//! One seed is one *world* ([`run`]). It contains one to three worker processes, each a real
//! [`dwell_engine::Engine`] with its pumps, forwarder and services, on a broker that outlives them.
//! The broker is the memory transport with native delays, the memory transport with a store in
//! front of it, or the model of a partitioned log with such a store, so that every gap is filled.
//! Topics, subscriptions, their settings and the outcomes of handlers are drawn. So is the
//! workload: sends that are immediate, delayed or due at a time, single and in batches, with
//! generated and chosen ids, repeated, replaced, cancelled and rescheduled; and replays of dead
//! letters.
//!
//! * **Time** is virtual: days pass in milliseconds. The broker's wall clock is set forward and
//!   back by up to an hour, and the clock of each process is wrong by up to an hour.
//! * **Order** is drawn: whenever several tasks are runnable, the dice choose the next one.
//! * **Faults** occur at every call between a process and a broker. A call is refused, for the
//!   whole batch or for some items; it takes effect but returns an error, or a partial result; it
//!   is lost; it arrives after its sender is gone; it takes longer than a lease; it never returns.
//!   Processes crash between any two steps, pause, and are stopped in order. Brokers and stores
//!   become unavailable for a time. A log declares live members dead. After a certain time no more
//!   faults occur, and every message must reach an end.
//!
//! # What is checked
//!
//! The decorator that injects the faults also records what really happened at the broker. Handlers
//! and users record what they requested and saw. The checker compares the two, for each message in
//! each subscription:
//!
//! 1. No handler starts before the due time, on the clock of the broker or store that held the
//!    message.
//! 2. Every accepted message is handled, dead with all its stamps, cancelled, replaced or
//!    discarded; exactly once if no fault affected it; and no message is left in any queue.
//! 3. There are no more runs than messages were placed, and no more copies than were requested,
//!    except those caused by a fault that affected this message: a crash or pause of the process
//!    that held it, a failed settlement, copy or renewal, or a change of the reader of a partition
//!    of the log. No stale receipt is ever accepted. A copy that is known to exist is not made
//!    again.
//! 4. A delay has the requested length.
//! 5. A repeated run happens in the subscription that requested it.
//! 6. Both counts match the verdicts so far, across every hop; their limits hold; no message is
//!    given up early.
//! 7. The results of cancel, reschedule and send are true.
//!
//! Bugs planted in the engine, one after the other ([`Bug`]), prove that the checker works: each is
//! found.
//!
//! # What is not simulated
//!
//! * Threads: blocking handlers run inline.
//! * Real brokers and their clients: the conformance suite covers them.
//! * Loss of confirmed data by a broker: the models keep everything.
//! * Subscriptions that are added or removed.
//! * Order per key, lateness, speed, and guarantees 8 and 9, which have separate tests.
//!
//! # Repeating a world
//!
//! The same seed gives the same trace, byte for byte. A failure prints the command that repeats it:
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
