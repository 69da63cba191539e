//! Custom steps.

use super::{
    super::{Next, chain::Inner},
    Layer,
};
use crate::{cx::Cx, failure::Failure};
use dwell_core::{BoxFuture, Text};
use dwell_engine::{Verdict, or_panic};
use futures_util::FutureExt;
use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
};

type Function = dyn Fn(Cx, Next) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync;

#[derive(Clone)]
pub(in super::super) struct Around {
    name: Text,
    function: Arc<Function>,
}

impl Around {
    pub(in super::super) fn new<F, R>(name: Text, function: F) -> Self
    where
        F: Fn(Cx, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        Self { name, function: Arc::new(move |cx, next| Box::pin(function(cx, next))) }
    }

    pub(in super::super) fn name(&self) -> &str {
        &self.name
    }
}

impl PartialEq for Around {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.function, &other.function)
    }
}

impl fmt::Debug for Around {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Around({})", self.name)
    }
}

impl Layer for Around {
    fn run(&self, cx: &Cx, inner: Inner) -> BoxFuture<'static, Verdict> {
        let result = Arc::new(Mutex::new(None));
        let next = Next::new(cx.clone(), inner, result.clone());
        let (function, cx) = (self.function.clone(), cx.clone());
        let run = async move {
            match function(cx, next).await {
                Ok(()) => {
                    Verdict::Ack { result: result.lock().unwrap_or_else(PoisonError::into_inner).take() }
                }
                Err(failure) => failure.into_verdict(),
            }
        };
        // A panic of the step is a failure, like one of the handler, and the outer steps process
        // it.
        Box::pin(AssertUnwindSafe(run).catch_unwind().map(or_panic))
    }
}
