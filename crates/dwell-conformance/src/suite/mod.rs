//! The suite: what is promised of every transport, one named case each.
//!
//! A case is an `async fn(Stage) -> Outcome`, listed with what it needs in the `cases` of its group's file. It runs on a
//! rig and in a namespace of its own; it fails by an error or a panic.

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

/// How a case ended; an error is a failure.
type Outcome = Result<(), BoxError>;

/// One promise.
struct Case {
    group: Group,
    name: String,
    /// Without these the case is refused, skipped or has no meaning: see [`Need`].
    needs: &'static [Need],
    run: fn(Stage) -> BoxFuture<'static, Outcome>,
}

/// A case from the function of that name, and what it needs.
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

/// All of them, in the order of the matrix.
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

/// A failure in words.
fn failure(text: impl Into<String>) -> BoxError {
    text.into().into()
}

/// None of [`Stage::rounds`] was long enough.
fn too_late() -> BoxError {
    failure("too late each time")
}
