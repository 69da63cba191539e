//! Headers as JSON: `[["name", "text"], ["name", {"hex": "00ff"}]]`. Other programs may also write
//! an object: `{"name": "text", "other": ["one", "two"]}`.

use crate::Headers;
use bytes::Bytes;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
    ser::SerializeSeq,
};
use std::fmt;

impl Headers {
    /// Returns the headers as JSON, or `None` if there are none.
    ///
    /// ```
    /// use dwell_core::Headers;
    ///
    /// let headers = Headers::from_iter([("tag", "red")]);
    /// assert_eq!(headers.to_json().as_deref(), Some(r#"[["tag","red"]]"#));
    /// assert_eq!(Headers::from_json(r#"{"tag": "red"}"#), Ok(headers));
    /// ```
    pub fn to_json(&self) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        serde_json::to_string(&Written(self)).ok()
    }

    /// Reads headers from JSON, either an array of pairs or an object. The error is a text for
    /// people.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let read: Read = serde_json::from_str(json).map_err(|error| {
            format!("the headers are not JSON like {{\"name\": \"text\"}} or [[\"name\", \"text\"]]: {error}")
        })?;
        Ok(read.0)
    }
}

struct Written<'a>(&'a Headers);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for (name, value) in self.0.iter() {
            match std::str::from_utf8(value) {
                Ok(text) => list.serialize_element(&(&**name, text))?,
                Err(_) => list.serialize_element(&(&**name, Hex { hex: to_hex(value) }))?,
            }
        }
        list.end()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hex {
    hex: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Hex(Hex),
    Number(serde_json::Number),
    Flag(bool),
}

impl Value {
    fn into_bytes(self) -> Option<Bytes> {
        match self {
            Self::Text(text) => Some(text.into()),
            Self::Hex(Hex { hex }) => from_hex(&hex).map(Bytes::from),
            Self::Number(number) => Some(number.to_string().into()),
            Self::Flag(flag) => Some(flag.to_string().into()),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    Many(Vec<Value>),
    One(Value),
}

struct Read(Headers);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadVisitor)
    }
}

struct ReadVisitor;

impl<'de> Visitor<'de> for ReadVisitor {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of pairs, or an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Read, A::Error> {
        let mut headers = Headers::default();
        while let Some((name, value)) = list.next_element::<(String, Value)>()? {
            headers.append(name, value.into_bytes().ok_or_else(|| A::Error::custom("not hexadecimal"))?);
        }
        Ok(Read(headers))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Read, A::Error> {
        let mut headers = Headers::default();
        while let Some((name, values)) = map.next_entry::<String, Values>()? {
            let values = match values {
                Values::Many(values) => values,
                Values::One(value) => vec![value],
            };
            for value in values {
                let value = value.into_bytes().ok_or_else(|| A::Error::custom("not hexadecimal"))?;
                headers.append(name.as_str(), value);
            }
        }
        Ok(Read(headers))
    }
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_json_and_text_stays_readable() {
        let headers = Headers::from_iter([
            ("tag", Bytes::from("größer, \"quoted\", a line\nbreak")),
            ("empty", Bytes::new()),
            ("Tag", Bytes::from("blue")),
            ("binary", (0..=255).collect()),
            ("tag", Bytes::from("blue")),
        ]);
        let json = headers.to_json().unwrap();
        assert!(json.contains("größer") && json.contains(r#"["binary",{"hex":"000102"#), "{json}");
        assert_eq!(Headers::from_json(&json).unwrap(), headers);
        assert_eq!(Headers::default().to_json(), None);
    }

    #[test]
    fn an_object_is_accepted() {
        let read =
            Headers::from_json(r#"{"b": "1", "a": ["2", {"hex": "FF00"}], "n": 3, "yes": true}"#).unwrap();
        let expected = Headers::from_iter([
            ("b", Bytes::from("1")),
            ("a", Bytes::from("2")),
            ("a", Bytes::from_static(&[255, 0])),
            ("n", Bytes::from("3")),
            ("yes", Bytes::from("true")),
        ]);
        assert_eq!(read, expected);
    }

    #[test]
    fn invalid_json_is_refused() {
        for json in ["", "red", "\"red\"", "[1]", r#"[["a"]]"#, r#"{"a": {"hex": "f"}}"#, r#"{"a": null}"#] {
            assert!(Headers::from_json(json).unwrap_err().starts_with("the headers are not JSON"), "{json}");
        }
    }
}
