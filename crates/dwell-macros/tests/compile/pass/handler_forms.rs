//! Every function that is a handler without `#[handler]` is also one with it.
#![deny(warnings)]

use dwell::{Cx, Event, Failure, IntoHandler as _, State, handler};
use serde::{Deserialize, Serialize};
use std::{error::Error, pin::Pin};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Not `async`, but returns a future.
#[handler]
#[timeout("10s")]
fn boxed(message: OrderPlaced) -> BoxFuture<Result<(), Failure>> {
    Box::pin(async move { if message.order == 0 { Err(Failure::defer()) } else { Ok(()) } })
}

#[handler]
fn unnamed(_: OrderPlaced) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
    async { Ok(()) }
}

#[handler]
async fn some_error(_: OrderPlaced) -> Result<(), impl Error + Send + Sync> {
    Err::<(), _>(std::fmt::Error)
}

#[handler]
fn some_error_of_a_blocking_one(_: OrderPlaced) -> Result<(), impl Error + Send + Sync> {
    Err::<(), _>(std::fmt::Error)
}

/// With a parameter that exists in some builds only.
#[handler]
async fn conditional(
    _: OrderPlaced,
    #[cfg(debug_assertions)] cx: Cx,
    #[cfg(not(debug_assertions))] _: State<u64>,
    #[cfg(any())] _: NoSuchType,
    _: State<String>,
) {
    #[cfg(debug_assertions)]
    drop(cx);
}

#[deprecated]
#[derive(Clone)]
struct Old;

/// An `allow` of the function applies to the generated code.
#[handler]
#[allow(deprecated)]
async fn old(_: OrderPlaced, _: State<Old>) {}

fn main() {
    let steps = [
        boxed.into_handler().steps().len(),
        unnamed.into_handler().steps().len(),
        some_error.into_handler().steps().len(),
        some_error_of_a_blocking_one.into_handler().steps().len(),
        conditional.into_handler().steps().len(),
        old.into_handler().steps().len(),
    ];
    assert_eq!(steps, [1, 0, 0, 0, 0, 0]);
}
