//! Headers of a message.

use crate::{Error, ErrorKind, Result, Text, wire};
use bytes::Bytes;

/// Maximum length of a header name.
pub const MAX_HEADER_NAME: usize = 128;
/// Maximum length of a header value, in bytes.
pub const MAX_HEADER_VALUE: usize = 32 * 1024;

/// Headers of a message. They are ordered and may repeat, values are bytes, and names ignore case.
/// A transport that cannot carry some of them natively (because it allows ten attributes, no
/// duplicates or no bytes) packs those into one header of its own.
///
/// ```
/// use dwell_core::Headers;
///
/// let mut headers = Headers::default();
/// headers.append("tag", "red");
/// headers.append("Tag", "blue");
/// assert_eq!(headers.get("TAG").unwrap(), "red");
/// assert_eq!(headers.get_all("tag").count(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Text, Bytes)>);

impl Headers {
    /// Returns the first value of `name`.
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.get_all(name).next()
    }

    /// Returns the first value of `name`, if it is UTF-8.
    ///
    /// ```
    /// use dwell_core::Headers;
    ///
    /// let headers = Headers::from_iter([("tenant", &b"acme"[..]), ("digest", &[0xff, 0x00])]);
    /// assert_eq!((headers.get_text("Tenant"), headers.get_text("digest")), (Some("acme"), None));
    /// ```
    pub fn get_text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Returns every value of `name`, in order.
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = &Bytes> {
        self.0.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Adds a value, and keeps the existing ones.
    pub fn append(&mut self, name: impl Into<Text>, value: impl Into<Bytes>) {
        self.0.push((name.into(), value.into()));
    }

    /// Replaces all values of `name` with this one.
    pub fn set(&mut self, name: &str, value: impl Into<Bytes>) {
        self.0.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.0.push((name.into(), value.into()));
    }

    /// Removes all values of `name`, and returns the last.
    pub fn take(&mut self, name: &str) -> Option<Bytes> {
        self.0.extract_if(.., |(n, _)| n.eq_ignore_ascii_case(name)).last().map(|(_, value)| value)
    }

    /// Removes the first value of `name`, and returns it.
    pub fn take_first(&mut self, name: &str) -> Option<Bytes> {
        let index = self.0.iter().position(|(n, _)| n.eq_ignore_ascii_case(name))?;
        Some(self.0.remove(index).1)
    }

    /// Iterates in order, with duplicates.
    pub fn iter(&self) -> impl Iterator<Item = (&Text, &Bytes)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// Returns the number of headers, duplicates included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks whether a user may send these headers. A name has 1 to 128 visible ASCII characters
    /// without separators and is not reserved for Dwell. A value has at most 32 KiB.
    ///
    /// ```
    /// use dwell_core::Headers;
    ///
    /// assert!(Headers::from_iter([("tenant", "acme")]).check().is_ok());
    /// assert!(Headers::from_iter([("two words", "no")]).check().is_err());
    /// assert!(Headers::from_iter([("HandledCount", "0")]).check().is_err(), "reserved");
    /// ```
    pub fn check(&self) -> Result<()> {
        for (name, value) in self.iter() {
            check_header(name, value)?;
        }
        Ok(())
    }
}

fn check_header(name: &str, value: &Bytes) -> Result<()> {
    let shown: String = name.chars().take(60).flat_map(char::escape_default).collect();
    let invalid = |why: &str| Err(Error::new(ErrorKind::Invalid, format!("the header `{shown}` {why}")));
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > MAX_HEADER_NAME || !name.bytes().all(allowed) {
        return invalid("has an invalid name: use 1 to 128 letters, digits or any of !#$%&'*+-.^_`|~");
    }
    if value.len() > MAX_HEADER_VALUE {
        return invalid("has a value over 32 KiB: send it in the body");
    }
    if wire::is_reserved_header(name) {
        return invalid("is reserved for Dwell: choose another name");
    }
    Ok(())
}

impl<N: Into<Text>, V: Into<Bytes>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(iter: I) -> Self {
        Self(iter.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl IntoIterator for Headers {
    type Item = (Text, Bytes);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    /// Iterates in order, with duplicates.
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<N: Into<Text>, V: Into<Bytes>> Extend<(N, V)> for Headers {
    fn extend<I: IntoIterator<Item = (N, V)>>(&mut self, iter: I) {
        self.0.extend(iter.into_iter().map(|(name, value)| (name.into(), value.into())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_replaces_all_values_and_take_returns_the_last() {
        let mut headers = Headers::from_iter([("a", "1"), ("A", "2"), ("b", "3")]);
        assert_eq!(headers.take("a").unwrap(), "2");
        assert_eq!(headers.len(), 1);
        headers.append("b", "4");
        headers.set("B", "5");
        assert_eq!(headers.iter().map(|(n, v)| (&**n, &v[..])).collect::<Vec<_>>(), [("B", &b"5"[..])]);
    }

    #[test]
    fn invalid_headers_are_refused_by_name() {
        let long = "n".repeat(129);
        for name in ["", "with space", "colon:", "ümlaut", "line\nbreak", &long] {
            let error = Headers::from_iter([(name, "v")]).check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}");
            assert!(!error.to_string().contains('\n'));
        }
        let error = Headers::from_iter([("big", vec![0; MAX_HEADER_VALUE + 1])]).check().unwrap_err();
        assert!(error.to_string().contains("`big`"), "{error}");
        assert!(Headers::from_iter([("binary", vec![0, 159, 255])]).check().is_ok());
    }

    #[test]
    fn reserved_names_are_refused_in_any_case() {
        for name in ["HandledCount", "handledcount", "X-Dwell-Anything", "x-original-topic", "x-rejected-at"]
        {
            assert!(Headers::from_iter([(name, "v")]).check().is_err(), "{name}");
        }
        assert!(Headers::from_iter([("traceparent", "00-…"), ("x-mine", "v")]).check().is_ok());
    }
}
