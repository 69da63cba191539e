//! Backstops, which determine what happens after an error or a panic. Deferrals, rejections,
//! releases and invalid messages of the handler are not changed.

use super::{super::chain::Inner, Layer};
use crate::cx::Cx;
use dwell_core::{BoxFuture, Due, Text};
use dwell_engine::Verdict;
use std::time::Duration;

/// See [`Step::defer_on_error`](crate::Step::defer_on_error).
///
/// ```
/// use dwell::{Step, steps::DeferOnError};
/// use std::time::Duration;
///
/// let later: DeferOnError = Step::defer_on_error().delay(Duration::from_secs(30));
/// assert_eq!(later, DeferOnError::default().delay(Duration::from_secs(30)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeferOnError {
    delay: Option<Duration>,
}

impl DeferOnError {
    /// Sets the delay, in place of the `defer_delay` of the subscription. Zero redelivers at once.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("unavailable") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let call = Pipeline::new(call).step(Step::defer_on_error().delay(Duration::from_secs(30)));
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// # t.send(Call).await?;
    /// t.advance(Duration::from_secs(60)).await;
    /// assert_eq!(t.deferred::<Call>(), 3, "at once, and then every 30 seconds");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }
}

impl DeferOnError {
    pub(in super::super) fn own_delay(&self) -> Option<Duration> {
        self.delay
    }
}

/// The outcome that replaces an error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Backstop {
    Defer(DeferOnError),
    Reject,
    Release,
}

impl Backstop {
    fn convert(self, cx: &Cx, error: Text) -> Verdict {
        let message = cx.message();
        let verb = match self {
            Self::Defer(_) => "deferring",
            Self::Reject => "rejecting",
            Self::Release => "releasing",
        };
        tracing::error!(
            id = %message.id, kind = %message.kind, topic = cx.topic(), subscription = cx.subscription(),
            attempt = cx.attempt(), %error, "backstop caught an error; {verb} the message"
        );
        match self {
            Self::Defer(DeferOnError { delay }) => {
                Verdict::Defer { due: delay.map(Due::After), reason: Some(error) }
            }
            Self::Reject => Verdict::Reject(error),
            Self::Release => Verdict::Release(error),
        }
    }
}

impl Layer for Backstop {
    fn is_lazy(&self) -> bool {
        true
    }

    fn run(&self, cx: &Cx, inner: Inner) -> BoxFuture<'static, Verdict> {
        let (backstop, cx) = (*self, cx.clone());
        Box::pin(async move {
            match inner.run(&cx).await {
                Verdict::Fail(error) => backstop.convert(&cx, error),
                other => other,
            }
        })
    }
}
