//! The rules: from the verdict of a handler to the action on its message. They are pure functions,
//! so they are the same for async and blocking handlers, all transports and all tests.

mod decide;
mod reject;
#[cfg(test)]
mod tests;
mod verdict;

pub use decide::{Decision, Rules, decide};
pub(crate) use reject::stamp;
pub use reject::{Rejection, replay};
pub use verdict::Verdict;
