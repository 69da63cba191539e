//! The time limit of the inner part of a pipeline.

use super::{super::chain::Inner, Layer};
use crate::cx::Cx;
use dwell_core::{BoxFuture, format_duration};
use dwell_engine::{Verdict, drop_caught};
use std::{future::poll_fn, task::Poll, time::Duration};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Timeout(pub(in super::super) Duration);

impl Layer for Timeout {
    fn is_lazy(&self) -> bool {
        true
    }

    fn run(&self, cx: &Cx, inner: Inner) -> BoxFuture<'static, Verdict> {
        let (Self(after), cx) = (*self, cx.clone());
        let mut run = Some(inner.run(&cx));
        // Created once the handler is pending. A handler that completes at the first poll has no
        // timer.
        let mut timer = None;
        Box::pin(poll_fn(move |context| {
            if let Some(run) = &mut run
                && let Poll::Ready(verdict) = run.as_mut().poll(context)
            {
                return Poll::Ready(verdict);
            }
            let timer = timer.get_or_insert_with(|| cx.clock().sleep(after));
            timer.as_mut().poll(context).map(|()| {
                let mut text = format!(
                    "the handler did not finish within the step `timeout` of {}",
                    format_duration(after)
                );
                // Dropped here, so that a panic of its destructor is caught.
                if let Some(panic) = run.take().and_then(drop_caught) {
                    text = format!("{text}, and panicked while it was dropped: {panic}");
                }
                Verdict::fail(text)
            })
        }))
    }
}
