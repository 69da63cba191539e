//! Hard kills under load on a real store, with all records kept outside the store.
//!
//! ```text
//!                       ┌─ producers ──▶┐             ┌─▶ consumers ─┐
//!   orchestrator ─ kill ┤               │    store    │              ├─ each has its own journal
//!    and restart        └─ canceller ──▶┘             └─▶ (engines)  ┘          │
//!                                                                               ▼
//!                       dead letters, and what is left in the store ───────▶ checker
//! ```
//!
//! Every worker is a separate process of this program, and is killed without a shutdown. It records
//! in its journal what it is about to do before it does it, and what was confirmed after the
//! confirmation. A kill therefore leaves an unknown outcome, but never a false statement. The
//! checker uses only the journals, the dead letters and the final contents of the store.
//!
//! The seed decides which workers are killed, what is sent, and how runs end. The timing depends on
//! the machine: a seed repeats a plan, not a run.

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
