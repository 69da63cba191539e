//! Text that must not be printed.

use std::fmt;

/// A password or token. `Debug` and `Display` print `***`; the text itself comes out by [`expose`](Self::expose) alone,
/// so that every place that reads it can be found.
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
    /// What stands for a secret wherever one would be printed.
    pub(crate) const MASK: &str = "***";

    /// Keeps the text from being printed.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text itself.
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
