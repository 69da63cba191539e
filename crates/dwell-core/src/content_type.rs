//! What a body is.

use crate::Text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, ops::Deref};

/// What a body is, such as `application/json`. The common ones are constants, so that a message of theirs shares no
/// reference count with every other message in the process.
///
/// ```
/// use dwell_core::ContentType;
///
/// assert_eq!(ContentType::from("application/json"), ContentType::JSON);
/// assert_eq!(&*ContentType::from("text/plain"), "text/plain");
/// ```
#[derive(Clone)]
pub struct ContentType(Repr);

#[derive(Clone)]
enum Repr {
    Constant(&'static str),
    Shared(Text),
}

impl ContentType {
    /// `application/json`.
    pub const JSON: Self = Self(Repr::Constant("application/json"));
    /// `application/octet-stream`: bytes of which nothing is known.
    pub const BYTES: Self = Self(Repr::Constant("application/octet-stream"));

    /// Another one that is known when the program is built.
    pub const fn constant(text: &'static str) -> Self {
        Self(Repr::Constant(text))
    }
}

impl Deref for ContentType {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            Repr::Constant(text) => text,
            Repr::Shared(text) => text,
        }
    }
}

impl From<&str> for ContentType {
    fn from(text: &str) -> Self {
        [Self::JSON, Self::BYTES]
            .into_iter()
            .find(|constant| **constant == *text)
            .unwrap_or_else(|| Self(Repr::Shared(text.into())))
    }
}

impl From<String> for ContentType {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl PartialEq for ContentType {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for ContentType {}

impl fmt::Debug for ContentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for ContentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl Serialize for ContentType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}
