//! What a handler asks for beside its message: shared state, and the context of its run.

use crate::cx::Cx;
use std::{
    any::{Any, TypeId, type_name},
    collections::BTreeMap,
    fmt,
    sync::Arc,
};

/// Shared state, given to the builder with `.state(…)` and cloned for each run.
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
///     println!("{}, {}", app.greeting, message.name);
/// }
///
/// let wiring = Bus::builder().state(App { greeting: "Hello" }).handle(greet);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State<T>(pub T);

/// Something that a handler can ask for, after its message: [`State`] or [`Cx`].
#[diagnostic::on_unimplemented(
    message = "a handler cannot ask for `{Self}`",
    note = "after its message, a handler takes `State<T>` for shared state and `Cx` for the context of its run"
)]
pub trait FromCx: Sized + Send + 'static {
    /// The shared state that this needs, if any: its type and name. Checked when the bus is started.
    fn needs() -> Option<(TypeId, &'static str)> {
        None
    }

    /// Takes it from the context of a run.
    fn from_cx(cx: &Cx) -> Result<Self, String>;
}

impl FromCx for Cx {
    fn from_cx(cx: &Cx) -> Result<Self, String> {
        Ok(cx.clone())
    }
}

impl<T: Clone + Send + Sync + 'static> FromCx for State<T> {
    fn needs() -> Option<(TypeId, &'static str)> {
        Some((TypeId::of::<T>(), type_name::<T>()))
    }

    fn from_cx(cx: &Cx) -> Result<Self, String> {
        match cx.states().get::<T>() {
            Some(state) => Ok(Self(state.clone())),
            None => {
                Err(format!("no state of type `{}` was given to the bus with `.state(…)`", type_name::<T>()))
            }
        }
    }
}

/// Shared state, one value of each type.
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
