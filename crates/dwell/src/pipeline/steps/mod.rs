//! Steps with options, which the functions of [`Step`](crate::Step) return.
//!
//! ```
//! use dwell::{Step, steps};
//! use std::time::Duration;
//!
//! /// The retry policy of all handlers of this program.
//! fn retry() -> steps::Retry {
//!     Step::retry().max_retries(20).max_delay(Duration::from_secs(3600))
//! }
//!
//! assert_eq!(Step::from(retry()).name(), "retry");
//! assert_eq!(retry().number(1), Step::from(retry()).number(1));
//! ```

mod around;
mod backstop;
mod circuit_breaker;
mod inbox;
mod rate_limit;
mod retry;
mod retry_inline;
mod timeout;

pub(super) use around::Around;
pub(super) use backstop::Backstop;
pub use backstop::DeferOnError;
pub use circuit_breaker::CircuitBreaker;
pub use inbox::Inbox;
pub use rate_limit::RateLimit;
pub use retry::Retry;
pub use retry_inline::RetryInline;
pub(super) use timeout::Timeout;

use super::{Step, chain::Inner, step::Kind};
use crate::cx::Cx;
use dwell_core::BoxFuture;
use dwell_engine::Verdict;

/// The behaviour of a step.
pub(crate) trait Layer: Send + Sync {
    /// Runs `inner` any number of times, and returns the verdict.
    fn run(&self, cx: &Cx, inner: Inner) -> BoxFuture<'static, Verdict>;

    /// Returns whether the layer runs `inner` first, and does nothing if that succeeds at once.
    fn is_lazy(&self) -> bool {
        false
    }
}

/// Converts each step with options into a [`Step`], and adds its method `number`.
macro_rules! numbered {
    ($($step:ident => $kind:expr;)*) => {$(
        impl From<$step> for Step {
            fn from(step: $step) -> Self {
                let kind: fn($step) -> Kind = $kind;
                Self::from(kind(step))
            }
        }

        impl $step {
            /// Sets the position of the step: lower numbers are further out. Number all steps of a
            /// pipeline or none.
            ///
            /// ```
            /// # use dwell::{Next, Pipeline, Step, prelude::*};
            /// # use std::{sync::atomic::{AtomicU32, Ordering::Relaxed}, time::Duration};
            /// # #[derive(Command, Serialize, Deserialize)]
            /// # #[message(name = "call")]
            /// # struct Call;
            /// static SEEN: AtomicU32 = AtomicU32::new(0);
            /// let count = Step::around("count", |_: Cx, next: Next| async move {
            ///     SEEN.fetch_add(1, Relaxed);
            ///     next.run().await
            /// });
            /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            /// let pipeline = Pipeline::new(async |_: Call| Err::<(), _>("unavailable"))
            ///     .step(count.number(3))
            ///     .step(Step::retry_inline().max_retries(2).number(2))
            ///     .step(Step::reject_on_error().number(1));
            /// # let t = dwell::testing::start(Bus::builder().handle(pipeline)).await.unwrap();
            /// # t.send(Call).await.unwrap();
            /// # t.advance(Duration::from_secs(5)).await;
            /// assert_eq!(SEEN.load(Relaxed), 3, "each attempt passes the innermost step");
            /// assert_eq!(
            ///     t.errors::<Call>(),
            ///     ["unavailable"],
            ///     "the outermost step saw only the last failure"
            /// );
            /// # });
            /// ```
            #[must_use]
            pub fn number(self, number: i32) -> Step {
                Step::from(self).number(number)
            }
        }
    )*};
}

numbered! {
    DeferOnError => |step| Kind::Backstop(Backstop::Defer(step));
    Retry => Kind::Retry;
    RetryInline => Kind::RetryInline;
    CircuitBreaker => Kind::CircuitBreaker;
    RateLimit => Kind::RateLimit;
    Inbox => Kind::Inbox;
}
