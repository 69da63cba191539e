//! Texts that every message has and that are mostly known at build time. As constants, they need no
//! reference count that all messages of the process would share.

use crate::Text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, ops::Deref};

#[derive(Clone)]
enum Repr {
    Constant(&'static str),
    Shared(Text),
}

macro_rules! constant_text {
    ($(#[$about:meta])* $name:ident, known: [$($known:ident),*]) => {
        $(#[$about])*
        #[derive(Clone)]
        pub struct $name(Repr);

        impl $name {
            /// Creates the value from a text that is known at build time.
            pub const fn constant(text: &'static str) -> Self {
                Self(Repr::Constant(text))
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                match &self.0 {
                    Repr::Constant(text) => text,
                    Repr::Shared(text) => text,
                }
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                let mut known = [$(Self::$known),*].into_iter();
                known.find(|known: &Self| **known == *text).unwrap_or_else(|| Self(Repr::Shared(text.into())))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                text.as_str().into()
            }
        }

        impl From<Text> for $name {
            fn from(text: Text) -> Self {
                Self(Repr::Shared(text))
            }
        }

        impl From<$name> for Text {
            fn from(text: $name) -> Self {
                match text.0 {
                    Repr::Constant(text) => text.into(),
                    Repr::Shared(text) => text,
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::constant("")
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                **self == **other
            }
        }

        impl Eq for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&**self, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::from)
            }
        }
    };
}

constant_text!(
    /// Content type of a body, such as `application/json`.
    ///
    /// ```
    /// use dwell_core::ContentType;
    ///
    /// assert_eq!(ContentType::from("application/json"), ContentType::JSON);
    /// assert_eq!(&*ContentType::from("text/plain"), "text/plain");
    /// ```
    ContentType, known: [JSON, BYTES]
);

constant_text!(
    /// Stable name of a message type, such as `payments.charge`.
    ///
    /// ```
    /// use dwell_core::TypeName;
    ///
    /// assert_eq!(TypeName::from("payments.charge"), TypeName::constant("payments.charge"));
    /// ```
    TypeName, known: []
);

impl ContentType {
    /// `application/json`.
    pub const JSON: Self = Self::constant("application/json");
    /// `application/octet-stream`: bytes of unknown content.
    pub const BYTES: Self = Self::constant("application/octet-stream");
}
