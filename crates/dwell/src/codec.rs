//! Codecs: the conversion between messages and bytes.

use crate::Message;
use bytes::Bytes;
use dwell_core::{BoxError, ContentType, Error, ErrorKind, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::cell::Cell;

/// The encoding of message bodies. The default is [`Json`]; `#[message(codec = …)]` sets another.
///
/// ```
/// use dwell::{Codec, prelude::*, raw::{BoxError, ContentType}};
/// use serde::de::DeserializeOwned;
///
/// /// JSON with indentation.
/// struct Pretty;
///
/// impl Codec for Pretty {
///     const CONTENT_TYPE: ContentType = ContentType::JSON;
///     fn encode<T: Serialize>(message: &T, body: &mut Vec<u8>) -> Result<(), BoxError> {
///         Ok(serde_json::to_writer_pretty(body, message)?)
///     }
///     fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BoxError> {
///         serde_json::from_slice(body).map_err(|_| "the body is not an order".into())
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
    /// The content type of bodies in this encoding.
    const CONTENT_TYPE: ContentType;

    /// Encodes a message into `body`, which is empty.
    fn encode<T: Serialize>(message: &T, body: &mut Vec<u8>) -> Result<(), BoxError>;

    /// Decodes a message. The error is logged and stored with the message, so it must not quote the
    /// body.
    fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BoxError>;

    /// Returns whether this codec can decode a body of the given content type. It is empty if the
    /// sender set none.
    ///
    /// ```
    /// use dwell::{Codec, Json};
    ///
    /// assert!(Json::reads("application/json; charset=utf-8"));
    /// assert!(Json::reads(""), "the sender set no content type");
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

/// JSON, through `serde_json`.
///
/// ```
/// use dwell::{Codec, Json};
///
/// let mut body = vec![];
/// Json::encode(&[1, 2, 3], &mut body).unwrap();
/// assert_eq!(body, b"[1,2,3]");
/// // The error never quotes the body, which may contain secrets.
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

/// Returns the problem and its position without the value, because errors are logged and payloads
/// must not be.
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if !error.is_data() {
        // Syntax errors of `serde_json` have fixed texts without values.
        return text;
    }
    let place = format!("at line {} column {}", error.line(), error.column());
    if text.starts_with("missing field `") {
        return text;
    }
    // The text is `invalid type: string "…", expected u64`. It starts with the kind of the value,
    // and the expected type follows the last comma.
    let parts = text.strip_prefix("invalid type: ").and_then(|rest| rest.rsplit_once(", expected "));
    if let Some((found, expected)) = parts {
        let found = found.split(['"', '`']).next().unwrap_or_default().trim_end();
        return format!("invalid type: {found}, expected {expected}");
    }
    format!("invalid value {place}")
}

/// Maximum capacity of the buffer that a thread keeps between messages, so that one large message
/// does not occupy memory permanently.
const KEPT: usize = 64 << 10;

thread_local! {
    /// Buffer for encoding. The body is copied out of it with one allocation of the exact size.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Encodes the body of a message. `what` names the message in an error.
pub(crate) fn encode<M: Message>(message: &M, what: &str) -> Result<Bytes> {
    // A message that encodes another one while it is encoded finds no buffer here, and allocates
    // one.
    let mut buffer = BUFFER.take();
    buffer.clear();
    let body = match M::Codec::encode(message, &mut buffer) {
        Ok(()) => Ok(Bytes::copy_from_slice(&buffer)),
        Err(error) => {
            let text = format!("a {what} of type `{}` could not be encoded: {error}", M::NAME);
            Err(Error::new(ErrorKind::Invalid, text))
        }
    };
    if buffer.capacity() <= KEPT {
        BUFFER.set(buffer);
    }
    body
}

/// Decodes the message in a body.
pub(crate) fn decode<C: Codec, T: DeserializeOwned>(content_type: &str, body: &Bytes) -> Result<T, String> {
    if !C::reads(content_type) {
        return Err(format!(
            "the body has the content type {content_type}; its message type requires {}",
            &*C::CONTENT_TYPE
        ));
    }
    C::decode(body).map_err(|error| format!("the body cannot be decoded as {}: {error}", &*C::CONTENT_TYPE))
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
    fn decode_errors_never_quote_the_body() {
        let cases = [
            (r#"{"order": "hunter2"}"#, "invalid type: string, expected u64 at line 1 column 19"),
            (
                r#"{"order": "a\"hunter2`, expected hunter2"}"#,
                "invalid type: string, expected u64 at line 1 column 41",
            ),
            (r#"{"order": true}"#, "invalid type: boolean, expected u64 at line 1 column 14"),
            (r#"["hunter2"]"#, "invalid type: string, expected u64 at line 1 column 10"),
            (r#"{"order": -7}"#, "invalid value at line 1 column 12"),
            (r#"{"hunter2": 1}"#, "invalid value at line 1 column 10"),
            (r#"{"order": 1, "state": "hunter2"}"#, "invalid value at line 1 column 31"),
            (r#"{"state": "Open"}"#, "missing field `order` at line 1 column 17"),
            ("hunter2", "expected value at line 1 column 1"),
        ];
        for (body, expected) in cases {
            assert_eq!(Json::decode::<Order>(body.as_bytes()).unwrap_err().to_string(), expected, "{body}");
        }
    }
}
