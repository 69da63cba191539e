//! The trace that a message belongs to, as the W3C header `traceparent` carries it.

use crate::raw::Message;
use dwell_core::{Headers, LeaseId};
use dwell_engine::Context;
use std::fmt;

/// `traceparent`, on the wire.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// Carried along with it, unread.
pub(crate) const COMPANIONS: [&str; 2] = ["tracestate", "baggage"];

/// A place in a trace. A message that came without one begins a trace of its own, named by its id, so that every
/// message that follows from it is found by one name, with or without a tracing system.
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
    /// Of the whole trace.
    pub trace_id: u128,
    /// Of this place in it.
    pub span_id: u64,
    /// Whether somebody records it.
    pub sampled: bool,
}

impl TraceContext {
    /// Reads a `traceparent`. `None` if it is malformed: then a new trace begins.
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
        // Version 00 has exactly four parts; later ones may have more.
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

    /// The place that a message was sent from, if it says so.
    pub(crate) fn of_headers(headers: &Headers) -> Option<Self> {
        headers.get_text(TRACEPARENT).and_then(Self::parse)
    }

    /// The place of one run: the same whoever asks, and another for each attempt.
    pub(crate) fn of_run(message: &Message, context: &Context) -> Self {
        let sender = Self::of_headers(&message.headers);
        let trace_id = sender.map_or_else(|| hash(&[message.id.0.as_bytes()]), |sender| sender.trace_id);
        // Of one delivery: on a log, all deliveries of one assignment have the same fence.
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

/// FNV-1a over all parts, each with its length.
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
    fn what_is_not_a_traceparent_is_none() {
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
