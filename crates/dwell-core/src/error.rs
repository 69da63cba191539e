//! One error type for every trait: what happened, whether trying again may help, and why.

use std::{error::Error as StdError, fmt};

/// Any error, as a cause.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A result of this crate's traits.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in words that a caller can act on.
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
    /// Exists already, or with other settings.
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
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Timeout | Self::Full | Self::StorageFull)
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
        Self { kind, retryable: kind.is_retryable(), context: context.into(), source: None }
    }

    /// With the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// With another answer to "may trying again help" than its kind's.
    #[must_use]
    pub fn with_retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// The same error once more, for the next item of a batch that failed as a whole. Its source stays with the first.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { kind: self.kind, retryable: self.retryable, context: self.context.clone(), source: None }
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later, with nothing changed by the caller.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// Whether the fault lies in the message itself, so that no target will ever take it: such a forward is parked.
    /// Everything else is a fault of the target or of the moment, and is waited out.
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
