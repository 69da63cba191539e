//! Handlers: async or blocking functions from a typed message to a result.

use crate::{codec::decode, cx::Cx, failure::Ending, message::Message, pipeline::Pipeline};
use dwell_core::BoxFuture;
use dwell_engine::{Verdict, or_panic};
use futures_util::FutureExt;
use std::{
    any::{TypeId, type_name},
    panic::AssertUnwindSafe,
    sync::Arc,
};

/// A value that the builder accepts as a handler:
///
/// * an `async fn` or a blocking `fn` whose parameters are a message and then up to six of
///   [`State`](crate::State), [`Cx`] and other [`FromCx`](crate::FromCx) types, and that returns
///   `()` or a `Result`;
/// * a function with `#[handler]`;
/// * a [`Pipeline`].
///
/// The type parameter `Marker` only distinguishes these cases.
///
/// ```
/// use dwell::{IntoHandler, prelude::*};
///
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "greet")]
/// # struct Greet { name: String }
/// async fn asynchronous(message: Greet) {}
/// fn blocking(message: Greet, cx: Cx) -> Result<(), std::io::Error> { Ok(()) }
/// #[handler]
/// #[timeout("10s")]
/// async fn with_steps(message: Greet) -> Result<(), Failure> { Ok(()) }
///
/// fn steps_of<Marker>(handler: impl IntoHandler<Marker>) -> usize {
///     handler.into_handler().steps().len()
/// }
///
/// assert_eq!([steps_of(asynchronous), steps_of(blocking), steps_of(with_steps)], [0, 0, 1]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    note = "a handler is an `async fn` or a blocking `fn`: a message first, by value, then `State<T>` or `Cx`, returning nothing or `Result<(), E>`",
    note = "its error is `Failure`, or any type that `?` converts into one; its future must be `Send`",
    note = "a function that returns a value is a job handler: `.job(function)`, with steps by `Pipeline::job(function).step(…)`",
    note = "with `#[handler]`, the compiler error names the unsuitable part"
)]
pub trait IntoHandler<Marker> {
    /// The type of message that it handles.
    type Message: Message;

    /// Returns the handler with the steps around it.
    fn into_handler(self) -> Pipeline<Self::Message>;
}

/// The innermost part of a pipeline: the function.
#[derive(Clone)]
pub(crate) enum Target {
    Async(Arc<AsyncFunction>),
    Blocking(Arc<BlockingFunction>),
}

type AsyncFunction = dyn Fn(&Cx) -> BoxFuture<'static, Verdict> + Send + Sync;
type BlockingFunction = dyn Fn(&Cx) -> Verdict + Send + Sync;

