//! A handler keeps the visibility and the attributes of its function.
#![deny(warnings, missing_docs)]

/// Messages.
pub mod messages {
    use dwell::Event;
    use serde::{Deserialize, Serialize};

    /// An order was placed.
    #[derive(Event, Serialize, Deserialize)]
    pub struct OrderPlaced {
        /// The order.
        pub order: u64,
    }
}

/// Handlers.
pub mod handlers {
    use dwell::handler;

    use super::messages::OrderPlaced;

    /// Visible everywhere.
    #[handler]
    #[reject_on_error]
    pub async fn seen(_: OrderPlaced) {}

    #[handler]
    pub(crate) async fn seen_in_the_crate(_: OrderPlaced) {}

    #[handler]
    async fn hidden(_: OrderPlaced) {}

    #[handler]
    #[allow(dead_code)]
    async fn unused(_: OrderPlaced) {}

    #[handler]
    #[cfg(any())]
    #[timeout("10s")]
    async fn absent(_: AbsentMessage) {}

    #[handler]
    /// Docs may come after other attributes.
    #[expect(clippy::unused_unit)]
    #[must_use]
    #[inline]
    pub fn r#match(_: OrderPlaced) -> () {}

    pub(super) fn register(mut handle: impl FnMut(&str)) {
        use dwell::IntoHandler as _;

        let _ = hidden.into_handler();
        handle(&format!("{:?}", hidden()));
    }
}

fn main() {
    use dwell::IntoHandler as _;

    let _ = handlers::seen.into_handler();
    let _ = handlers::seen_in_the_crate.into_handler();
    let _ = handlers::r#match.into_handler();
    handlers::register(|shown| assert!(shown.contains("hidden"), "{shown}"));
}
