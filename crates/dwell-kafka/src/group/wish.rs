//! What the threads of a member are to do.

pub(super) const GO_ON: u8 = 0;
/// Commit and leave.
pub(super) const LEAVE: u8 = 1;
/// Leave as a crash does: commit nothing.
pub(super) const DROP: u8 = 2;
