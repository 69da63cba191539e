//! Pipelines: a handler and the steps around it.

mod chain;
mod step;
pub mod steps;

pub(crate) use chain::Chain;
pub use chain::Next;
pub use step::Step;

use crate::{
    handler::{Function, IntoHandler},
    message::Message,
};
use dwell_core::{Error, ErrorKind, Result, RetryOverride, Text};
use std::{fmt, marker::PhantomData, time::Duration};

/// A handler and the steps around it, of which the first is the outermost. `#[handler]` with
/// attributes creates the same value.
///
/// ```
/// use dwell::{Pipeline, Step, prelude::*};
/// use std::time::Duration;
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "orders.placed")]
/// struct OrderPlaced { order: u64 }
///
/// async fn confirm(placed: OrderPlaced) -> Result<(), std::io::Error> { Ok(()) }
///
/// let pipeline = Pipeline::new(confirm)
///     .step(Step::defer_on_error().delay(Duration::from_secs(30)))
///     .step(Step::timeout(Duration::from_secs(10)));
/// let names: Vec<_> = pipeline.steps().iter().map(Step::name).collect();
/// assert_eq!(names, ["defer_on_error", "timeout"]);
/// let wiring = Bus::builder().subscribe("mail", pipeline);
/// ```
pub struct Pipeline<M> {
    function: Function,
    name: Text,
    steps: Vec<Step>,
    message: PhantomData<fn(M)>,
}

impl<M: Message> Pipeline<M> {
    /// Creates a pipeline with the given handler and no steps.
    ///
    /// ```
    /// # use dwell::{Pipeline, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet { name: String }
    /// // A closure is also a handler.
    /// let pipeline = Pipeline::new(async |message: Greet| println!("Hello, {}!", message.name));
    /// assert!(pipeline.steps().is_empty());
    /// ```
    pub fn new<H, Marker>(handler: H) -> Self
    where
        H: IntoHandler<Marker, Message = M>,
    {
        handler.into_handler()
    }

    pub(crate) fn of(function: Function) -> Self {
        Self { name: function.name.into(), function, steps: vec![], message: PhantomData }
    }

    /// Sets the name of the handler in errors and logs. The default is the path of the function.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet { name: String }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let pipeline =
    ///     Pipeline::new(async |_: Greet| ()).named("greeter").step(Step::rate_limit(0.0));
    /// let refused = Bus::builder().handle(pipeline).start("memory://").await.unwrap_err();
    /// assert!(
    ///     refused
    ///         .to_string()
    ///         .starts_with("the handler `greeter` has a step `rate_limit` that must let")
    /// );
    /// # }
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl Into<Text>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a step inside the existing ones, or at the position of its number if steps are
    /// numbered.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet { name: String }
    /// let second = Duration::from_secs(1);
    /// let pipeline = Pipeline::new(async |_: Greet| ())
    ///     .step(Step::timeout(second * 10)) // for all attempts together
    ///     .step(Step::retry_inline())
    ///     .step(Step::timeout(second)); // for each attempt
    /// # assert_eq!(pipeline.steps().len(), 3);
    /// ```
    #[must_use]
    pub fn step(mut self, step: impl Into<Step>) -> Self {
        self.steps.push(step.into());
        self
    }

    /// Returns the steps, in the order in which they were added.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet;
    /// #[handler]
    /// #[defer_on_error]
    /// #[inbox]
    /// async fn greet(_: Greet) {}
    ///
    /// let pipeline = greet();
    /// let names: Vec<_> = pipeline.steps().iter().map(Step::name).collect();
    /// assert_eq!(names, ["defer_on_error", "inbox"]);
    /// ```
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(crate) fn build(self) -> Result<Built> {
        let Self { function, name, steps, .. } = self;
        let steps = in_order(&name, steps)?;
        if let Some((step, problem)) = steps.iter().find_map(|step| Some((step, step.problem()?))) {
            return Err(refused(&name, format!("has a step `{}` that {problem}", step.name())));
        }
        let mut retry = steps.iter().filter_map(|step| step.retry_policy());
        let built_retry = retry.next();
        if retry.next().is_some() {
            return Err(refused(
                &name,
                "has two `retry` steps, but a message type has one retry policy: remove one",
            ));
        }
        let needs_inbox = steps.iter().any(Step::is_inbox);
        let longest_delay = steps.iter().map(Step::longest_delay).max().unwrap_or_default();
        let needs = function.needs;
        let chain = Chain::new(name.clone(), function.target, &steps);
        Ok(Built { name, chain, retry: built_retry, needs, needs_inbox, longest_delay })
    }
}

/// A validated pipeline.
pub(crate) struct Built {
    pub(crate) name: Text,
    pub(crate) chain: Chain,
    pub(crate) retry: Option<RetryOverride>,
    pub(crate) needs: Vec<(std::any::TypeId, &'static str)>,
    pub(crate) needs_inbox: bool,
    /// The longest delay that a step can request.
    pub(crate) longest_delay: Duration,
}

fn refused(name: &str, why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Config, format!("the handler `{name}` {why}"))
}

/// Sorts the steps from the outermost inwards: in their order, or by their numbers.
fn in_order(name: &str, mut steps: Vec<Step>) -> Result<Vec<Step>> {
    let numbered = steps.iter().filter(|step| step.number_given().is_some()).count();
    if numbered == 0 {
        return Ok(steps);
    }
    if numbered < steps.len() {
        let why = format!(
            "has {} steps, of which {numbered} are numbered: number all of them or none",
            steps.len()
        );
        return Err(refused(name, why));
    }
    steps.sort_by_key(Step::number_given);
    for pair in steps.windows(2) {
        if pair[0].number_given() == pair[1].number_given() {
            let why = format!(
                "has two steps with the number {}, `{}` and `{}`: use different numbers",
                pair[0].number_given().unwrap_or_default(),
                pair[0].name(),
                pair[1].name()
            );
            return Err(refused(name, why));
        }
    }
    Ok(steps)
}

impl<M> fmt::Debug for Pipeline<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("name", &self.name).field("steps", &self.steps).finish()
    }
}
