//! What compiles, and what is refused with which words. Here, and not in `dwell`, because these programs are built with the
//! features that their package asks for, and so without any transport.
//!
//! `TRYBUILD=overwrite cargo test -p dwell-macros --test compile` writes the words anew.

#[test]
fn what_is_right_compiles_and_what_is_wrong_is_refused_saying_what_to_do() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile/pass/*.rs");
    cases.compile_fail("tests/compile/fail/*.rs");
}
