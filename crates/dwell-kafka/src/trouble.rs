//! What the client library says by the way: its log, and the errors that belong to no call.

use dwell_core::{Error, ErrorKind};
use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel as Level,
    consumer::ConsumerContext,
    error::{KafkaError, RDKafkaErrorCode as Code},
};
use std::sync::{Arc, Mutex, PoisonError};

/// Hears what the library says. A failed call often knows only that time ran out; why, was said here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble(Arc<Mutex<Option<(Code, String)>>>);

impl Trouble {
    /// Remembers an error that belongs to no call.
    pub(crate) fn heard(&self, error: &KafkaError) {
        if let Some(code) = error.rdkafka_error_code() {
            self.remember(code, code.to_string());
        }
    }

    /// Whether trying again cannot help: we are not let in.
    pub(crate) fn is_hopeless(&self) -> bool {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*heard, Some((Code::Authentication | Code::SaslAuthenticationFailed, _)))
    }

    fn remember(&self, code: Code, reason: String) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // That nobody answers follows from the reason, and comes after it.
        if heard.is_none() || !matches!(code, Code::AllBrokersDown | Code::BrokerTransportFailure) {
            *heard = Some((code, reason));
        }
    }

    /// The error of a call, with the reason that was heard since, if there is a better one.
    pub(crate) fn explain(&self, what: &str, error: Error) -> Error {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some((code, reason)) = heard.filter(|_| error.is_retryable()) else { return error };
        let (kind, advice) = match code {
            Code::Authentication | Code::SaslAuthenticationFailed => {
                (ErrorKind::Denied, "check user, password and `sasl`")
            }
            Code::SSL => (ErrorKind::Unavailable, "check `tls`, `ca` and `certificate`"),
            // A broker that does not take our certificate says so after we believe to be connected, and hangs up.
            _ if reason.contains("SSL routines") => {
                (ErrorKind::Unavailable, "check `tls`, `ca` and `certificate`")
            }
            _ => (ErrorKind::Unavailable, "check the address, and that a broker runs there"),
        };
        Error::new(kind, format!("Kafka cannot {what}: {reason} ({advice})"))
    }
}

impl ClientContext for Trouble {
    fn log(&self, level: Level, fac: &str, message: &str) {
        match level {
            Level::Emerg | Level::Alert | Level::Critical => tracing::error!(fac, "{message}"),
            Level::Error | Level::Warning => tracing::warn!(fac, "{message}"),
            _ => tracing::debug!(fac, "{message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "the Kafka client reports");
        let Some(code) = error.rdkafka_error_code() else { return };
        self.remember(code, reason.to_owned());
    }
}

impl ConsumerContext for Trouble {}
