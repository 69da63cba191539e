use syn::parse_quote;

use super::*;

fn expanded(input: &DeriveInput) -> std::result::Result<String, String> {
    expand(Kind::Event, input, Some("shop"))
        .map(|tokens| tokens.to_string())
        .map_err(|error| error.to_string())
}

fn refusal(input: &DeriveInput) -> String {
    expanded(input).expect_err("should be refused")
}

fn default(ident: &str, package: &str) -> std::result::Result<String, String> {
    let ident: Ident = syn::parse_str(ident).expect("an identifier");
    default_name(&ident, Some(package)).map(|name| name.value()).map_err(|error| error.to_string())
}

#[test]
fn a_command_has_the_given_name_topic_and_codec() {
    let input = parse_quote! {
        #[message(name = "payments.charge", topic = "payments", codec = codecs::Avro<1, 2>)]
        struct Charge { order: u64 }
    };
    let expected = quote! {
        #[automatically_derived]
        impl ::dwell::Message for Charge {
            const NAME: &'static str = "payments.charge";
            const TOPIC: &'static str = "payments";
            type Codec = codecs::Avro<1, 2>;
        }

        #[automatically_derived]
        impl ::dwell::Command for Charge {}
    };
    assert_eq!(expand(Kind::Command, &input, None).unwrap().to_string(), expected.to_string());
}

#[test]
fn the_default_name_and_topic_are_package_and_type() {
    let input = parse_quote!(
        enum OrderPlaced {
            Online,
            InTheShop,
        }
    );
    let expected = quote! {
        #[automatically_derived]
        impl ::dwell::Message for OrderPlaced {
            const NAME: &'static str = "shop.order_placed";
            type Codec = ::dwell::Json;
        }

        #[automatically_derived]
        impl ::dwell::Event for OrderPlaced {}
    };
    assert_eq!(expand(Kind::Event, &input, Some("shop")).unwrap().to_string(), expected.to_string());
}

#[test]
fn settings_can_be_in_several_attributes() {
    let input = parse_quote! {
        #[serde(transparent)]
        #[message(topic = "orders")]
        #[message(name = "shop.paid")]
        struct OrderPaid(u64);
    };
    let text = expanded(&input).unwrap();
    assert!(text.contains(r#"NAME : & 'static str = "shop.paid""#), "{text}");
    assert!(text.contains(r#"TOPIC : & 'static str = "orders""#), "{text}");
}

#[test]
fn type_names_become_snake_case() {
    for (ident, expected) in [
        ("OrderPlaced", "order_placed"),
        ("Order", "order"),
        ("HTTPError", "http_error"),
        ("OrderV2", "order_v2"),
        ("V2Order", "v2_order"),
        ("ReadHTTP", "read_http"),
        ("Order_Placed", "order_placed"),
        ("order_placed", "order_placed"),
        ("A", "a"),
        ("r#type", "type"),
    ] {
        assert_eq!(default(ident, "shop"), Ok(format!("shop.{expected}")));
    }
}

#[test]
fn package_names_are_converted() {
    for (package, expected) in [
        ("shop-api", "shop-api.order"),
        ("shop_api", "shop_api.order"),
        ("größe", "gr__e.order"),
        ("dwell", "dwell_.order"),
        ("job", "job_.order"),
        ("dwell-tests", "dwell-tests.order"),
        ("jobs", "jobs.order"),
    ] {
        assert_eq!(default("Order", package).as_deref(), Ok(expected));
    }
}

#[test]
fn an_invalid_default_name_is_refused() {
    for (ident, problem) in [
        ("Dlq", "end in `.dlq`"),
        ("Invalid", "end in `.invalid`"),
        ("Größe", "contains `ö`"),
        (&"X".repeat(120), "125"),
    ] {
        let text = default(ident, "shop").unwrap_err();
        assert!(text.contains(problem), "{text}");
        assert!(text.ends_with(&format!("give `{ident}` a name: `#[message(name = \"…\")]`")), "{text}");
    }
    let named = parse_quote!(
        #[message(name = "shop.size")]
        struct Größe;
    );
    expanded(&named).unwrap();
}

#[test]
fn a_name_is_required_without_a_package() {
    let error = expand(
        Kind::Event,
        &parse_quote!(
            struct OrderPlaced;
        ),
        None,
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("CARGO_PKG_NAME") && error.contains("give `OrderPlaced` a name"), "{error}");
}

#[test]
fn invalid_names_and_topics_are_refused() {
    for (input, problem) in [
        (
            parse_quote!(
                #[message(name = "a/b")]
                struct A;
            ),
            "the name of a message has to be valid for a topic",
        ),
        (
            parse_quote!(
                #[message(name = "a/b")]
                struct A;
            ),
            "`a/b` contains `/`",
        ),
        (
            parse_quote!(
                #[message(topic = "")]
                struct A;
            ),
            "is empty",
        ),
        (
            parse_quote!(
                #[message(topic = "dwell.a")]
                struct A;
            ),
            "start with `dwell.`",
        ),
        (
            parse_quote!(
                #[message(topic = "job.a")]
                struct A;
            ),
            "start with `job.`",
        ),
        (
            parse_quote!(
                #[message(name = "a.dlq")]
                struct A;
            ),
            "end in `.dlq`",
        ),
        (
            parse_quote!(
                #[message(name = "a.invalid", topic = "a")]
                struct A;
            ),
            "end in `.invalid`",
        ),
        (
            parse_quote!(
                #[message(name = 42)]
                struct A;
            ),
            "`name` takes a text",
        ),
        (
            parse_quote!(
                #[message(topic = ORDERS)]
                struct A;
            ),
            "`topic` takes a text",
        ),
    ] {
        let text = refusal(&input);
        assert!(text.contains(problem), "{text}");
    }
}

#[test]
fn unknown_and_repeated_settings_are_refused() {
    for (input, problem) in [
        (
            parse_quote!(
                #[message(tpoic = "a")]
                struct A;
            ),
            "`#[message]` has no setting `tpoic`: did you mean `topic`?\nits settings: `name`, `topic`, `codec`",
        ),
        (
            parse_quote!(
                #[message(crate = ::a)]
                struct A;
            ),
            "`#[message]` has no setting `crate`",
        ),
        (
            parse_quote!(
                #[message(name = "a", name = "b")]
                struct A;
            ),
            "`name` of `#[message]` is set twice",
        ),
        (
            parse_quote!(
                #[message(name = "a")]
                #[message(name = "b")]
                struct A;
            ),
            "is set twice",
        ),
        (
            parse_quote!(
                #[message("a")]
                struct A;
            ),
            "are written `name = value`",
        ),
        (
            parse_quote!(
                #[message = "a"]
                struct A;
            ),
            "belong in parentheses: `#[message(…)]`",
        ),
    ] {
        let text = refusal(&input);
        assert!(text.contains(problem), "{text}");
    }
}

#[test]
fn generic_types_and_unions_are_refused() {
    for input in [
        parse_quote!(
            struct Changed<T>(T);
        ),
        parse_quote!(
            struct Changed<'a>(&'a str);
        ),
        parse_quote!(
            struct Changed<const N: usize>;
        ),
    ] {
        assert!(refusal(&input).starts_with("`Changed` is generic"));
    }
    assert!(refusal(&parse_quote!(union Number { whole: u64 })).starts_with("`Number` is a union"));
}
