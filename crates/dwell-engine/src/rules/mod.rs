//! The rule book: from what a handler said to what happens to the message. Pure, so that it is the same for both
//! pumps, every transport and every test.

mod decide;
mod reject;
#[cfg(test)]
mod tests;
mod verdict;

pub use decide::{Decision, Rules, decide};
pub(crate) use reject::stamp;
pub use reject::{Rejection, replay};
pub use verdict::Verdict;
