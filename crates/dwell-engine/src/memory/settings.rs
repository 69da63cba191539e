//! What a memory transport may hold, and how a URL says so.

use super::Memory;
use dwell_core::{Error, ErrorKind, Result, Seams, TransportUrl};

/// The largest number that a URL may give: no machine holds more.
const MOST: usize = 1_000_000_000;

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
    /// How many records of finished jobs (messages on `job.…`) it keeps beside them: a job's result is of no use if nobody
    /// can ask for it. 10 000 by default.
    pub keep_jobs: usize,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self { capacity: 100_000, ids: 100_000, max_body: 16 * 1024 * 1024, keep_done: 0, keep_jobs: 10_000 }
    }
}

/// An empty broker in memory, with the bounds that its URL gives: `memory://?capacity=1000&ids=1000&max_body=65536`.
/// Each connection is a broker of its own, so the URL names no host, user or path.
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
        let text =
            format!("the memory:// URL has {part}, but it is in this process alone: write `memory://`");
        return Err(Error::new(ErrorKind::Config, text));
    }
    let default = MemorySettings::default();
    let mut options = url.options();
    let mut number = |name: &'static str, default: usize| match options.number(name)? {
        Some(number) if number > MOST => {
            let text =
                format!("the option `{name}` of the memory:// URL is {number}: at most {MOST} is possible");
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
