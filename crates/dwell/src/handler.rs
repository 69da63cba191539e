//! Handlers: plain functions, async or blocking, from a typed message to a result.

use crate::{codec::decode, cx::Cx, extract::FromCx, failure::Ending, message::Message, pipeline::Pipeline};
use dwell_core::BoxFuture;
use dwell_engine::{Verdict, or_panic};
use futures_util::FutureExt;
use std::{
    any::{TypeId, type_name},
    panic::AssertUnwindSafe,
    sync::Arc,
};

/// Whatever can be given to the builder as a handler: an `async fn` or a blocking `fn` from a message (and then what it
/// needs: [`State`](crate::State), [`Cx`]) to nothing or to a result; a function with `#[handler]`; a [`Pipeline`].
/// `Marker` only tells these apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    note = "a handler is an `async fn` or a blocking `fn`: a message first, then `State<T>` or `Cx`, returning nothing or `Result<(), E>`",
    note = "its error is `Failure`, or anything that `?` turns into one; its future must be `Send`"
)]
pub trait IntoHandler<Marker> {
    /// What it handles.
    type Message: Message;

    /// The handler with the steps around it.
    fn into_handler(self) -> Pipeline<Self::Message>;
}

/// Where a pipeline ends: the function itself.
#[derive(Clone)]
pub(crate) enum Target {
    Async(Arc<AsyncFunction>),
    Blocking(Arc<BlockingFunction>),
}

type AsyncFunction = dyn Fn(&Cx) -> BoxFuture<'static, Verdict> + Send + Sync;
type BlockingFunction = dyn Fn(&Cx) -> Verdict + Send + Sync;

/// A function, with what it needs.
pub(crate) struct Function {
    pub(crate) target: Target,
    pub(crate) name: &'static str,
    pub(crate) needs: Vec<(TypeId, &'static str)>,
}

/// Marks async functions.
#[derive(Debug)]
pub struct Async;
/// Marks functions with `#[handler]`, which make their pipeline.
#[derive(Debug)]
pub struct Attributed;
/// Marks blocking functions.
#[derive(Debug)]
pub struct Blocking;

fn read<M: Message>(cx: &Cx) -> Result<M, Verdict> {
    let message = cx.message();
    decode::<M::Codec, M>(&message.content_type, &message.body).map_err(|text| Verdict::Invalid(text.into()))
}

macro_rules! handlers {
    ($($part:ident),*) => {
        #[allow(non_snake_case, unused_variables)]
        impl<F, R, M, $($part,)*> IntoHandler<(Async, M, $($part,)*)> for F
        where
            F: Fn(M, $($part,)*) -> R + Send + Sync + 'static,
            R: Future<Output: Ending> + Send + 'static,
            M: Message,
            $($part: FromCx,)*
        {
            type Message = M;

            fn into_handler(self) -> Pipeline<M> {
                let function = Arc::new(self);
                let target = Target::Async(Arc::new(move |cx: &Cx| {
                    let message = match read::<M>(cx) {
                        Ok(message) => message,
                        Err(verdict) => return dwell_core::ready(verdict),
                    };
                    $(let $part = match $part::from_cx(cx) {
                        Ok(part) => part,
                        Err(text) => return dwell_core::ready(Verdict::Misconfigured(text.into())),
                    };)*
                    let function = function.clone();
                    // In the future, so that a panic on the way to the user's own future is caught with all others.
                    let run = async move { function(message, $($part,)*).await.verdict() };
                    Box::pin(AssertUnwindSafe(run).catch_unwind().map(or_panic))
                }));
                let needs: Vec<Option<_>> = vec![$($part::needs(),)*];
                Pipeline::of(Function { target, name: type_name::<F>(), needs: needs.into_iter().flatten().collect() })
            }
        }

        #[allow(non_snake_case, unused_variables)]
        impl<F, R, M, $($part,)*> IntoHandler<(Blocking, M, $($part,)*)> for F
        where
            F: Fn(M, $($part,)*) -> R + Send + Sync + 'static,
            R: Ending,
            M: Message,
            $($part: FromCx,)*
        {
            type Message = M;

            fn into_handler(self) -> Pipeline<M> {
                let target = Target::Blocking(Arc::new(move |cx: &Cx| {
                    let message = match read::<M>(cx) {
                        Ok(message) => message,
                        Err(verdict) => return verdict,
                    };
                    $(let $part = match $part::from_cx(cx) {
                        Ok(part) => part,
                        Err(text) => return Verdict::Misconfigured(text.into()),
                    };)*
                    self(message, $($part,)*).verdict()
                }));
                let needs: Vec<Option<_>> = vec![$($part::needs(),)*];
                Pipeline::of(Function { target, name: type_name::<F>(), needs: needs.into_iter().flatten().collect() })
            }
        }
    };
}

handlers!();
handlers!(A);
handlers!(A, B);
handlers!(A, B, C);
handlers!(A, B, C, D);
handlers!(A, B, C, D, E);
handlers!(A, B, C, D, E, G);

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
