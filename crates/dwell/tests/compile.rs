//! What compiles, and what is refused with which words. `TRYBUILD=overwrite cargo test -p dwell --test compile` writes
//! the words anew.

#[test]
fn what_is_right_compiles_and_what_is_wrong_is_refused_saying_what_to_do() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile/pass/*.rs");
    cases.compile_fail("tests/compile/fail/*.rs");
}
