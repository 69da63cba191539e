//! Hard kills under load, on a real store, with the books kept outside of it.
//!
//! ```text
//!                       ┌─ producers ──▶┐             ┌─▶ consumers ─┐
//!   orchestrator ─ kill ┤               │    store    │              ├─ each writes a journal of its own
//!    and restart        └─ canceller ──▶┘             └─▶ (engines)  ┘          │
//!                                                                               ▼
//!                       dead letters, and what is left in the store ───────▶ checker
//! ```
//!
//! Every worker is this program again, as a process of its own, and is killed with no chance to say goodbye. What it is
//! about to do is in its journal before it does it, and what was confirmed after it was: what a kill cuts off is a doubt,
//! never a false statement. The journals and the dead letters are all that the checker goes by.
//!
//! The seed decides who is killed, what is sent and what becomes of it. When things happen, the machine decides: a seed
//! repeats a plan, not a run.

mod canceller;
mod checker;
mod command;
mod consumer;
mod crew;
mod journal;
mod load;
mod producer;
mod report;
mod run;
mod tail;
mod watched;
mod worker;

pub use command::{main, report};
pub use report::{Finding, Kind, Report};
pub use run::Options;
pub use worker::directory;
