//! The error type of all traits: what failed, why, and whether a retry may help.

use std::{error::Error as StdError, fmt};

/// Any error, as a cause.
///
/// ```
/// use dwell_core::BoxError;
///
/// fn half(text: &str) -> Result<u64, BoxError> {
///     let number: u64 = text.parse()?;
///     if number % 2 == 0 { Ok(number / 2) } else { Err("it is odd".into()) }
/// }
///
/// assert_eq!(half("3").unwrap_err().to_string(), "it is odd");
/// ```
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Result type of this crate's traits.
///
/// ```
/// use dwell_core::{Error, ErrorKind, Result};
///
/// fn check(port: u16) -> Result<u16> {
///     if port > 1023 { Ok(port) } else { Err(Error::new(ErrorKind::Config, "ports below 1024 are not ours")) }
/// }
///
/// assert!(check(6379).is_ok() && check(80).is_err());
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, for callers to act on.
///
/// ```
/// use dwell_core::{Error, ErrorKind};
///
/// fn status(error: &Error) -> u16 {
///     match error.kind() {
///         ErrorKind::Full => 429,
///         ErrorKind::Invalid | ErrorKind::TooLarge => 400,
///         _ if error.is_retryable() => 503,
///         _ => 500,
///     }
/// }
///
/// assert_eq!(status(&Error::new(ErrorKind::Timeout, "no answer")), 503);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The broker cannot be reached, or cannot serve requests now.
    Unavailable,
    /// No confirmation in time. The operation may or may not have taken effect.
    Timeout,
    /// A bounded queue is full.
    Full,
    /// The disk or the store has no room left.
    StorageFull,
    /// The lease or session behind a receipt has ended. Another worker may have the message.
    Stale,
    /// The object does not exist.
    NotFound,
    /// The object exists already, or conflicts with an existing one.
    Conflict,
    /// The capability is not declared. A retry does not help.
    Unsupported,
    /// The settings are invalid. The text names the setting to change.
    Config,
    /// The input breaks a rule. The text names the rule.
    Invalid,
    /// Not authorised, or not authenticated.
    Denied,
    /// Larger than the transport supports.
    TooLarge,
    /// Stored data cannot be read.
    Corrupt,
    /// Used after `close`.
    Closed,
}

impl ErrorKind {
    /// Whether the same call may succeed later although the caller changes nothing. An error may
    /// override it: see [`Error::is_retryable`].
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Timeout | Self::Full | Self::StorageFull)
    }

    /// Whether the call may have taken effect although it failed, unless the error says otherwise.
    ///
    /// ```
    /// use dwell_core::ErrorKind;
    ///
    /// assert!(ErrorKind::Timeout.is_doubtful(), "only the confirmation may be lost");
    /// assert!(!ErrorKind::Full.is_doubtful(), "the broker refused it");
    /// ```
    pub fn is_doubtful(self) -> bool {
        matches!(self, Self::Unavailable | Self::Timeout)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Full => "full",
            Self::StorageFull => "storage full",
            Self::Stale => "stale",
            Self::NotFound => "not found",
            Self::Conflict => "conflict",
            Self::Unsupported => "unsupported",
            Self::Config => "configuration",
            Self::Invalid => "invalid",
            Self::Denied => "denied",
            Self::TooLarge => "too large",
            Self::Corrupt => "corrupt",
            Self::Closed => "closed",
        })
    }
}

/// The error of all traits. The text states what failed, on what, and what to do. It never contains
/// a secret.
///
/// ```
/// use dwell_core::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::Unavailable, "the broker at localhost:6379 does not answer");
/// assert!(error.is_retryable());
/// assert_eq!(error.to_string(), "the broker at localhost:6379 does not answer");
/// ```
pub struct Error {
    kind: ErrorKind,
    retryable: bool,
    doubtful: bool,
    context: Box<str>,
    source: Option<BoxError>,
}

/// The text and its causes, for a `main` that returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({})", self.kind)?;
        let mut cause = StdError::source(self);
        while let Some(error) = cause {
            write!(f, "\ncaused by: {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl Error {
    /// Creates an error that is retryable if its kind is.
    pub fn new(kind: ErrorKind, context: impl Into<Box<str>>) -> Self {
        let (retryable, doubtful) = (kind.is_retryable(), kind.is_doubtful());
        Self { kind, retryable, doubtful, context: context.into(), source: None }
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Overrides whether the error is retryable.
    #[must_use]
    pub fn with_retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// Sets whether the call may have taken effect, where that is known better than by the kind.
    ///
    /// ```
    /// use dwell_core::{Error, ErrorKind};
    ///
    /// let error = Error::new(ErrorKind::Unavailable, "no connection to send by").with_doubt(false);
    /// assert!(!error.is_doubtful());
    /// ```
    #[must_use]
    pub fn with_doubt(mut self, doubt: bool) -> Self {
        self.doubtful = doubt;
        self
    }

    /// The same error once more, for the next item of a batch that failed as a whole. Its source
    /// stays with the first.
    ///
    /// ```
    /// use dwell_core::{Error, ErrorKind};
    ///
    /// let first = Error::new(ErrorKind::Unavailable, "the broker is unavailable");
    /// let second = first.again();
    /// assert_eq!((second.kind(), second.to_string()), (first.kind(), first.to_string()));
    /// ```
    #[must_use]
    pub fn again(&self) -> Self {
        Self { context: self.context.clone(), source: None, ..*self }
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later although the caller changes nothing.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// Whether the call may have taken effect although it failed: a message whose send failed so
    /// may still arrive.
    ///
    /// ```
    /// use dwell_core::{Error, ErrorKind};
    ///
    /// assert!(Error::new(ErrorKind::Timeout, "no confirmation").is_doubtful());
    /// assert!(!Error::new(ErrorKind::TooLarge, "17 MiB").is_doubtful());
    /// ```
    pub fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Whether the fault lies in the message itself, so that no target will ever take it: such a
    /// forward is parked. Everything else is a fault of the target or of the moment, and is waited
    /// out.
    ///
    /// ```
    /// use dwell_core::{Error, ErrorKind};
    ///
    /// assert!(Error::new(ErrorKind::TooLarge, "17 MiB").is_of_the_message());
    /// assert!(!Error::new(ErrorKind::Denied, "no rights").is_of_the_message());
    /// ```
    pub fn is_of_the_message(&self) -> bool {
        !self.retryable
            && matches!(self.kind, ErrorKind::TooLarge | ErrorKind::NotFound | ErrorKind::Unsupported)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
