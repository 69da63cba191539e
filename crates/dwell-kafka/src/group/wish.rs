//! Commands for the threads of a member.

pub(super) const GO_ON: u8 = 0;
/// Commit and leave.
pub(super) const LEAVE: u8 = 1;
/// Leave as after a crash: commit nothing.
pub(super) const DROP: u8 = 2;
