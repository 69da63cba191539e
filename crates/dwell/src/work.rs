//! What the pump of a subscription runs: finds the pipeline by the message's type.

use crate::{
    bus::{Bus, WeakBus},
    cx::Cx,
    pipeline::Chain,
    telemetry,
};
use dwell_core::{BoxFuture, Message, Text};
use dwell_engine::{BlockingHandler, BlockingRun, Context, Handler, Surround, Verdict, Work};
use std::{collections::BTreeMap, sync::Arc};

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

    fn find(&self, message: &Message) -> Result<(Arc<Chain>, Bus), Verdict> {
        let chain = self.chains.get(&message.kind).ok_or(Verdict::Unknown)?;
        let bus = self.bus.upgrade().ok_or_else(|| Verdict::Release("the bus is gone".into()))?;
        Ok((chain.clone(), bus))
    }

    fn run(
        &self,
        message: Message,
        context: Context,
        thread: Option<BlockingRun>,
    ) -> BoxFuture<'static, Verdict> {
        let (chain, bus) = match self.find(&message) {
            Ok(found) => found,
            Err(verdict) => return dwell_core::ready(verdict),
        };
        let cx = Cx::new(bus, message, context);
        telemetry::in_span(&cx, || chain.run(&cx, thread))
    }
}

impl Handler for Dispatch {
    fn handle(&self, message: Message, context: Context) -> BoxFuture<'static, Verdict> {
        self.run(message, context, None)
    }
}

impl Surround for Dispatch {
    fn surround(
        &self,
        message: Message,
        context: Context,
        inner: BlockingRun,
    ) -> BoxFuture<'static, Verdict> {
        self.run(message, context, Some(inner))
    }
}

impl BlockingHandler for Dispatch {
    fn handle(&self, message: Message, context: Context) -> Verdict {
        match self.find(&message) {
            Ok((chain, bus)) => {
                let cx = Cx::new(bus, message, context);
                telemetry::span(&cx).in_scope(|| chain.run_blocking(&cx))
            }
            Err(verdict) => verdict,
        }
    }
}
