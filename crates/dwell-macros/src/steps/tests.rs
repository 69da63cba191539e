use syn::parse_quote;

use super::*;

/// Returns the expression for an attribute without spaces, or its error.
fn expanded(attribute: &Attribute) -> std::result::Result<String, String> {
    let kind = Kind::of(attribute.path()).expect("a step attribute");
    match kind.read(attribute) {
        Ok(step) => Ok(step.expand().to_string().replace(' ', "")),
        Err(error) => Err(error.to_string()),
    }
}

fn expansion(attribute: &Attribute) -> String {
    let text = expanded(attribute).expect("should be accepted");
    text.strip_prefix("::dwell::Step::").expect("a step").replace("::core::time::Duration::from_millis", "ms")
}

fn refusal(attribute: &Attribute) -> String {
    expanded(attribute).expect_err("should be refused")
}

fn problems(attributes: &[Attribute]) -> Vec<String> {
    let error = read(attributes).map(|_| ()).expect_err("should be refused");
    error.into_iter().map(|error| error.to_string()).collect()
}

#[test]
fn every_step_supports_all_its_settings() {
    let cases: [(Attribute, &str); 9] = [
        (parse_quote!(#[defer_on_error(delay = "30s")]), "defer_on_error().delay(ms(30000))"),
        (parse_quote!(#[reject_on_error(step = 3)]), "reject_on_error().number(3)"),
        (parse_quote!(#[release_on_error(step = -3)]), "release_on_error().number(-3)"),
        (
            parse_quote!(#[retry(max_retries = 20, base_delay = "1s", max_delay = "1h", jitter = 0.15)]),
            "retry().max_retries(20).base_delay(ms(1000)).max_delay(ms(3600000)).jitter(0.15)",
        ),
        (
            parse_quote!(#[retry_inline(max_retries = 3, base_delay = "100ms", max_delay = "1s", step = 1)]),
            "retry_inline().max_retries(3).base_delay(ms(100)).max_delay(ms(1000)).number(1)",
        ),
        (parse_quote!(#[timeout("10s", step = 4)]), "timeout(ms(10000)).number(4)"),
        (
            parse_quote!(#[circuit_breaker(failures = 5, open_for = "30s")]),
            "circuit_breaker().failures(5).open_for(ms(30000))",
        ),
        (parse_quote!(#[rate_limit(per_second = 10, burst = 5)]), "rate_limit(10.0).burst(5)"),
        (parse_quote!(#[inbox(keep = "7d")]), "inbox().keep(ms(604800000))"),
    ];
    for (attribute, expected) in cases {
        assert_eq!(expansion(&attribute), expected);
    }
}

#[test]
fn missing_settings_generate_nothing() {
    for (attribute, expected) in [
        (parse_quote!(#[defer_on_error]), "defer_on_error()"),
        (parse_quote!(#[defer_on_error()]), "defer_on_error()"),
        (parse_quote!(#[reject_on_error]), "reject_on_error()"),
        (parse_quote!(#[release_on_error]), "release_on_error()"),
        (parse_quote!(#[retry(max_retries = 0)]), "retry().max_retries(0)"),
        (parse_quote!(#[retry_inline]), "retry_inline()"),
        (parse_quote!(#[circuit_breaker]), "circuit_breaker()"),
        (parse_quote!(#[rate_limit(per_second = 0.5)]), "rate_limit(0.5)"),
        (parse_quote!(#[inbox]), "inbox()"),
    ] {
        assert_eq!(expansion(&attribute), expected);
    }
}

#[test]
fn a_zero_delay_differs_from_none() {
    assert_eq!(expansion(&parse_quote!(#[defer_on_error("0s")])), "defer_on_error().delay(ms(0))");
    assert_eq!(expansion(&parse_quote!(#[retry(base_delay = "0s")])), "retry().base_delay(ms(0))");
}

#[test]
fn the_first_setting_may_have_no_key() {
    assert_eq!(
        expansion(&parse_quote!(#[timeout("1m 30s")])),
        expansion(&parse_quote!(#[timeout(after = "90s",)]))
    );
    let named = expansion(&parse_quote!(#[defer_on_error(delay = "30s", step = 1)]));
    assert_eq!(expansion(&parse_quote!(#[defer_on_error("30s", step = 1)])), named);
    for attribute in [parse_quote!(#[inbox("7d")]), parse_quote!(#[timeout(step = 1, "10s")])] {
        let text = refusal(&attribute);
        assert!(text.contains("are written `name = value`"), "{text}");
    }
    assert!(refusal(&parse_quote!(#[inbox("7d")])).ends_with("its settings: `keep`, `step`"));
}

#[test]
fn a_step_is_found_with_or_without_the_crate_name() {
    for path in [parse_quote!(timeout), parse_quote!(dwell::timeout), parse_quote!(::dwell::timeout)] {
        assert_eq!(Kind::of(&path).map(|kind| kind.name), Some("timeout"));
    }
    for path in [parse_quote!(other::timeout), parse_quote!(dwell::a::timeout), parse_quote!(time_out)] {
        assert!(Kind::of(&path).is_none());
    }
}

#[test]
fn an_invalid_delay_is_quoted_with_examples() {
    let forms = "`250ms` `90s` `15m` `1h30m` `5d` `2w`";
    for (attribute, problem) in [
        (parse_quote!(#[timeout("half an hour")]), "`half an hour` has `h` where a number belongs"),
        (parse_quote!(#[timeout("10 parsecs")]), "`10 parsecs`"),
        (parse_quote!(#[timeout("-1s")]), "`-1s` is negative"),
        (parse_quote!(#[timeout("")]), "is empty"),
        (parse_quote!(#[timeout("10")]), "`10` is a bare number: which unit?"),
        (parse_quote!(#[timeout(10)]), "`10` is a bare number: which unit?"),
        (parse_quote!(#[timeout(after = 1.5)]), "`1.5` is a bare number: which unit?"),
        (parse_quote!(#[timeout(after = -10)]), "`-10` is negative"),
        (parse_quote!(#[timeout(after = 10s)]), "`10s` has no quotes: write `after = \"10s\"`"),
        (parse_quote!(#[timeout(after = 1h30m)]), "`1h30m` has no quotes: write `after = \"1h30m\"`"),
        (parse_quote!(#[timeout(after = 10u32)]), "`10u32`"),
        (parse_quote!(#[timeout(after = true)]), "`after` is not a duration"),
        (parse_quote!(#[timeout(after = PATIENCE)]), "as a literal"),
        (parse_quote!(#[timeout("0s")]), "above zero"),
    ] {
        let text = refusal(&attribute);
        assert!(text.contains(problem) && text.contains(forms), "{text}");
    }
}

#[test]
fn zero_is_refused_where_a_positive_delay_is_needed() {
    for attribute in [
        parse_quote!(#[timeout(after = "0ms")]),
        parse_quote!(#[circuit_breaker(open_for = "0s")]),
        parse_quote!(#[inbox(keep = "0d")]),
    ] {
        assert!(refusal(&attribute).contains("above zero"));
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (attribute, wanted) in [
        (parse_quote!(#[retry(max_retries = -1)]), "`max_retries` takes a whole number from 0 to 4294967295"),
        (parse_quote!(#[retry(max_retries = 4294967296)]), "`max_retries` takes a whole number from 0"),
        (parse_quote!(#[retry(max_retries = 1.5)]), "`max_retries` takes a whole number from 0"),
        (parse_quote!(#[retry(max_retries = "3")]), "`max_retries` takes a whole number from 0"),
        (parse_quote!(#[retry(max_retries = MAX)]), "as a literal"),
        (parse_quote!(#[retry(jitter = 1.5)]), "`jitter` takes a number from 0 to 1"),
        (parse_quote!(#[retry(jitter = -0.1)]), "`jitter` takes a number from 0 to 1"),
        (parse_quote!(#[circuit_breaker(failures = 0)]), "`failures` takes a whole number from 1"),
        (parse_quote!(#[rate_limit(per_second = 0)]), "`per_second` takes a number above 0"),
        (parse_quote!(#[rate_limit(per_second = -1)]), "`per_second` takes a number above 0"),
        (parse_quote!(#[rate_limit(per_second = 1e999)]), "`per_second` takes a number above 0"),
        (parse_quote!(#[rate_limit(per_second = "10")]), "`per_second` takes a number above 0"),
        (parse_quote!(#[rate_limit(per_second = 1, burst = 0)]), "`burst` takes a whole number from 1"),
        (parse_quote!(#[inbox(step = 1.5)]), "`step` takes a whole number"),
        (parse_quote!(#[inbox(step = FIRST)]), "`step` takes a whole number"),
        (parse_quote!(#[inbox(step = 3000000000)]), "`step` takes a whole number"),
    ] {
        let text = refusal(&attribute);
        assert!(text.contains(wanted), "{text}");
    }
    for jitter in [parse_quote!(#[retry(jitter = 0)]), parse_quote!(#[retry(jitter = 1)])] {
        expansion(&jitter);
    }
}

#[test]
fn a_maximum_delay_below_the_base_delay_is_refused() {
    for attribute in [
        parse_quote!(#[retry(base_delay = "10s", max_delay = "9999ms")]),
        parse_quote!(#[retry_inline(max_delay = "9999ms", base_delay = "10s")]),
    ] {
        let text = refusal(&attribute);
        assert!(text.starts_with(r#"`max_delay = "9999ms"` is below `base_delay = "10s"`"#), "{text}");
    }
    expansion(&parse_quote!(#[retry(base_delay = "10s", max_delay = "10s")]));
}

#[test]
fn unknown_settings_are_refused_with_a_suggestion() {
    let text = refusal(&parse_quote!(#[retry(max_retrys = 3)]));
    assert!(
        text.starts_with("`#[retry]` has no setting `max_retrys`: did you mean `max_retries`?"),
        "{text}"
    );
    let text = refusal(&parse_quote!(#[reject_on_error(colour = "red")]));
    assert_eq!(text, "`#[reject_on_error]` has no setting `colour`\nits settings: `step`");
    let text = refusal(&parse_quote!(#[retry_inline(jitter = 0.1)]));
    assert!(text.contains("`max_retries`, `base_delay`, `max_delay`, `step`"), "{text}");
}

#[test]
fn settings_are_unique_and_have_values() {
    for (attribute, problem) in [
        (parse_quote!(#[timeout("10s", after = "10s")]), "`after` of `#[timeout]` is set twice"),
        (parse_quote!(#[inbox(step = 1, step = 1)]), "`step` of `#[inbox]` is set twice"),
        (parse_quote!(#[inbox(keep)]), "`keep` of `#[inbox]` has no value: write `keep = …`"),
        (parse_quote!(#[timeout = "10s"]), "belong in parentheses: `#[timeout(…)]`"),
        (parse_quote!(#[timeout("10s" step = 1)]), "expected `,`"),
    ] {
        let text = refusal(&attribute);
        assert!(text.contains(problem), "{text}");
    }
}

#[test]
fn missing_required_settings_are_refused() {
    let all = "`max_retries`, `base_delay`, `max_delay`, `jitter`";
    assert!(refusal(&parse_quote!(#[retry])).ends_with(all));
    assert!(refusal(&parse_quote!(#[retry(step = 1)])).ends_with(all));
    assert!(
        refusal(&parse_quote!(#[timeout])).contains(r#"needs `after`: write it like `#[timeout("10s")]`"#)
    );
    assert!(refusal(&parse_quote!(#[rate_limit(burst = 5)])).contains("`#[rate_limit(per_second = 10)]`"));
}

#[test]
fn repeated_steps_are_refused() {
    let problems = problems(&[
        parse_quote!(#[timeout("10s")]),
        parse_quote!(#[inbox]),
        parse_quote!(#[dwell::timeout("5s")]),
    ]);
    assert_eq!(problems, ["`#[timeout]` appears twice: use each step at most once"]);
}

#[test]
fn repeated_step_numbers_are_refused() {
    let problems = problems(&[
        parse_quote!(#[timeout("10s", step = 1)]),
        parse_quote!(#[inbox(step = 2)]),
        parse_quote!(#[reject_on_error(step = 1)]),
    ]);
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.starts_with("`step = 1` is also the number of `#[timeout]`"), "{problem}");
}

#[test]
fn all_steps_have_a_number_or_none() {
    let problems = problems(&[
        parse_quote!(#[retry_inline]),
        parse_quote!(#[timeout("10s", step = 1)]),
        parse_quote!(#[inbox]),
    ]);
    let [first, second] = &problems[..] else { panic!("{problems:?}") };
    assert!(first.starts_with("`#[retry_inline]` has no `step = n`, but `#[timeout]` has one"), "{first}");
    assert!(second.starts_with("`#[inbox]` has no `step = n`"), "{second}");
}

#[test]
fn numbered_steps_keep_their_source_order() {
    let attributes: [Attribute; 2] =
        [parse_quote!(#[timeout("10s", step = 2)]), parse_quote!(#[inbox(step = -1)])];
    let steps = read(&attributes).unwrap();
    let names: Vec<_> = steps.iter().map(|step| step.kind.name).collect();
    assert_eq!(names, ["timeout", "inbox"]);
}

#[test]
fn all_errors_are_reported_together() {
    let problems = problems(&[
        parse_quote!(#[timeout]),
        parse_quote!(#[retry(max_retrys = 3)]),
        parse_quote!(#[inbox]),
        parse_quote!(#[inbox]),
    ]);
    assert_eq!(problems.len(), 3, "{problems:?}");
}

#[test]
fn a_misplaced_step_is_refused() {
    let text = misplaced("timeout").to_string();
    assert_eq!(text, "`#[timeout]` is a step of a handler: write `#[handler]` above it");
}
