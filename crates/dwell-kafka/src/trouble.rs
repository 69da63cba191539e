//! Errors and log lines of librdkafka that belong to no call.

use dwell_core::{Clock, Error, ErrorKind};
use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel as Level,
    consumer::ConsumerContext,
    error::{KafkaError, RDKafkaErrorCode as Code},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long the same log line is not repeated. While no broker is available, librdkafka retries
/// several times a second.
const QUIET: Duration = Duration::from_secs(10);

/// Logs the errors of librdkafka and remembers the last one. A failed call often reports only a
/// timeout; the reason arrives here.
#[derive(Clone)]
pub(crate) struct Trouble(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    heard: Mutex<Option<(Code, String)>>,
    /// Lines that were logged recently, and when.
    said: Mutex<BTreeMap<String, Duration>>,
}

impl Trouble {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { clock, heard: Mutex::default(), said: Mutex::default() }))
    }

    /// Returns whether a line was not logged recently, and notes that it is logged now.
    pub(crate) fn is_news(&self, what: &str) -> bool {
        let (now, mut said) = (self.0.clock.elapsed(), lock(&self.0.said));
        said.retain(|_, at| now.saturating_sub(*at) < QUIET);
        // The suffix `(after 3ms in state CONNECT)` changes each time.
        let what = what.split(" (after ").next().unwrap_or(what);
        let is_news = !said.contains_key(what);
        if is_news {
            said.insert(what.to_owned(), now);
        }
        is_news
    }

    /// Remembers an error that belongs to no call.
    pub(crate) fn heard(&self, error: &KafkaError) {
        if let Some(code) = error.rdkafka_error_code() {
            self.remember(code, code.to_string());
        }
    }

    /// Returns whether a retry cannot help, because the brokers refuse the credentials.
    pub(crate) fn is_hopeless(&self) -> bool {
        let heard = lock(&self.0.heard);
        matches!(*heard, Some((Code::Authentication | Code::SaslAuthenticationFailed, _)))
    }

    fn remember(&self, code: Code, reason: String) {
        let mut heard = lock(&self.0.heard);
        // These two follow from the actual reason and arrive after it.
        if heard.is_none() || !matches!(code, Code::AllBrokersDown | Code::BrokerTransportFailure) {
            *heard = Some((code, reason));
        }
    }

    /// Returns the error of a call, with the reason that was reported since, if that says more.
    pub(crate) fn explain(&self, what: &str, error: Error) -> Error {
        let heard = lock(&self.0.heard).clone();
        let Some((code, reason)) = heard.filter(|_| error.is_retryable()) else { return error };
        let (kind, advice) = match code {
            Code::Authentication | Code::SaslAuthenticationFailed => {
                (ErrorKind::Denied, "check the user, the password and `sasl`")
            }
            Code::SSL => (ErrorKind::Unavailable, "check `tls`, `ca` and `certificate`"),
            // A broker that refuses the client certificate closes the connection after the
            // handshake.
            _ if reason.contains("SSL routines") => {
                (ErrorKind::Unavailable, "check `tls`, `ca` and `certificate`")
            }
            _ if reason.contains("SSL connection closed by peer") => {
                (ErrorKind::Unavailable, "check `tls`: the broker may not speak TLS at this port")
            }
            _ if reason.contains("connecting to a SSL listener?") => {
                (ErrorKind::Unavailable, "check `tls`: the broker may require TLS at this port")
            }
            _ => (ErrorKind::Unavailable, "check the address, and that a broker runs there"),
        };
        Error::new(kind, format!("Kafka cannot {what}: {reason} ({advice})"))
    }
}

impl ClientContext for Trouble {
    fn log(&self, level: Level, fac: &str, message: &str) {
        // Failed connections are reported to `error` as well, and librdkafka retries while a
        // coordinator is loading.
        let is_said = matches!(level, Level::Error) && fac == "FAIL" || message.contains("load in progress");
        match level {
            Level::Emerg | Level::Alert | Level::Critical => tracing::error!(fac, "{message}"),
            Level::Error | Level::Warning if !is_said && self.is_news(message) => {
                tracing::warn!(fac, "{message}");
            }
            _ => tracing::debug!(fac, "{message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        // The end of a partition is reported in this way.
        if code == Code::PartitionEOF {
            return;
        }
        self.remember(code, reason.to_owned());
        // This follows from the errors that were logged for each broker.
        if code != Code::AllBrokersDown && self.is_news(reason) {
            tracing::warn!(%error, reason, "Kafka client reports an error");
        } else {
            tracing::debug!(%error, reason, "Kafka client reports an error");
        }
    }
}

impl ConsumerContext for Trouble {}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
