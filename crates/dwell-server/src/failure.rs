//! Exit codes and messages of failed commands.

use std::{error::Error, process::ExitCode};

/// Prints an error with its causes in one line.
pub(crate) fn fail(error: &dyn Error) -> ExitCode {
    eprintln!("error: {}", with_causes(error));
    ExitCode::FAILURE
}

/// Prints an error in the arguments. Its exit code is 2.
pub(crate) fn misused(error: &dyn Error) -> ExitCode {
    fail(error);
    ExitCode::from(2)
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        // Some errors contain the text of their cause.
        if !text.contains(&why) {
            text = format!("{text}: {why}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_core::ErrorKind;
    use std::io;

    #[test]
    fn an_error_contains_its_cause_once() {
        let cause = || io::Error::other("address in use");
        let error = |text: &str| dwell_core::Error::new(ErrorKind::Config, text).with_source(cause());
        assert_eq!(with_causes(&error("nothing is served")), "nothing is served: address in use");
        assert_eq!(with_causes(&error("address in use: choose another")), "address in use: choose another");
    }
}
