//! What can be set about a file, and how a URL says so.

use dwell_core::{Error, ErrorKind, Result, TransportUrl, format_duration};
use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Where the messages are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In this file.
    File(PathBuf),
    /// In memory, for tests: gone with the last handle.
    Memory,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Memory => f.write_str(":memory:"),
        }
    }
}

/// When a commit counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// When the disk has it: what was confirmed survives a power cut.
    #[default]
    Full,
    /// When the operating system has it: what was confirmed survives the end of the process. A power cut may take back
    /// the last few commits, and never harms the file.
    Normal,
    /// The same, and a power cut may harm the file.
    Off,
}

impl Synchronous {
    pub(crate) fn pragma(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Normal => "NORMAL",
            Self::Off => "OFF",
        }
    }
}

/// The settings of a SQLite transport.
///
/// ```
/// use dwell_sqlite::SqliteSettings;
///
/// let settings = SqliteSettings { max_body: 1_000_000, ..SqliteSettings::file("dwell.db") };
/// assert_eq!(settings.poll.as_millis(), 250);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteSettings {
    /// Where the messages are.
    pub location: Location,
    /// When a commit counts as done. `Full` by default.
    pub synchronous: Synchronous,
    /// How long to wait for another process that is writing before the call is `Unavailable`. 5 s by default.
    pub busy_timeout: Duration,
    /// How soon the work of another process on the same file is noticed. 250 ms by default.
    pub poll: Duration,
    /// How long the records of finished messages (done, discarded, cancelled) are kept, with their results and their
    /// history. A day by default; zero keeps none. Records of jobs are kept at least as long as `ids`.
    pub done: Duration,
    /// How long ids are remembered after the end of their message: those that a sender chose, and those under which
    /// something waited and fired. A day by default; what is not over is always known.
    pub ids: Duration,
    /// The largest body, in bytes. 16 MiB by default.
    pub max_body: usize,
    /// How large the file may become, in bytes, its log not included. Users' sends are `StorageFull` a little before
    /// that, so that what is in it can still be settled. No limit by default.
    pub max_size: Option<u64>,
    /// How large the log beside the file may become, in bytes, because another program reads an old state of the file and
    /// does not end: then users' sends are `StorageFull`, and beyond twice that nothing is handed out, either. 1 GiB by
    /// default.
    pub max_log: u64,
}

/// Below this, a file could not hold its own tables.
const LEAST_SIZE: u64 = 1 << 20;

/// SQLite takes values up to a billion bytes, and a message is more than its body.
const LARGEST_BODY: usize = 900_000_000;

const SHORTEST_POLL: Duration = Duration::from_millis(10);

impl SqliteSettings {
    /// With the defaults, in this file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::at(Location::File(path.into()))
    }

    /// With the defaults, in memory.
    pub fn memory() -> Self {
        Self::at(Location::Memory)
    }

    fn at(location: Location) -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self {
            location,
            synchronous: Synchronous::default(),
            busy_timeout: Duration::from_secs(5),
            poll: Duration::from_millis(250),
            done: DAY,
            ids: DAY,
            max_body: 16 << 20,
            max_size: None,
            max_log: 1 << 30,
        }
    }

    /// From `sqlite://path/to/file.db?option=value`, or `sqlite://:memory:`.
    pub fn from_url(url: &TransportUrl) -> Result<Self> {
        if url.scheme() != "sqlite" {
            return Err(url.unknown_scheme_error(&["sqlite"]));
        }
        let location = match url.path() {
            "" => return Err(config("the sqlite:// URL names no file: write it like `sqlite://dwell.db`")),
            ":memory:" => Location::Memory,
            path => Location::File(PathBuf::from(path)),
        };
        let mut options = url.options();
        let mut settings = Self::at(location);
        match options.one_of("synchronous", &["full", "normal", "off"])? {
            Some("normal") => settings.synchronous = Synchronous::Normal,
            Some("off") => settings.synchronous = Synchronous::Off,
            _ => {}
        }
        let durations = [
            ("busy_timeout", &mut settings.busy_timeout),
            ("poll", &mut settings.poll),
            ("done", &mut settings.done),
            ("ids", &mut settings.ids),
        ];
        for (name, setting) in durations {
            if let Some(given) = options.duration(name)? {
                *setting = given;
            }
        }
        if let Some(given) = options.number("max_body")? {
            settings.max_body = given;
        }
        settings.max_size = options.number("max_size")?;
        if let Some(given) = options.number("max_log")? {
            settings.max_log = given;
        }
        options.finish()?;
        settings.checked()
    }

    /// Itself, unless it cannot work.
    pub(crate) fn checked(self) -> Result<Self> {
        if self.poll < SHORTEST_POLL {
            let (given, least) = (format_duration(self.poll), format_duration(SHORTEST_POLL));
            return Err(config(format!("`poll` is {given}: it must be at least {least}")));
        }
        if self.max_body > LARGEST_BODY {
            let given = self.max_body;
            let text = format!("`max_body` is {given}: SQLite takes bodies of at most {LARGEST_BODY} bytes");
            return Err(config(text));
        }
        for (name, size) in [("max_size", self.max_size), ("max_log", Some(self.max_log))] {
            if let Some(size) = size.filter(|size| *size < LEAST_SIZE) {
                let text = format!("`{name}` is {size}: it must be at least {LEAST_SIZE} bytes");
                return Err(config(text));
            }
        }
        Ok(self)
    }

    /// The file, unless it is in memory.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.location {
            Location::File(path) => Some(path),
            Location::Memory => None,
        }
    }
}

fn config(text: impl Into<Box<str>>) -> Error {
    Error::new(ErrorKind::Config, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<SqliteSettings> {
        SqliteSettings::from_url(&TransportUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_sets_what_it_names_and_leaves_the_rest() {
        let read = read(
            "sqlite:///var/lib/dwell.db?synchronous=normal&busy_timeout=1s&poll=50ms&done=1h&ids=2h\
             &max_body=1000&max_size=10000000&max_log=5000000",
        );
        let expected = SqliteSettings {
            location: Location::File("/var/lib/dwell.db".into()),
            synchronous: Synchronous::Normal,
            busy_timeout: Duration::from_secs(1),
            poll: Duration::from_millis(50),
            done: Duration::from_secs(3600),
            ids: Duration::from_secs(7200),
            max_body: 1000,
            max_size: Some(10_000_000),
            max_log: 5_000_000,
        };
        assert_eq!(read.unwrap(), expected);
        assert_eq!(super::tests::read("sqlite://dwell.db").unwrap(), SqliteSettings::file("dwell.db"));
        assert_eq!(super::tests::read("sqlite://:memory:").unwrap(), SqliteSettings::memory());
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (url, says) in [
            ("redis://localhost", "sqlite://"),
            ("sqlite://", "names no file"),
            ("sqlite://a.db?sync=full", "unknown option `sync`"),
            ("sqlite://a.db?synchronous=ful", "did you mean `full`?"),
            ("sqlite://a.db?poll=1ms", "`poll`"),
            ("sqlite://a.db?poll=soon", "`poll`"),
            ("sqlite://a.db?max_body=1000000000", "`max_body`"),
            ("sqlite://a.db?max_size=4096", "`max_size`"),
            ("sqlite://a.db?max_log=4096", "`max_log`"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.to_string().contains(says), "{url}: {error}");
        }
    }
}
