//! The trace of a message, from the W3C header `traceparent`.

use crate::raw::Message;
use dwell_core::{Headers, LeaseId};
use dwell_engine::Context;
use std::fmt;

/// Name of the header with the trace context.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// Headers that are passed on with it unchanged.
pub(crate) const COMPANIONS: [&str; 2] = ["tracestate", "baggage"];

/// A position in a trace. A message without one starts a new trace, with an id derived from the
/// message id. All messages that follow from it share this trace id, with or without a tracing
/// system.
///
/// ```
/// use dwell::TraceContext;
///
/// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let trace = TraceContext::parse(header).unwrap();
/// assert_eq!(trace.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
/// assert_eq!(trace.to_string(), header);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The id of the trace.
    pub trace_id: u128,
    /// The id of the span.
    pub span_id: u64,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl TraceContext {
    /// Parses a `traceparent` header. Returns `None` if it is malformed; a new trace then starts.
    ///
    /// ```
    /// use dwell::TraceContext;
    ///
    /// assert_eq!(TraceContext::parse("not a trace"), None);
    /// ```
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |part: &str, length| {
            part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        // Version 00 has exactly four parts. Later versions may have more.
        let is_known = version == "00" && parts.next().is_none();
        if !(is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2))
            || version == "ff"
            || version == "00" && !is_known
        {
            return None;
        }
        let context = Self {
            trace_id: u128::from_str_radix(trace, 16).ok()?,
            span_id: u64::from_str_radix(span, 16).ok()?,
            sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        };
        (context.trace_id != 0 && context.span_id != 0).then_some(context)
    }

    /// Returns the trace context of the sender, if the headers contain one.
    pub(crate) fn of_headers(headers: &Headers) -> Option<Self> {
        headers.get_text(TRACEPARENT).and_then(Self::parse)
    }

    /// Returns the trace context of one run. It is the same for each call, and differs between
    /// attempts.
    pub(crate) fn of_run(message: &Message, context: &Context) -> Self {
        let sender = Self::of_headers(&message.headers);
        let trace_id = sender.map_or_else(|| hash(&[message.id.0.as_bytes()]), |sender| sender.trace_id);
        // The position distinguishes deliveries: on a log, all deliveries of an assignment have the
        // same fence.
        let LeaseId { position, fence } = context.lease;
        let (position, fence) = (position.to_le_bytes(), fence.to_le_bytes());
        let run = hash(&[message.id.0.as_bytes(), context.place.subscription.as_bytes(), &position, &fence]);
        let span_id = ((run >> 64) as u64 ^ run as u64).max(1);
        Self { trace_id: trace_id.max(1), span_id, sampled: sender.is_some_and(|sender| sender.sampled) }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// Computes FNV-1a over all parts, each preceded by its length.
pub(crate) fn hash(parts: &[&[u8]]) -> u128 {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for part in parts {
        for byte in (part.len() as u64).to_le_bytes().iter().chain(*part) {
            hash = (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_headers_are_refused() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(TraceContext::parse(good).is_some());
        assert!(TraceContext::parse(&good.replace("00-4", "cc-4").replace("-01", "-01-more")).is_some());
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-+0f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }
}
