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
        serde_json::from_slice(body).map_err(|error| without_value(error.to_string()).into())
    }
}

/// What serde says about a value that it did not expect, without the value: errors are logged, payloads never.
fn without_value(text: String) -> String {
    let shows_it = ["invalid type: ", "invalid value: ", "unknown variant "];
    let Some(start) = shows_it.iter().find(|start| text.starts_with(**start)) else { return text };
    match (text.find(['"', '`']), text.rfind(", expected ")) {
        (Some(value), Some(expected)) if (start.len()..expected).contains(&value) => {
            format!("{}{}", text[..value].trim_end(), &text[expected..])
        }
        _ => text,
    }
}

/// The message in a body, or why it cannot be read.
pub(crate) fn decode<C: Codec, T: DeserializeOwned>(content_type: &str, body: &Bytes) -> Result<T, String> {
    if !C::reads(content_type) {
        return Err(format!("its body is {content_type}, and its type is read from {}", &*C::CONTENT_TYPE));
    }
    C::decode(body).map_err(|error| format!("its body cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug)]
    #[serde(rename_all = "snake_case")]
    enum Colour {
        Red,
        Blue,
    }

    fn error<T: DeserializeOwned + std::fmt::Debug>(body: &str) -> String {
        Json::decode::<T>(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn an_error_says_what_is_wrong_and_where_without_the_value() {
        assert_eq!(error::<u64>(r#""secret""#), "invalid type: string, expected u64 at line 1 column 8");
        assert_eq!(
            error::<u64>(r#""a, expected `b`""#),
            "invalid type: string, expected u64 at line 1 column 17"
        );
        assert_eq!(error::<u8>("4711"), "invalid value: integer, expected u8 at line 1 column 4");
        assert_eq!(
            error::<bool>("4.5"),
            "invalid type: floating point, expected a boolean at line 1 column 3"
        );
        assert_eq!(
            error::<Colour>(r#""secret""#),
            "unknown variant, expected `red` or `blue` at line 1 column 8"
        );
        assert_eq!(error::<u64>("[]"), "invalid type: sequence, expected u64 at line 1 column 0");
        assert_eq!(error::<u64>(""), "EOF while parsing a value at line 1 column 0");
    }
}
