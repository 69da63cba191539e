//! Reports of the handlers about their runs.

use dwell_core::{Address, Clock, Message, MessageId, Timestamp};
use dwell_engine::{Context, Verdict};
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc::UnboundedSender;

/// A report of a handler.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) what: What,
    /// Time of the monotonic clock.
    pub(super) at: Duration,
    /// Time of the wall clock.
    pub(super) now: Timestamp,
    pub(super) place: Address,
    pub(super) id: MessageId,
    /// Number of the run of this message, from 1.
    pub(super) run: u32,
    /// Due time of the message that the transport reports.
    pub(super) due: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Started,
    Handled,
}

/// Sends the reports of the handlers.
#[derive(Clone)]
pub(super) struct Reporter {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) to: UnboundedSender<Told>,
}

/// One run of a handler.
pub(super) struct Run {
    reporter: Reporter,
    told: Told,
}

impl Reporter {
    pub(super) fn start(&self, message: &Message, context: &Context) -> Run {
        let told = Told {
            what: What::Started,
            at: self.clock.elapsed(),
            now: self.clock.now(),
            place: Address::subscription(context.place.topic.clone(), context.place.subscription.clone()),
            id: message.id.clone(),
            run: message.attempts.handled + 1,
            due: context.due,
        };
        self.tell(told.clone());
        Run { reporter: self.clone(), told }
    }

    /// Sends a report. The tour may have ended before a hung handler returns.
    fn tell(&self, told: Told) {
        let _ = self.to.send(told);
    }
}

impl Run {
    /// Reports that the handler succeeded.
    pub(super) fn handled(self) -> Verdict {
        let Self { reporter, told } = self;
        let (at, now) = (reporter.clock.elapsed(), reporter.clock.now());
        reporter.tell(Told { what: What::Handled, at, now, ..told });
        Verdict::ACK
    }
}
