//! Where a job stands, in six words.

use dwell_core::State;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a job stands.
///
/// ```
/// use dwell::{jobs::Status, raw::State};
///
/// assert_eq!(Status::from(State::Retrying), Status::Scheduled);
/// assert_eq!(Status::InProgress.to_string(), "InProgress");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Status {
    /// It is due, and waits for a worker.
    Queued,
    /// It waits for its time: its first, or that of its next attempt.
    Scheduled,
    /// A worker has it.
    InProgress,
    /// It is done, and has its result.
    Completed,
    /// It was given up.
    Failed,
    /// It was cancelled before a worker had it.
    Cancelled,
}

impl Status {
    /// Whether nothing more will happen by itself.
    ///
    /// ```
    /// use dwell::jobs::Status;
    ///
    /// assert!(Status::Failed.is_final(), "though it can be run again, by `Jobs::retry`");
    /// assert!(!Status::Scheduled.is_final());
    /// ```
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl From<State> for Status {
    fn from(state: State) -> Self {
        match state {
            State::Scheduled | State::Deferred | State::Retrying => Self::Scheduled,
            State::Ready => Self::Queued,
            State::Processing => Self::InProgress,
            State::Dead | State::Discarded => Self::Failed,
            State::Done => Self::Completed,
            State::Cancelled => Self::Cancelled,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queued => "Queued",
            Self::Scheduled => "Scheduled",
            Self::InProgress => "InProgress",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
        })
    }
}
