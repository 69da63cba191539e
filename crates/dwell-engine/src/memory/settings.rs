//! Settings of a memory transport, and its URL.

use super::Memory;
use dwell_core::{Error, ErrorKind, Result, Seams, TransportUrl};

/// Maximum number in a URL.
const MOST: usize = 1_000_000_000;

/// Limits of a memory transport.
///
/// ```
/// use dwell_engine::memory::MemorySettings;
///
/// let small = MemorySettings { capacity: 1_000, ..MemorySettings::default() };
/// assert_eq!(small.max_body, 16 * 1024 * 1024);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Maximum number of messages in one subscription (ready, leased, and pending for it only), and
    /// of pending publishes in one topic. Beyond it, a user's send is `Full`. Moves and copies are
    /// never refused, because a subscription that could not return a message to its own full queue
    /// would be blocked permanently. 100 000 by default.
    pub capacity: usize,
    /// Maximum number of remembered ids: those that senders chose, and those of pending messages
    /// that have fired. The oldest expire first. Pending messages are always known. 100 000 by
    /// default.
    pub ids: usize,
    /// Maximum size of a body, in bytes. 16 MiB by default.
    pub max_body: usize,
    /// Maximum number of records of finished messages (done, discarded, cancelled) in the ledger,
    /// with their results. The oldest are removed first. None by default.
    pub keep_done: usize,
    /// Maximum number of additional records of finished jobs (messages in `job.…` topics), so that
    /// clients can read the results. 10 000 by default.
    pub keep_jobs: usize,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self { capacity: 100_000, ids: 100_000, max_body: 16 * 1024 * 1024, keep_done: 0, keep_jobs: 10_000 }
    }
}

/// Creates an empty broker in memory, with the limits of its URL:
/// `memory://?capacity=1000&ids=1000&max_body=65536`. Each connection is a separate broker, so the
/// URL contains no host, user or path.
///
/// ```
/// use dwell_core::{Seams, Transport, TransportUrl};
///
/// let url = TransportUrl::parse("memory://?max_body=1000")?;
/// let memory = dwell_engine::memory::connect(&url, Seams::system("example"))?;
/// assert_eq!(memory.capabilities().max_body, 1000);
/// # Ok::<(), dwell_core::Error>(())
/// ```
pub fn connect(url: &TransportUrl, seams: Seams) -> Result<Memory> {
    if url.scheme() != "memory" {
        return Err(url.unknown_scheme_error(&["memory"]));
    }
    let parts = [
        ("a host", !url.hosts().is_empty()),
        ("a user", url.username().is_some() || url.password().is_some()),
        ("a path", !url.path().is_empty()),
    ];
    if let Some((part, _)) = parts.into_iter().find(|(_, is_there)| *is_there) {
        let text = format!(
            "the memory:// URL has {part}, but a memory transport exists only in this process: write `memory://`"
        );
        return Err(Error::new(ErrorKind::Config, text));
    }
    let default = MemorySettings::default();
    let mut options = url.options();
    let mut number = |name: &'static str, default: usize| match options.number(name)? {
        Some(number) if number > MOST => {
            let text = format!("the option `{name}` of the memory:// URL is {number}: the maximum is {MOST}");
            Err(Error::new(ErrorKind::Config, text))
        }
        given => Ok(given.unwrap_or(default)),
    };
    let settings = MemorySettings {
        capacity: number("capacity", default.capacity)?,
        ids: number("ids", default.ids)?,
        max_body: number("max_body", default.max_body)?,
        keep_done: number("keep_done", default.keep_done)?,
        keep_jobs: number("keep_jobs", default.keep_jobs)?,
    };
    options.finish()?;
    Ok(Memory::new(seams, settings))
}
