//! The work of a pump: selects the pipeline by the type of the message.

use crate::{bus::WeakBus, cx::Cx, pipeline::Chain, telemetry};
use dwell_core::{BoxFuture, Message, Text};
use dwell_engine::{Begun, BlockingHandler, BlockingRun, Context, Handler, Surround, Verdict, Work};
use std::{collections::BTreeMap, sync::Arc, task::Context as TaskContext};

/// The pipelines of one subscription, by type name.
pub(crate) struct Dispatch {
    bus: WeakBus,
    chains: BTreeMap<Text, Arc<Chain>>,
}

impl Dispatch {
    pub(crate) fn work(bus: WeakBus, chains: BTreeMap<Text, Arc<Chain>>) -> Work {
        let blocks = chains.values().any(|chain| chain.is_blocking());
        let dispatch = Arc::new(Self { bus, chains });
        match blocks {
            true => Work::Surrounded(dispatch.clone(), dispatch),
            false => Work::Async(dispatch),
        }
    }

    fn find(&self, message: Message, context: Context) -> Result<(&Arc<Chain>, Cx), Verdict> {
        let chain = self.chains.get(&*message.kind).ok_or(Verdict::Unknown)?;
        let bus = self.bus.upgrade().ok_or_else(|| Verdict::Release("the bus has stopped".into()))?;
        Ok((chain, Cx::new(bus, message, context)))
    }
}

impl Handler for Dispatch {
    fn begin(&self, message: Message, context: Context, task: &mut TaskContext<'_>) -> Begun {
        match self.find(message, context) {
            Ok((chain, cx)) => match telemetry::span(&cx) {
                Some(span) => Begun::of(telemetry::in_span(span, || chain.run(&cx, None)), task),
                None => chain.begin(&cx, task),
            },
            Err(verdict) => Begun::Done(verdict),
        }
    }
}

impl Surround for Dispatch {
    fn surround(
        &self,
        message: Message,
        context: Context,
        inner: BlockingRun,
    ) -> BoxFuture<'static, Verdict> {
        match self.find(message, context) {
            Ok((chain, cx)) => match telemetry::span(&cx) {
                Some(span) => telemetry::in_span(span, || chain.run(&cx, Some(inner))),
                None => chain.run(&cx, Some(inner)),
            },
            Err(verdict) => dwell_core::ready(verdict),
        }
    }
}

impl BlockingHandler for Dispatch {
    fn handle(&self, message: Message, context: Context) -> Verdict {
        match self.find(message, context) {
            Ok((chain, cx)) => {
                telemetry::on_thread(&cx);
                chain.run_blocking(&cx)
            }
            Err(verdict) => verdict,
        }
    }
}
