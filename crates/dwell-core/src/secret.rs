//! Text that must not be printed.

use std::fmt;

/// A password or token. `Debug` and `Display` print `***`. Only [`expose`](Self::expose) returns
/// the text, so that every use can be found by a search.
///
/// ```
/// use dwell_core::Secret;
///
/// let password = Secret::new("hunter2");
/// assert_eq!(format!("{password} {password:?}"), "*** ***");
/// assert_eq!(password.expose(), "hunter2");
/// ```
#[derive(Clone)]
pub struct Secret(Box<str>);

impl Secret {
    /// Printed in place of a secret.
    pub(crate) const MASK: &str = "***";

    /// Wraps the text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::MASK)
    }
}
