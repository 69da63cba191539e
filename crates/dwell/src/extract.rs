//! Parameters of a handler after its message: shared state and the context of the run.

use crate::{cx::Cx, failure::Failure};
use std::{
    any::{Any, TypeId, type_name},
    collections::BTreeMap,
    fmt,
    sync::Arc,
};

/// Shared state, passed to the builder with `.state(…)` and cloned for each run.
///
/// ```
/// use dwell::prelude::*;
///
/// #[derive(Clone)]
/// struct App { greeting: &'static str }
///
/// #[derive(Command, Serialize, Deserialize)]
/// #[message(name = "greet")]
/// struct Greet { name: String }
///
/// async fn greet(message: Greet, State(app): State<App>) {
///     assert_eq!(format!("{}, {}", app.greeting, message.name), "Hello, Alice");
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let t = dwell::testing::start(Bus::builder().state(App { greeting: "Hello" }).handle(greet))
///     .await?;
/// # t.send(Greet { name: "Alice".into() }).await?;
/// # t.run_until_idle().await;
/// # assert_eq!(t.handled::<Greet>(), 1);
/// greet(Greet { name: "Alice".into() }, State(App { greeting: "Hello" })).await; // in a test
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State<T>(pub T);

/// A parameter of a handler, after its message: [`State`], [`Cx`] or a type of your own.
///
/// ```
/// use dwell::{FromCx, prelude::*};
///
/// /// The tenant of a message. A handler with this parameter refuses messages without a tenant.
/// struct Tenant(String);
///
/// impl FromCx for Tenant {
///     fn from_cx(cx: &Cx) -> Result<Self, Failure> {
///         match cx.headers().get_text("tenant") {
///             Some(tenant) => Ok(Self(tenant.to_owned())),
///             None => Err(Failure::invalid("the header `tenant` is missing")),
///         }
///     }
/// }
///
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "greet")]
/// # struct Greet;
/// async fn greet(_: Greet, Tenant(tenant): Tenant) {
///     assert_eq!(tenant, "acme");
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().handle(greet)).await?;
/// t.send(Greet).header("tenant", "acme").await?;
/// t.send(Greet).await?;
/// t.run_until_idle().await;
/// assert_eq!((t.handled::<Greet>(), t.dead::<Greet>()), (1, 1));
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a parameter of a handler",
    note = "after its message, a handler takes `State<T>` for shared state and `Cx` for the context of its run"
)]
pub trait FromCx: Sized + Send + 'static {
    /// Returns the type and name of the shared state that this parameter requires, if any. `start`
    /// checks that the builder has it.
    fn needs() -> Option<(TypeId, &'static str)> {
        None
    }

    /// Extracts the value from the context of a run. An error is the outcome of the run.
    fn from_cx(cx: &Cx) -> Result<Self, Failure>;
}

impl FromCx for Cx {
    fn from_cx(cx: &Cx) -> Result<Self, Failure> {
        Ok(cx.clone())
    }
}

impl<T: Clone + Send + Sync + 'static> FromCx for State<T> {
    fn needs() -> Option<(TypeId, &'static str)> {
        Some((TypeId::of::<T>(), type_name::<T>()))
    }

    fn from_cx(cx: &Cx) -> Result<Self, Failure> {
        match cx.states().get::<T>() {
            Some(state) => Ok(Self(state.clone())),
            None => {
                let text =
                    format!("the bus has no state of type `{}`: add it with `.state(…)`", type_name::<T>());
                Err(Failure::misconfigured(text))
            }
        }
    }
}

/// The shared state of a bus, one value for each type.
#[derive(Clone, Default)]
pub(crate) struct States(BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<T: Clone + Send + Sync + 'static>(&mut self, state: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(state));
    }

    pub(crate) fn get<T: 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>()).and_then(|state| state.downcast_ref())
    }

    pub(crate) fn has(&self, id: TypeId) -> bool {
        self.0.contains_key(&id)
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "States({})", self.0.len())
    }
}
