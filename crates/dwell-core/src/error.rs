//! One error type for every trait: what happened, whether trying again may help, and why.

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

/// A result of this crate's traits.
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

/// What went wrong, in words that a caller can act on.
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
    /// Out of reach, or cannot serve now.
    Unavailable,
    /// No confirmation in time. It may or may not have happened.
    Timeout,
    /// A bounded queue is full.
    Full,
    /// No room left on the disk or in the store.
    StorageFull,
    /// The lease or session behind a receipt is gone: the message is somebody else's by now.
    Stale,
    /// There is no such thing.
    NotFound,
    /// Exists already, or cannot hold together with what exists.
    Conflict,
    /// Not declared in the capabilities. Asking again will not help.
    Unsupported,
    /// Settings that cannot work; the text names the one to change.
    Config,
    /// Input that breaks a rule; the text names the rule.
    Invalid,
    /// Not allowed, or not who one claimed to be.
    Denied,
    /// Larger than the transport carries.
    TooLarge,
    /// What is stored cannot be read back.
    Corrupt,
    /// Used after `close`.
    Closed,
}

impl ErrorKind {
    /// Whether the same call may succeed later, with nothing changed by the caller, unless the error says otherwise.
    ///
    /// ```
    /// use dwell_core::ErrorKind;
    ///
    /// assert!(ErrorKind::Unavailable.is_retryable());
    /// assert!(!ErrorKind::Invalid.is_retryable(), "the same input breaks the same rule");
    /// ```
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

/// The error of every trait here. The text says what happened, to what, and what to do; it never contains a secret.
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

/// What a person sees whose `main` returns it: the text, and its causes.
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
    /// Faults of the moment are retryable, everything else is not.
    pub fn new(kind: ErrorKind, context: impl Into<Box<str>>) -> Self {
        let (retryable, doubtful) = (kind.is_retryable(), kind.is_doubtful());
        Self { kind, retryable, doubtful, context: context.into(), source: None }
    }

    /// With the error that caused this one.
    ///
    /// ```
    /// use dwell_core::{Error, ErrorKind};
    /// use std::error::Error as _;
    ///
    /// let cause = "x".parse::<u16>().unwrap_err();
    /// let error = Error::new(ErrorKind::Config, "the port is no number").with_source(cause);
    /// assert_eq!(error.source().unwrap().to_string(), "invalid digit found in string");
    /// ```
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// With another answer to "may trying again help" than its kind's.
    ///
    /// ```
    /// use dwell_core::{Error, ErrorKind};
    ///
    /// let error = Error::new(ErrorKind::Denied, "the token has expired, and is renewed").with_retryable(true);
    /// assert!(error.is_retryable());
    /// ```
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

    /// The same error once more, for the next item of a batch that failed as a whole. Its source stays with the first.
    ///
    /// ```
    /// use dwell_core::{Error, ErrorKind};
    ///
    /// let first = Error::new(ErrorKind::Unavailable, "the broker is away");
    /// let second = first.again();
    /// assert_eq!((second.kind(), second.to_string()), (first.kind(), first.to_string()));
    /// ```
    #[must_use]
    pub fn again(&self) -> Self {
        Self { context: self.context.clone(), source: None, ..*self }
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later, with nothing changed by the caller.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// Whether the call may have taken effect although it failed: a message whose send failed so may still arrive.
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

    /// Whether the fault lies in the message itself, so that no target will ever take it: such a forward is parked.
    /// Everything else is a fault of the target or of the moment, and is waited out.
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
