//! Headers: ordered, duplicates kept, values are bytes, names compare without case.

use crate::{Error, ErrorKind, Result, Text, wire};
use bytes::Bytes;

/// The longest header name.
pub const MAX_HEADER_NAME: usize = 128;
/// The longest header value, in bytes.
pub const MAX_HEADER_VALUE: usize = 32 * 1024;

/// Ordered, duplicates kept, values are bytes, names compare without case. A transport that cannot carry one as it
/// is (ten attributes at most, no duplicates, no bytes) packs the rest into one header of its own.
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
    /// The first value of `name`.
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.get_all(name).next()
    }

    /// The first value of `name`, if it is text.
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

    /// Every value of `name`, in order.
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = &Bytes> {
        self.0.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Adds a value, keeping those that are there.
    pub fn append(&mut self, name: impl Into<Text>, value: impl Into<Bytes>) {
        self.0.push((name.into(), value.into()));
    }

    /// Replaces every value of `name` by this one.
    ///
    /// ```
    /// use dwell_core::Headers;
    ///
    /// let mut headers = Headers::from_iter([("tag", "red"), ("Tag", "blue")]);
    /// headers.set("tag", "green");
    /// assert_eq!((headers.len(), headers.get_text("tag")), (1, Some("green")));
    /// ```
    pub fn set(&mut self, name: &str, value: impl Into<Bytes>) {
        self.0.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.0.push((name.into(), value.into()));
    }

    /// Removes `name` and returns its last value.
    ///
    /// ```
    /// use dwell_core::Headers;
    ///
    /// let mut headers = Headers::from_iter([("tag", "red"), ("tag", "blue")]);
    /// assert_eq!(headers.take("tag").unwrap(), "blue");
    /// assert!(headers.is_empty());
    /// ```
    pub fn take(&mut self, name: &str) -> Option<Bytes> {
        self.0.extract_if(.., |(n, _)| n.eq_ignore_ascii_case(name)).last().map(|(_, value)| value)
    }

    /// Removes the first value of `name` alone, and returns it.
    ///
    /// ```
    /// use dwell_core::Headers;
    ///
    /// let mut headers = Headers::from_iter([("tag", "red"), ("tag", "blue")]);
    /// assert_eq!(headers.take_first("tag").unwrap(), "red");
    /// assert_eq!(headers.get_text("tag"), Some("blue"));
    /// ```
    pub fn take_first(&mut self, name: &str) -> Option<Bytes> {
        let index = self.0.iter().position(|(n, _)| n.eq_ignore_ascii_case(name))?;
        Some(self.0.remove(index).1)
    }

    /// In order, with duplicates.
    ///
    /// ```
    /// use dwell_core::Headers;
    ///
    /// let headers = Headers::from_iter([("a", "1"), ("b", "2")]);
    /// let names: Vec<_> = headers.iter().map(|(name, _)| &**name).collect();
    /// assert_eq!(names, ["a", "b"]);
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (&Text, &Bytes)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// How many there are, duplicates included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a user may send these: names are 1 to 128 visible ASCII characters without separators, values at most
    /// 32 KiB, and none of them is a name that Dwell writes itself.
    ///
    /// ```
    /// use dwell_core::Headers;
    ///
    /// assert!(Headers::from_iter([("tenant", "acme")]).check().is_ok());
    /// assert!(Headers::from_iter([("two words", "no")]).check().is_err());
    /// assert!(Headers::from_iter([("HandledCount", "0")]).check().is_err(), "nobody resets a budget");
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
        return invalid(
            "has a name that is not allowed: use 1 to 128 letters, digits or any of !#$%&'*+-.^_`|~",
        );
    }
    if value.len() > MAX_HEADER_VALUE {
        return invalid("has a value over 32 KiB: put it into the body");
    }
    if wire::is_reserved_header(name) {
        return invalid("is written by Dwell itself: choose another name");
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

    /// In order, with duplicates.
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
    fn names_and_values_that_are_not_allowed_are_refused_by_name() {
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
    fn names_that_dwell_writes_are_refused_whatever_their_case() {
        for name in ["HandledCount", "handledcount", "X-Dwell-Anything", "x-original-topic", "x-rejected-at"]
        {
            assert!(Headers::from_iter([(name, "v")]).check().is_err(), "{name}");
        }
        assert!(Headers::from_iter([("traceparent", "00-…"), ("x-mine", "v")]).check().is_ok());
    }
}
