//! The trace that a message takes with it when it is sent.

#[cfg(feature = "otel")]
use super::otel;
use crate::{
    sending::{Draft, Sent},
    trace::{COMPANIONS, TRACEPARENT},
};
use dwell_core::Result;
use tracing::Span;

/// A send on its way, and the span that it is in: none, unless the feature `otel` is on and somebody looks.
pub(crate) struct Departure(Span);

impl Departure {
    /// Writes the trace into the message: the current span's where that is traced, else that of the run that sends it. A
    /// `traceparent` that the sender gave stands as it is.
    pub(crate) fn of(draft: &mut Draft, is_alone: bool) -> Self {
        let from = draft.from.as_ref();
        let Ok(envelope) = &mut draft.envelope else { return Self(Span::none()) };
        #[cfg(feature = "otel")]
        let span = otel::sending_span(envelope, from, is_alone);
        #[cfg(not(feature = "otel"))]
        let (span, _) = (Span::none(), is_alone);

        // Most sends are part of no trace, and their messages are not touched.
        let message = &mut envelope.message;
        if message.headers.get(TRACEPARENT).is_some() {
            return Self(span);
        }
        #[cfg(feature = "otel")]
        if !span.is_none() && otel::inject(&span, &mut message.headers) {
            return Self(span);
        }
        if let Some(cx) = from {
            let headers = &mut message.headers;
            headers.append(TRACEPARENT, cx.trace().to_string());
            for name in COMPANIONS {
                for value in cx.headers().get_all(name) {
                    headers.append(name, value.clone());
                }
            }
        }
        Self(span)
    }

    /// What is done for it belongs in here, if there is one.
    pub(crate) fn span(&self) -> Option<Span> {
        (!self.0.is_none()).then(|| self.0.clone())
    }

    /// Says how it ended.
    pub(crate) fn ended(self, result: &Result<Sent>) {
        #[cfg(feature = "otel")]
        otel::end_sending(&self.0, result);
        #[cfg(not(feature = "otel"))]
        let _ = result;
    }
}

/// The span around a batch.
pub(crate) fn batch_span(messages: usize) -> Span {
    #[cfg(feature = "otel")]
    return otel::batch_span(messages);
    #[cfg(not(feature = "otel"))]
    {
        let _ = messages;
        Span::none()
    }
}
