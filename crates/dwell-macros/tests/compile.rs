//! Programs that compile, and programs that are refused with the expected errors. They are here and
//! not in `dwell`, because they are built with the features of their package, and therefore without
//! any transport but memory.
//!
//! `TRYBUILD=overwrite cargo test -p dwell-macros --test compile` updates the expected errors.

#[test]
fn programs_compile_or_fail_as_expected() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile/pass/*.rs");
    cases.compile_fail("tests/compile/fail/*.rs");
}