/// A function, and the shared state that it requires.
pub(crate) struct Function {
    pub(crate) target: Target,
    pub(crate) name: &'static str,
    pub(crate) needs: Vec<(TypeId, &'static str)>,
}

/// Marks async functions.
#[derive(Debug)]
pub struct Async;
/// Marks functions with `#[handler]`, which return their pipeline.
#[derive(Debug)]
pub struct Attributed;
/// Marks blocking functions.
#[derive(Debug)]
pub struct Blocking;

impl Function {
    /// Creates an async function with the name of `F`. It turns a panic into a failure.
    pub(crate) fn new_async<F, R>(function: impl Fn(Cx) -> R + Send + Sync + 'static) -> Self
    where
        R: Future<Output = Verdict> + Send + 'static,
    {
        let target = Target::Async(Arc::new(move |cx: &Cx| {
            Box::pin(AssertUnwindSafe(function(cx.clone())).catch_unwind().map(or_panic))
        }));
        Self { target, name: type_name::<F>(), needs: vec![] }
    }

    /// Creates a blocking function with the name of `F`.
    pub(crate) fn new_blocking<F>(function: impl Fn(&Cx) -> Verdict + Send + Sync + 'static) -> Self {
        Self { target: Target::Blocking(Arc::new(function)), name: type_name::<F>(), needs: vec![] }
    }

    /// Adds a required type of shared state, if any.
    pub(crate) fn needs(mut self, need: Option<(TypeId, &'static str)>) -> Self {
        self.needs.extend(need);
        self
    }
}

/// Decodes the message of a run.
pub(crate) fn read<M: Message>(cx: &Cx) -> Result<M, Verdict> {
    let message = cx.message();
    decode::<M::Codec, M>(&message.content_type, &message.body).map_err(|text| Verdict::Invalid(text.into()))
}

/// Implements `$into::$method` for functions that take a `$message` and return an `$ending`.
/// Handlers of messages and of jobs share this macro because they differ in nothing else.
macro_rules! handlers {
    ($into:ident::$method:ident, $message:ident, $ending:ident) => {
        $crate::handler::handlers!(@functions $into::$method, $message, $ending;);
        $crate::handler::handlers!(@functions $into::$method, $message, $ending; A);
        $crate::handler::handlers!(@functions $into::$method, $message, $ending; A, B);
        $crate::handler::handlers!(@functions $into::$method, $message, $ending; A, B, C);
        $crate::handler::handlers!(@functions $into::$method, $message, $ending; A, B, C, D);
        $crate::handler::handlers!(@functions $into::$method, $message, $ending; A, B, C, D, E);
        $crate::handler::handlers!(@functions $into::$method, $message, $ending; A, B, C, D, E, G);
    };
    (@functions $into:ident::$method:ident, $message:ident, $ending:ident; $($part:ident),*) => {
        #[allow(non_snake_case)]
        impl<F, R, M, $($part,)*> $into<($crate::handler::Async, M, $($part,)*)> for F
        where
            F: Fn(M, $($part,)*) -> R + Send + Sync + 'static,
            R: Future<Output: $ending> + Send + 'static,
            M: $message,
            $($part: $crate::extract::FromCx,)*
        {
            type Message = M;

            fn $method(self) -> $crate::pipeline::Pipeline<M> {
                let function = std::sync::Arc::new(self);
                let function = $crate::handler::Function::new_async::<F, _>(move |cx| {
                    let function = function.clone();
                    // Everything runs inside the future, so that a panic before the user's own
                    // future is also caught.
                    async move {
                        let message = match $crate::handler::read::<M>(&cx) {
                            Ok(message) => message,
                            Err(verdict) => return verdict,
                        };
                        $(let $part = match $part::from_cx(&cx) {
                            Ok(part) => part,
                            Err(failure) => return failure.into_verdict(),
                        };)*
                        function(message, $($part,)*).await.verdict(&cx)
                    }
                });
                $crate::pipeline::Pipeline::of(function$(.needs($part::needs()))*)
            }
        }

        #[allow(non_snake_case)]
        impl<F, R, M, $($part,)*> $into<($crate::handler::Blocking, M, $($part,)*)> for F
        where
            F: Fn(M, $($part,)*) -> R + Send + Sync + 'static,
            R: $ending,
            M: $message,
            $($part: $crate::extract::FromCx,)*
        {
            type Message = M;

            fn $method(self) -> $crate::pipeline::Pipeline<M> {
                let function = $crate::handler::Function::new_blocking::<F>(move |cx| {
                    let message = match $crate::handler::read::<M>(cx) {
                        Ok(message) => message,
                        Err(verdict) => return verdict,
                    };
                    $(let $part = match $part::from_cx(cx) {
                        Ok(part) => part,
                        Err(failure) => return failure.into_verdict(),
                    };)*
                    self(message, $($part,)*).verdict(cx)
                });
                $crate::pipeline::Pipeline::of(function$(.needs($part::needs()))*)
            }
        }
    };
}
pub(crate) use handlers;

handlers!(IntoHandler::into_handler, Message, Ending);

// These implementations are not generated by the macro, because compiler errors about an unsuitable
// function point at them.

impl<M: Message> IntoHandler<Pipeline<M>> for Pipeline<M> {
    type Message = M;

    fn into_handler(self) -> Self {
        self
    }
}

impl<F, M> IntoHandler<Attributed> for F
where
    F: FnOnce() -> Pipeline<M>,
    M: Message,
{
    type Message = M;

    fn into_handler(self) -> Pipeline<M> {
        self()
    }
}
