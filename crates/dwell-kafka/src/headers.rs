//! The headers of a record in one block of memory. A relay holds a large number of them and
//! forwards them unchanged.

use bytes::{Buf as _, Bytes};
use rdkafka::message::{Header, OwnedHeaders};
use std::{cell::RefCell, fmt};

/// The headers of a record: in order, with duplicates, with or without a value.
///
/// Each header is stored as the lengths of its name and value, followed by both. Cloning increments
/// a reference count.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct RawHeaders(Bytes);

/// Length of an absent value. No header value can be this long.
const NONE: u32 = u32::MAX;
/// Size of the two lengths.
const LENGTHS: usize = 8;

thread_local! {
    /// Buffer in which a block is assembled.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(vec![]) };
}
/// Capacity to which the buffer shrinks after a larger block.
const SCRATCH_KEPT: usize = 4_096;

impl RawHeaders {
    /// Returns names and values as they are in the block.
    fn slices(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (name, value) = (rest.get_u32_ne(), rest.get_u32_ne());
            let name = rest.split_off(..name as usize)?;
            let value = if value == NONE { None } else { Some(rest.split_off(..value as usize)?) };
            Some((name, value))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        self.slices().map(|(name, value)| (text(name), value))
    }

    /// Returns values as slices that share the block. The block lives as long as one of them.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, Option<Bytes>)> {
        self.iter().map(|(name, value)| (name, value.map(|value| self.0.slice_ref(value))))
    }

    /// Returns the first value of a header. Names are compared without case.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        self.slices().find(|(known, _)| is(known, name)).and_then(|(_, value)| value)
    }

    /// Returns the headers without any value of these names.
    pub(crate) fn without(&self, names: &[&str]) -> Self {
        let is_one = |known: &[u8]| names.iter().any(|name| is(known, name));
        if !self.slices().any(|(known, _)| is_one(known)) {
            return self.clone();
        }
        let mut block = Vec::with_capacity(self.0.len());
        for (name, value) in self.slices().filter(|(known, _)| !is_one(known)) {
            push(&mut block, name, value);
        }
        Self(block.into())
    }

    /// Replaces all values of a header with this one.
    pub(crate) fn set(&mut self, name: &str, value: impl ToString) {
        let value = value.to_string();
        let mut block = Vec::with_capacity(self.0.len() + LENGTHS + name.len() + value.len());
        for (known, value) in self.slices().filter(|(known, _)| !is(known, name)) {
            push(&mut block, known, value);
        }
        push(&mut block, name.as_bytes(), Some(value.as_bytes()));
        self.0 = block.into();
    }

    /// Copies the headers to librdkafka's memory.
    pub(crate) fn native(&self) -> OwnedHeaders {
        let empty = OwnedHeaders::new_with_capacity(self.slices().count());
        self.iter().fold(empty, |all, (key, value)| all.insert(Header { key, value }))
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.0.len()
    }
}

impl<'a> FromIterator<(&'a str, Option<&'a [u8]>)> for RawHeaders {
    fn from_iter<I: IntoIterator<Item = (&'a str, Option<&'a [u8]>)>>(all: I) -> Self {
        // The copy has no spare capacity, because it may be held for long.
        SCRATCH.with_borrow_mut(|block| {
            block.clear();
            all.into_iter().for_each(|(name, value)| push(block, name.as_bytes(), value));
            let copy = Bytes::copy_from_slice(block);
            // `shrink_to` keeps what the vector contains.
            block.clear();
            block.shrink_to(SCRATCH_KEPT);
            Self(copy)
        })
    }
}

impl fmt::Debug for RawHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

fn push(block: &mut Vec<u8>, name: &[u8], value: Option<&[u8]>) {
    // A record is far smaller than `u32::MAX`.
    let length = |bytes: &[u8]| bytes.len() as u32;
    block.extend_from_slice(&length(name).to_ne_bytes());
    block.extend_from_slice(&value.map_or(NONE, length).to_ne_bytes());
    block.extend_from_slice(name);
    block.extend_from_slice(value.unwrap_or_default());
}

/// Returns a name as text. Every name was valid UTF-8 when it was written.
fn text(name: &[u8]) -> &str {
    std::str::from_utf8(name).unwrap_or_default()
}

fn is(known: &[u8], name: &str) -> bool {
    known.eq_ignore_ascii_case(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Given = (&'static str, Option<&'static [u8]>);

    const GIVEN: [Given; 5] =
        [("tag", Some(b"1")), ("nothing", None), ("Tag", Some(b"")), ("", Some(b"x")), ("ü", Some(&[0xff]))];

    #[test]
    fn headers_are_read_as_they_were_written() {
        let headers = RawHeaders::from_iter(GIVEN);
        assert_eq!(headers.iter().collect::<Vec<_>>(), GIVEN);
        let values: Vec<_> = headers.values().collect();
        assert_eq!(values.iter().map(|(name, value)| (*name, value.as_deref())).collect::<Vec<_>>(), GIVEN);
        assert_eq!(RawHeaders::default().iter().count(), 0);
        assert_eq!(RawHeaders::from_iter([]), RawHeaders::default());
    }

    #[test]
    fn names_ignore_case_and_the_first_value_counts() {
        let headers = RawHeaders::from_iter(GIVEN);
        assert_eq!(headers.get("TAG"), Some(&b"1"[..]));
        assert_eq!((headers.get("nothing"), headers.get("absent")), (None, None));
        let left = headers.without(&["TAG", "absent"]);
        assert_eq!(left.iter().collect::<Vec<_>>(), [GIVEN[1], GIVEN[3], GIVEN[4]]);
        let mut set = headers;
        set.set("TAG", 2);
        assert_eq!(set.iter().collect::<Vec<_>>(), [GIVEN[1], GIVEN[3], GIVEN[4], ("TAG", Some(b"2"))]);
    }

    #[test]
    fn a_large_block_does_not_enlarge_the_buffer() {
        let large = vec![0; SCRATCH_KEPT * 100];
        assert!(RawHeaders::from_iter([("large", Some(&large[..]))]).size() > large.len());
        assert!(SCRATCH.with_borrow(Vec::capacity) <= SCRATCH_KEPT);
    }
}
