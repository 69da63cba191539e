use syn::{File, Item, LitStr};

use super::*;

fn expanded(item: TokenStream) -> TokenStream {
    expand(TokenStream::new(), item)
}

/// Returns the errors, and the rest of the item.
fn refused(settings: TokenStream, item: TokenStream) -> (Vec<String>, String) {
    let file: File = syn::parse2(expand(settings, item)).expect("should be items");
    let (errors, others): (Vec<_>, Vec<_>) =
        file.items.into_iter().partition(|item| matches!(item, Item::Macro(_)));
    let texts = errors.into_iter().map(|error| match error {
        Item::Macro(error) => error.mac.parse_body::<LitStr>().expect("a string literal").value(),
        _ => unreachable!("only macros are expected"),
    });
    (texts.collect(), quote!(#(#others)*).to_string())
}

/// Returns the errors, and checks that only the function is left.
fn refusals(item: TokenStream) -> Vec<String> {
    let (texts, rest) = refused(TokenStream::new(), item.clone());
    assert_eq!(rest, item.to_string());
    texts
}

#[test]
fn a_function_becomes_a_pipeline_with_its_steps() {
    let handler = expanded(quote! {
        /// Tells the customer.
        #[defer_on_error(delay = "30s")]
        #[timeout("10s")]
        #[retry(max_retries = 20, base_delay = "1s")]
        pub async fn confirm(msg: OrderPlaced, State(app): State<App>) -> Result<(), MailError> {
            app.mail.confirm(msg.order).await
        }
    });
    let (state, result) = (quote!(State<App>), quote!(Result<(), MailError>));
    let expected = quote! {
        /// Tells the customer.
        pub fn confirm() -> ::dwell::Pipeline<OrderPlaced> {
            ::dwell::Pipeline::new(confirm::call)
                .named("confirm")
                .step(::dwell::Step::defer_on_error().delay(::core::time::Duration::from_millis(30000)))
                .step(::dwell::Step::timeout(::core::time::Duration::from_millis(10000)))
                .step(
                    ::dwell::Step::retry()
                        .max_retries(20)
                        .base_delay(::core::time::Duration::from_millis(1000))
                )
        }

        const _: () = {
            #[allow(dead_code, unused_variables, clippy::too_many_arguments)]
            fn parts(part_0: OrderPlaced, part_1: State<App>) {
                ::dwell::parts::message::<OrderPlaced>();
                ::dwell::parts::asked_for::<#state>();
                ::dwell::parts::returned::<#result>();
                ::dwell::parts::future(confirm::call(part_0, part_1));
            }
        };

        #[doc(hidden)]
        #[allow(non_camel_case_types, dead_code, missing_debug_implementations)]
        pub struct confirm {}

        impl confirm {
            #[doc = "The plain function `confirm`, without its steps."]
            pub async fn call(msg: OrderPlaced, State(app): State<App>) -> Result<(), MailError> {
                app.mail.confirm(msg.order).await
            }
        }
    };
    assert_eq!(handler.to_string(), expected.to_string());
}

#[test]
fn a_blocking_function_needs_no_steps() {
    let handler = expanded(quote!(
        fn count((a, b): shop::Pair) {}
    ))
    .to_string();
    for part in [
        quote!(
            fn count() -> ::dwell::Pipeline<shop::Pair>
        ),
        quote!(
            fn call((a, b): shop::Pair) {}
        ),
        quote!({ ::dwell::Pipeline::new(count::call).named("count") }),
    ] {
        assert!(handler.contains(&part.to_string()), "{handler}");
    }
    assert!(!handler.contains("pub") && !handler.contains("async"), "{handler}");
}

#[test]
fn the_visibility_of_the_function_is_kept() {
    let handler = expanded(quote!(
        pub(in crate::shop) fn count(_: OrderPlaced) {}
    ))
    .to_string();
    for part in [
        quote!(pub(in crate::shop) fn count()),
        quote!(
            pub(in crate::shop) struct count {}
        ),
        quote!(pub(in crate::shop) fn call),
    ] {
        assert!(handler.contains(&part.to_string()), "{handler}");
    }
}

#[test]
fn attributes_are_distributed() {
    let handler = expanded(quote! {
        #[cfg(feature = "mail")]
        #[allow(unused)]
        #[doc = "Docs."]
        #[inbox]
        #[tracing::instrument]
        fn count(_: OrderPlaced) {}
    })
    .to_string();
    let times = |attribute: TokenStream| handler.matches(&attribute.to_string()).count();
    assert_eq!(times(quote!(#[cfg(feature = "mail")])), 4);
    assert_eq!(times(quote!(#[allow(unused)])), 3);
    assert_eq!(times(quote!(#[doc = "Docs."])), 1);
    assert_eq!(times(quote!(#[inbox])), 0);
    assert_eq!(times(quote!(#[tracing::instrument] fn call)), 1);
}

#[test]
fn a_raw_name_is_shown_without_its_prefix() {
    let handler = expanded(quote!(
        fn r#match(_: OrderPlaced) {}
    ))
    .to_string();
    assert!(handler.contains("fn r#match ()") && handler.contains(r#"named ("match")"#), "{handler}");
}

#[test]
fn the_body_is_not_parsed() {
    let handler = expanded(quote!(fn count(_: OrderPlaced) { some syntax to come })).to_string();
    assert!(handler.contains("some syntax to come"), "{handler}");
}

#[test]
fn invalid_functions_are_refused_and_kept() {
    for (item, problem) in [
        (
            quote!(
                async fn confirm() {}
            ),
            "the handler `confirm` has no message",
        ),
        (
            quote!(
                fn confirm(&self, message: M) {}
            ),
            "a handler has no `self`",
        ),
        (
            quote!(
                fn confirm(self: Arc<Self>, message: M) {}
            ),
            "a handler has no `self`",
        ),
        (
            quote!(
                fn confirm<T>(message: T)
                where
                    T: Send,
                {
                }
            ),
            "`confirm` is generic",
        ),
        (
            quote!(
                fn confirm<'a>(message: M<'a>) {}
            ),
            "`confirm` is generic",
        ),
        (
            quote!(
                fn confirm(message: M)
                where
                    M: Send,
                {
                }
            ),
            "`confirm` has a `where`",
        ),
        (
            quote!(
                fn confirm(message: impl Message) {}
            ),
            "`impl` makes the handler `confirm` generic",
        ),
        (
            quote!(
                fn confirm(message: M, app: impl App) {}
            ),
            "`impl` makes the handler `confirm` generic",
        ),
        (
            quote!(
                unsafe fn confirm(message: M) {}
            ),
            "is `unsafe`",
        ),
        (
            quote!(
                extern "C" fn confirm(message: M) {}
            ),
            "is `extern`",
        ),
        (
            quote!(
                const fn confirm(message: M) {}
            ),
            "is `const`",
        ),
        (
            quote!(
                fn confirm(message: &M) {}
            ),
            "remove the `&`",
        ),
    ] {
        let texts = refusals(item);
        let [text] = &texts[..] else { panic!("{texts:?}") };
        assert!(text.contains(problem), "{text}");
    }
}

#[test]
fn errors_of_function_and_steps_are_reported_together() {
    let (texts, rest) = refused(
        TokenStream::new(),
        quote! {
            #[timeout(10)]
            #[inline]
            #[retry]
            unsafe fn confirm(message: M) {}
        },
    );
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert_eq!(
        rest,
        quote!(
            #[inline]
            unsafe fn confirm(message: M) {}
        )
        .to_string()
    );
}

#[test]
fn settings_of_the_handler_are_refused() {
    let (texts, _) = refused(
        quote!(step = 1),
        quote!(
            fn confirm(message: M) {}
        ),
    );
    assert!(texts[0].starts_with("`#[handler]` has no settings"), "{texts:?}");
}

#[test]
fn other_items_are_refused() {
    for item in [
        quote!(
            struct Confirm;
        ),
        quote!(
            const CONFIRM: u64 = 1;
        ),
    ] {
        let texts = refusals(item);
        assert!(texts[0].starts_with("`#[handler]` belongs on a function"), "{texts:?}");
    }
}
