//! Converts errors of librdkafka to [`Error`]: what failed, on what, and whether a retry may help.

use crate::provision::MAKE_IT;
use dwell_core::{Error, ErrorKind};
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode as Code},
    types::RDKafkaRespErr,
};

/// Converts an error of librdkafka. `what` is the operation that failed.
pub(crate) fn fault(what: &str, error: KafkaError) -> Error {
    let Some(code) = error.rdkafka_error_code() else {
        let kind = match &error {
            KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_) => ErrorKind::Config,
            KafkaError::AdminOpCreation(_) | KafkaError::Subscription(_) | KafkaError::Nul(_) => {
                ErrorKind::Invalid
            }
            KafkaError::Canceled => ErrorKind::Closed,
            _ => ErrorKind::Unavailable,
        };
        // The value of a property may be a secret, so only its name is shown.
        let why = match &error {
            KafkaError::ClientConfig(_, why, name, _) => format!("the property `{name}`: {why}"),
            KafkaError::ClientCreation(why) if why.contains("ssl.") => {
                format!("{why} (check `ca`, `certificate`, `private_key` and `key_password`)")
            }
            other => other.to_string(),
        };
        return Error::new(kind, format!("Kafka cannot {what}: {why}"));
    };
    of_code(what, code)
}

/// Converts an error code. `what` is the operation that failed.
pub(crate) fn of_code(what: &str, code: Code) -> Error {
    let (kind, advice) = match code {
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicId => (ErrorKind::NotFound, MAKE_IT),
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => (
            ErrorKind::TooLarge,
            "make it smaller, or raise `max_record` here and `max.message.bytes` of the topic",
        ),
        Code::InvalidRecord => {
            (ErrorKind::Unsupported, "the topic refuses this record: a compacted topic requires a key")
        }
        Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed => (ErrorKind::Denied, "grant this user the permission"),
        Code::Authentication | Code::SaslAuthenticationFailed => {
            (ErrorKind::Denied, "check the user, the password and `sasl`")
        }
        Code::SSL => (ErrorKind::Unavailable, "check `tls`, `ca` and `certificate`"),
        Code::MessageTimedOut
        | Code::OperationTimedOut
        | Code::RequestTimedOut
        | Code::TimedOutQueue
        | Code::PurgeInflight => (ErrorKind::Timeout, "it may or may not have happened"),
        Code::QueueFull => (ErrorKind::Full, "too many records are in flight: try again"),
        Code::TopicAlreadyExists => (ErrorKind::Conflict, "it already exists"),
        Code::InvalidReplicationFactor => {
            (ErrorKind::Config, "set `replication` to at most the number of brokers")
        }
        Code::InvalidTopic | Code::InvalidConfig | Code::PolicyViolation | Code::InvalidPartitions => {
            (ErrorKind::Config, "the broker refuses these settings: change them")
        }
        Code::InvalidTransactionTimeout => {
            (ErrorKind::Config, "set `transactions` to at most the broker's `transaction.max.timeout.ms`")
        }
        Code::KafkaStorageError => (ErrorKind::StorageFull, "check the broker's disk"),
        _ => (ErrorKind::Unavailable, "try again when the broker is available"),
    };
    Error::new(kind, format!("Kafka cannot {what}: {code} ({advice})"))
}

/// Converts the error code of a response.
pub(crate) fn code(error: RDKafkaRespErr) -> Code {
    error.into()
}

/// Returns whether the code means that the topic does not exist.
pub(crate) fn is_unknown_topic(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicId
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_errors_are_retryable_and_message_errors_are_not() {
        let send = |code| fault("send to `orders`", KafkaError::MessageProduction(code));
        assert_eq!(send(Code::UnknownTopicOrPartition).kind(), ErrorKind::NotFound);
        assert!(send(Code::UnknownTopicOrPartition).to_string().contains("on_missing"));
        assert!(send(Code::MessageSizeTooLarge).is_of_the_message());
        assert!(send(Code::InvalidRecord).is_of_the_message());
        assert_eq!(send(Code::PurgeInflight).kind(), ErrorKind::Timeout);
        assert!(send(Code::MessageTimedOut).is_retryable() && send(Code::NotEnoughReplicas).is_retryable());
        assert!(!send(Code::TopicAuthorizationFailed).is_of_the_message());
        assert!(send(Code::SaslAuthenticationFailed).to_string().contains("password"));
    }
}
