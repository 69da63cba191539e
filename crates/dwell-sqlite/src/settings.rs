//! Settings of a SQLite file, and their form in a URL.

use dwell_core::{Error, ErrorKind, Result, TransportUrl, format_duration};
use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Location of the messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file at this path.
    File(PathBuf),
    /// Memory, for tests: the messages are lost with the last handle.
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

/// Condition under which a commit is confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// Once the disk has it: confirmed messages survive a power failure.
    #[default]
    Full,
    /// Once the operating system has it: confirmed messages survive the end of the process. A power
    /// failure may undo the last few commits, but never damages the file.
    Normal,
    /// Like `Normal`, but a power failure may also damage the file.
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

/// Settings of a SQLite transport.
///
/// ```
/// use dwell_sqlite::SqliteSettings;
///
/// let settings = SqliteSettings { max_body: 1_000_000, ..SqliteSettings::file("dwell.db") };
/// assert_eq!(settings.poll.as_millis(), 250);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteSettings {
    /// Location of the messages.
    pub location: Location,
    /// Condition under which a commit is confirmed. `Full` by default.
    pub synchronous: Synchronous,
    /// Time to wait for another process that is writing, before the call fails with `Unavailable`.
    /// 5 s by default.
    pub busy_timeout: Duration,
    /// Maximum delay before writes by another process to the same file are noticed. 250 ms by
    /// default.
    pub poll: Duration,
    /// Retention of the records of finished messages (done, discarded, cancelled), with their
    /// results and their history. One day by default; zero keeps none. Records of jobs are kept for
    /// at least `ids`.
    pub done: Duration,
    /// Time for which ids are remembered after their message has finished: ids chosen by the
    /// sender, and names of pending entries that have fired. One day by default. Ids of unfinished
    /// messages are always remembered.
    pub ids: Duration,
    /// Maximum size of a body, in bytes. 16 MiB by default.
    pub max_body: usize,
    /// Maximum size of the file in bytes, without its log. Users' sends fail with `StorageFull`
    /// slightly below this size, so that stored messages can still be settled. No limit by default.
    pub max_size: Option<u64>,
    /// Maximum size of the log beside the file, in bytes. The log grows while another program holds
    /// a read transaction open. Beyond this size users' sends fail with `StorageFull`; beyond twice
    /// this size no messages are delivered either. 1 GiB by default.
    pub max_log: u64,
}

/// A smaller file could not hold its own tables.
const LEAST_SIZE: u64 = 1 << 20;

/// SQLite accepts values of up to a billion bytes, and a message is more than its body.
const LARGEST_BODY: usize = 900_000_000;

const SHORTEST_POLL: Duration = Duration::from_millis(10);

impl SqliteSettings {
    /// Returns the default settings for this file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::at(Location::File(path.into()))
    }

    /// Returns the default settings for a database in memory.
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

    /// Reads the settings from `sqlite://path/to/file.db?option=value` or `sqlite://:memory:`.
    pub fn from_url(url: &TransportUrl) -> Result<Self> {
        if url.scheme() != "sqlite" {
            return Err(url.unknown_scheme_error(&["sqlite"]));
        }
        let location = match url.path() {
            "" => return Err(config("the sqlite:// URL names no file: use the form `sqlite://dwell.db`")),
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

    /// Returns the settings, or an error if they are not valid.
    pub(crate) fn checked(self) -> Result<Self> {
        if self.poll < SHORTEST_POLL {
            let (given, least) = (format_duration(self.poll), format_duration(SHORTEST_POLL));
            return Err(config(format!("`poll` is {given}: use at least {least}")));
        }
        if self.max_body > LARGEST_BODY {
            let given = self.max_body;
            let text = format!(
                "`max_body` is {given} bytes: SQLite supports bodies of at most {LARGEST_BODY} bytes"
            );
            return Err(config(text));
        }
        for (name, size) in [("max_size", self.max_size), ("max_log", Some(self.max_log))] {
            if let Some(size) = size.filter(|size| *size < LEAST_SIZE) {
                let text = format!("`{name}` is {size} bytes: use at least {LEAST_SIZE} bytes");
                return Err(config(text));
            }
        }
        Ok(self)
    }

    /// Returns the path of the file, or `None` for a database in memory.
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
    fn url_options_override_only_their_own_settings() {
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
    fn invalid_urls_are_refused_with_the_option_named() {
        for (url, expected) in [
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
            assert!(error.to_string().contains(expected), "{url}: {error}");
        }
    }
}
