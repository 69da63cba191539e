//! Percent-encoding as in RFC 3986.

use std::fmt::Write as _;

/// Decodes a text. `None` if a `%` lacks its two hexadecimal digits or the result is not UTF-8.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => hex(rest.next()?)? << 4 | hex(rest.next()?)?,
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Encodes every byte except letters, digits, `-._~` and the characters of `plain`.
pub(super) fn encode(text: &str, plain: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "-._~".contains(c) || plain.contains(c) {
            encoded.push(c);
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_text_is_decoded() {
        for (text, expected) in [
            ("", Some("")),
            ("a+b c", Some("a+b c")),
            ("%2Fa%2fb", Some("/a/b")),
            ("gr%C3%B6%C3%9Fe", Some("größe")),
            ("größe", Some("größe")),
            ("%25%32%35", Some("%25")),
            ("%", None),
            ("a%2", None),
            ("%zz", None),
            ("%+1", None),
            ("%é", None),
            ("%FF", None),
        ] {
            assert_eq!(decode(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn decoding_reverses_encoding() {
        let text = "größe/:@?#%&=+ ,\n\0~";
        assert_eq!(decode(&encode(text, "")).as_deref(), Some(text));
        assert_eq!(encode("a/b c", "/"), "a/b%20c");
        assert_eq!(encode("é@", ""), "%C3%A9%40");
    }
}
