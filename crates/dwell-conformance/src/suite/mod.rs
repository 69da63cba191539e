//! The suite: the promises of every transport, one named case for each.
//!
//! A case is an `async fn(Stage) -> Outcome`. It is listed with its needs in `cases` of its group's
//! file. It runs on its own rig and in its own namespace. It fails by an error or a panic.

mod attempt;
mod bench;
mod budgets;
mod carrying;
mod command;
mod connecting;
mod controlling;
mod declaring;
mod deferring;
mod delaying;
mod filling;
mod forwarding;
mod inbox;
mod kept;
mod ledger;
mod living;
mod member;
mod need;
mod rejecting;
mod report;
mod run;
mod running;
mod runs;
mod settling;
mod stage;
#[cfg(test)]
mod tests;
mod waiting;
mod worker;

pub use command::main;
pub use kept::kept;
pub use report::{CaseReport, Group, Report, Verdict};
pub use run::{Options, run_all};

use bench::{Bench, Parts};
use dwell_core::{BoxError, BoxFuture};
use member::Member;
use need::Need;
use runs::{Run, Way};
use stage::Stage;

/// Result of a case. An error is a failure.
type Outcome = Result<(), BoxError>;

/// A promise.
struct Case {
    group: Group,
    name: String,
    /// Without these the case is refused, skipped or not applicable: see [`Need`].
    needs: &'static [Need],
    run: fn(Stage) -> BoxFuture<'static, Outcome>,
}

/// Creates a case from the function with its name, and its needs.
macro_rules! case {
    ($group:ident, $run:ident $(, $need:ident)*) => {
        $crate::suite::Case {
            group: $crate::suite::Group::$group,
            name: stringify!($run).replace('_', " "),
            needs: &[$($crate::suite::Need::$need),*],
            run: |stage| Box::pin($run(stage)),
        }
    };
}
use case;

/// Returns all cases, in the order of the matrix.
fn cases() -> Vec<Case> {
    let groups = [
        declaring::cases(),
        carrying::cases(),
        settling::cases(),
        filling::cases(),
        deferring::cases(),
        budgets::cases(),
        rejecting::cases(),
        waiting::cases(),
        delaying::cases(),
        controlling::cases(),
        forwarding::cases(),
        living::cases(),
        connecting::cases(),
        running::cases(),
        ledger::cases(),
        inbox::cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// Creates a failure with this text.
fn failure(text: impl Into<String>) -> BoxError {
    text.into().into()
}

/// No round of [`Stage::rounds`] was long enough.
fn too_late() -> BoxError {
    failure("too late each time")
}
