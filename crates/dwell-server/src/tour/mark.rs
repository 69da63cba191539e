//! The symbols of the tour, one for each event of a message.

/// An event of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Sent,
    Waits,
    Runs,
    Handled,
    Deferred,
    Failed,
    Dead,
    Replayed,
    Cancelled,
    Stopped,
}

impl Mark {
    /// All symbols, in the order of a message's life.
    pub(super) const ALL: [Self; 10] = [
        Self::Sent,
        Self::Waits,
        Self::Runs,
        Self::Handled,
        Self::Deferred,
        Self::Failed,
        Self::Dead,
        Self::Replayed,
        Self::Cancelled,
        Self::Stopped,
    ];

    pub(super) fn symbol(self) -> char {
        match self {
            Self::Sent => '→',
            Self::Waits => '◷',
            Self::Runs => '▸',
            Self::Handled => '✓',
            Self::Deferred => '↻',
            Self::Failed => '!',
            Self::Dead => '✗',
            Self::Replayed => '↩',
            Self::Cancelled => '⊘',
            Self::Stopped => '■',
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Waits => "pending",
            Self::Runs => "started",
            Self::Handled => "handled",
            Self::Deferred => "deferred",
            Self::Failed => "failed",
            Self::Dead => "dead letter",
            Self::Replayed => "replayed",
            Self::Cancelled => "cancelled",
            Self::Stopped => "stopped",
        }
    }
}
