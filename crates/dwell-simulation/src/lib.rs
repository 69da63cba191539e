//! placeholder
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
pub use life::Who;
pub use plan::{Executor, Options, Target};
pub use world::{Report, run};
