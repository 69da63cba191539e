//! Two relays and a broker that hangs under load for longer than the session timeout. Every level
//! must resume, and no record may be lost or early.
//!
//! `cargo test -p dwell-kafka --test hangs` runs one short hang; `cargo xtask faults kafka --hangs
//! 30` runs many long ones.

mod hanging;
mod rig;

use hanging::{Plan, TWICE, relay, run};
use std::process::ExitCode;

const NAME: &str = "every_level_resumes_after_the_broker_hangs";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let value = |name: &str| {
        let with_value =
            |argument: &String| argument.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        arguments.iter().find_map(with_value)
    };
    let number = |name: &str| value(name).map(|text| text.parse::<u64>().expect("a number"));
    let mut plan = match number("--hangs") {
        Some(hangs) => {
            Plan { hangs, session: 10, shortest: 11, longest: 40, most_twice: Some(TWICE), ..Plan::SHORT }
        }
        None => Plan::SHORT,
    };
    plan.session = number("--session").unwrap_or(plan.session);
    plan.seed = number("--seed").unwrap_or(plan.seed);
    plan.shortest = number("--shortest").unwrap_or(plan.shortest);
    plan.longest = number("--longest").unwrap_or(plan.longest);
    plan.transactions = arguments.iter().any(|argument| argument == "--transactions");
    if let Some(address) = value("--relay-at") {
        relay(&address, &plan);
        return ExitCode::SUCCESS;
    }
    let filters = || arguments.iter().filter(|argument| !argument.starts_with('-'));
    if filters().next().is_some() && !filters().any(|filter| NAME.contains(filter.as_str())) {
        return ExitCode::SUCCESS;
    }
    let found = run(&plan);
    for line in &found {
        println!("{line}");
    }
    let is_ok = found.is_empty();
    println!("test {NAME} ... {}", if is_ok { "ok" } else { "FAILED" });
    if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
