//! Runs the programs in the README and the guide as tests.

macro_rules! pages {
    ($($name:ident: $path:literal,)*) => {$(
        #[doc = include_str!(concat!("../../../", $path))]
        struct $name;
    )*};
}

pages! {
    Readme: "README.md",
    FirstMessage: "docs/guide/1-first-message.md",
    Delays: "docs/guide/2-delays.md",
    DeferralAndBackstops: "docs/guide/3-deferral-and-backstops.md",
    RetryAndDeadLetters: "docs/guide/4-retry-and-dead-letters.md",
    Testing: "docs/guide/5-testing.md",
    ChoosingATransport: "docs/guide/6-choosing-a-transport.md",
}

#[cfg(feature = "axum")]
pages! {
    Jobs: "docs/guide/7-jobs.md",
}
