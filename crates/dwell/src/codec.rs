//! From a message to bytes and back.

use bytes::Bytes;
use dwell_core::{BoxError, ContentType};
use serde::{Serialize, de::DeserializeOwned};

/// How messages are written and read. [`Json`] unless `#[message(codec = …)]` names another.
///
/// ```
/// use dwell::{Codec, prelude::*, raw::{BoxError, ContentType}};
///
/// struct Text;
///
/// impl Codec for Text {
///     const CONTENT_TYPE: ContentType = ContentType::constant("text/x-debug");
///     fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, BoxError> {
///         Ok(serde_json::to_string_pretty(message)?.into_bytes())
///     }
///     fn decode<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, BoxError> {
///         Ok(serde_json::from_slice(body)?)
///     }
/// }
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "orders.placed", codec = Text)]
/// struct OrderPlaced { order: u64 }
/// ```
pub trait Codec: 'static {
    /// What a body in this form is called.
    const CONTENT_TYPE: ContentType;

    /// Writes a message.
    fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, BoxError>;

    /// Reads a message.
    fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BoxError>;

    /// Whether a body of this type can be read. Senders that know nothing of content types leave it open.
    fn reads(content_type: &str) -> bool {
        let plain = content_type.split(';').next().unwrap_or_default().trim();
        plain.is_empty()
            || plain.eq_ignore_ascii_case(&Self::CONTENT_TYPE)
            || plain.eq_ignore_ascii_case(&ContentType::BYTES)
    }
}

/// JSON, by `serde_json`.
#[derive(Clone, Copy, Debug)]
pub struct Json;

impl Codec for Json {
    const CONTENT_TYPE: ContentType = ContentType::JSON;

    fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, BoxError> {
        Ok(serde_json::to_vec(message)?)
    }

    fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BoxError> {
        Ok(serde_json::from_slice(body)?)
    }
}

/// The message in a body, or why it cannot be read.
pub(crate) fn decode<C: Codec, T: DeserializeOwned>(content_type: &str, body: &Bytes) -> Result<T, String> {
    if !C::reads(content_type) {
        return Err(format!("its body is {content_type}, and its type is read from {}", &*C::CONTENT_TYPE));
    }
    C::decode(body).map_err(|error| format!("its body cannot be read: {error}"))
}
