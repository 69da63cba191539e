//! From a message to bytes and back.

use crate::Message;
use bytes::Bytes;
use dwell_core::{BoxError, ContentType, Error, ErrorKind, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::cell::Cell;

/// How messages are written and read. [`Json`] unless `#[message(codec = …)]` names another.
///
/// ```
/// use dwell::{Codec, prelude::*, raw::{BoxError, ContentType}};
/// use serde::de::DeserializeOwned;
///
/// /// JSON that people read.
/// struct Pretty;
///
/// impl Codec for Pretty {
///     const CONTENT_TYPE: ContentType = ContentType::JSON;
///     fn encode<T: Serialize>(message: &T, body: &mut Vec<u8>) -> Result<(), BoxError> {
///         Ok(serde_json::to_writer_pretty(body, message)?)
///     }
///     fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BoxError> {
///         serde_json::from_slice(body).map_err(|_| "this is not what it should be".into())
///     }
/// }
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "orders.placed", codec = Pretty)]
/// struct OrderPlaced { order: u64 }
///
/// let mut body = vec![];
/// Pretty::encode(&OrderPlaced { order: 42 }, &mut body).unwrap();
/// assert_eq!(body, b"{\n  \"order\": 42\n}");
/// ```
pub trait Codec: 'static {
    /// What a body in this form is called.
    const CONTENT_TYPE: ContentType;

    /// Writes a message into `body`, which is empty.
    fn encode<T: Serialize>(message: &T, body: &mut Vec<u8>) -> Result<(), BoxError>;

    /// Reads a message. Why it cannot is logged and kept with the message: it must not quote the body.
    fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BoxError>;

    /// Whether a body of this type can be read. Senders that know nothing of content types leave it open.
    ///
    /// ```
    /// use dwell::{Codec, Json};
    ///
    /// assert!(Json::reads("application/json; charset=utf-8"));
    /// assert!(Json::reads(""), "the sender does not say");
    /// assert!(!Json::reads("text/csv"));
    /// ```
    fn reads(content_type: &str) -> bool {
        if content_type == &*Self::CONTENT_TYPE {
            return true;
        }
        let plain = content_type.split(';').next().unwrap_or_default().trim();
        plain.is_empty()
            || plain.eq_ignore_ascii_case(&Self::CONTENT_TYPE)
            || plain.eq_ignore_ascii_case(&ContentType::BYTES)
    }
}

/// JSON, by `serde_json`.
///
/// ```
/// use dwell::{Codec, Json};
///
/// let mut body = vec![];
/// Json::encode(&[1, 2, 3], &mut body).unwrap();
/// assert_eq!(body, b"[1,2,3]");
/// // Why a body cannot be read never quotes it: it may hold what must stay secret.
/// let error = Json::decode::<u64>(b"\"secret\"").unwrap_err();
/// assert_eq!(error.to_string(), "invalid type: string, expected u64 at line 1 column 8");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Json;

impl Codec for Json {
    const CONTENT_TYPE: ContentType = ContentType::JSON;

    fn encode<T: Serialize>(message: &T, body: &mut Vec<u8>) -> Result<(), BoxError> {
        Ok(serde_json::to_writer(body, message)?)
    }

    fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BoxError> {
        serde_json::from_slice(body).map_err(|error| without_values(&error).into())
    }
}

/// What is wrong with a body and where, without what stands there: an error is logged, a payload never.
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if !error.is_data() {
        // That it is not JSON is said in fixed words.
        return text;
    }
    let place = format!("at line {} column {}", error.line(), error.column());
    if text.starts_with("missing field `") {
        return text;
    }
    // `invalid type: string "…", expected u64`: the kind of value, and behind the last comma what the type wants.
    let parts = text.strip_prefix("invalid type: ").and_then(|rest| rest.rsplit_once(", expected "));
    if let Some((found, expected)) = parts {
        let found = found.split(['"', '`']).next().unwrap_or_default().trim_end();
        return format!("invalid type: {found}, expected {expected}");
    }
    format!("a value that its type does not take {place}")
}

/// What is kept of a thread's buffer between two messages: one large message must not hold memory for ever.
const KEPT: usize = 64 << 10;

thread_local! {
    /// Messages are written here, and then copied to where they stay: one allocation of the right size for each.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The body of a message, or why it cannot be written. `what` is what it is, for people.
pub(crate) fn encode<M: Message>(message: &M, what: &str) -> Result<Bytes> {
    // One that writes another while it is written finds none there, and gets its own.
    let mut buffer = BUFFER.take();
    buffer.clear();
    let body = match M::Codec::encode(message, &mut buffer) {
        Ok(()) => Ok(Bytes::copy_from_slice(&buffer)),
        Err(error) => {
            let text = format!("a {what} of type `{}` could not be written: {error}", M::NAME);
            Err(Error::new(ErrorKind::Invalid, text))
        }
    };
    if buffer.capacity() <= KEPT {
        BUFFER.set(buffer);
    }
    body
}

/// The message in a body, or why it cannot be read.
pub(crate) fn decode<C: Codec, T: DeserializeOwned>(content_type: &str, body: &Bytes) -> Result<T, String> {
    if !C::reads(content_type) {
        return Err(format!("its body is {content_type}, and its type is read from {}", &*C::CONTENT_TYPE));
    }
    C::decode(body).map_err(|error| format!("its body cannot be read as {}: {error}", &*C::CONTENT_TYPE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Order {
        order: u64,
        #[serde(default)]
        state: Option<State>,
    }

    #[derive(Debug, Deserialize)]
    enum State {
        Open,
    }

    #[test]
    fn why_a_body_cannot_be_read_never_quotes_it() {
        let cases = [
            (r#"{"order": "hunter2"}"#, "invalid type: string, expected u64 at line 1 column 19"),
            (
                r#"{"order": "a\"hunter2`, expected hunter2"}"#,
                "invalid type: string, expected u64 at line 1 column 41",
            ),
            (r#"{"order": true}"#, "invalid type: boolean, expected u64 at line 1 column 14"),
            (r#"["hunter2"]"#, "invalid type: string, expected u64 at line 1 column 10"),
            (r#"{"order": -7}"#, "a value that its type does not take at line 1 column 12"),
            (r#"{"hunter2": 1}"#, "a value that its type does not take at line 1 column 10"),
            (
                r#"{"order": 1, "state": "hunter2"}"#,
                "a value that its type does not take at line 1 column 31",
            ),
            (r#"{"state": "Open"}"#, "missing field `order` at line 1 column 17"),
            ("hunter2", "expected value at line 1 column 1"),
        ];
        for (body, expected) in cases {
            assert_eq!(Json::decode::<Order>(body.as_bytes()).unwrap_err().to_string(), expected, "{body}");
        }
    }
}
