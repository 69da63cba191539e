//! What a memory transport may hold.

/// The bounds of a memory transport.
///
/// ```
/// use dwell_engine::memory::MemorySettings;
///
/// let small = MemorySettings { capacity: 1_000, ..MemorySettings::default() };
/// assert_eq!(small.max_body, 16 * 1024 * 1024);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// How many messages one subscription may hold (ready, in a worker's hands, and waiting for it alone) before a
    /// user's send is `Full`; and how many publishes may wait in one topic. Moves and copies are never refused: a pump
    /// that could not put a message back into its own full queue would stand still for ever. 100 000 by default.
    pub capacity: usize,
    /// How many ids are remembered: those that a sender chose, and those under which something waited and fired. The
    /// oldest are forgotten first; what still waits is always known. 100 000 by default.
    pub ids: usize,
    /// The largest body, in bytes. 16 MiB by default: enough for any message, too little for a film.
    pub max_body: usize,
    /// How many records of finished messages (done, discarded, cancelled) the ledger keeps, with their results; the
    /// oldest go first. None by default.
    pub keep_done: usize,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self { capacity: 100_000, ids: 100_000, max_body: 16 * 1024 * 1024, keep_done: 0 }
    }
}
