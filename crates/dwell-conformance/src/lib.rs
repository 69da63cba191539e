//! The test suite that every transport of Dwell passes, and [`log`]: a partitioned log that
//! supports only append and ack, to test the layers above transports.
//!
//! A transport's crate describes its server as a [`Rig`], and has a test target with `harness =
//! false` whose `main` is [`main`]. Each case results in `pass`, `refused` (declared absent, and
//! refused by the transport), `fail` or `skipped` (excluded by name, or the rig cannot restart the
//! server). A case that does not apply to the declared capabilities has no result.
//!
//! ```
//! use dwell_conformance::{
//!     Namespace, Options, Rig, Time, log::{Log, LogBroker, LogSettings}, run_all,
//! };
//! use dwell_core::{BoxFuture, Result, Seams, Transport, VirtualClock, ready};
//! use std::sync::Arc;
//!
//! struct LogRig { clock: VirtualClock, broker: LogBroker }
//!
//! impl Rig for LogRig {
//!     fn name(&self) -> &str { "log" }
//!     fn time(&self) -> Time { Time::Virtual(self.clock.clone()) }
//!     fn seams(&self) -> Seams { Seams::virtual_time(self.clock.clone(), 1) }
//!     fn connect<'a>(
//!         &'a self, _: &'a Namespace, seams: Seams,
//!     ) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
//!         ready(Log::connect(&self.broker, seams).map(|log| Arc::new(log) as Arc<dyn Transport>))
//!     }
//! }
//!
//! # #[tokio::main] async fn main() {
//! let rig = || {
//!     let broker = LogBroker::new(LogSettings::default());
//!     LogRig { clock: VirtualClock::new(), broker }
//! };
//! let options = Options { filters: vec!["ack removes".into()], ..Options::default() };
//! let report = run_all(rig, &options, |case| println!("{}: {:?}", case.case, case.verdict)).await;
//! assert!(report.is_ok());
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod faults;
pub mod kills;
pub mod log;
mod namespace;
mod proxy;
mod rig;
pub mod servers;
mod skew;
mod suite;

pub use namespace::Namespace;
pub use proxy::{Proxy, Trouble};
pub use rig::{Abilities, BadUrl, Foreign, Pace, Rig, ServerFault, Time};
pub use suite::{CaseReport, Group, Options, Report, Verdict, kept, main, run_all};
