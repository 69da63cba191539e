//! The tables, and how a file of another version becomes one of this.

use crate::{
    fault::{Sql, fault},
    halt::{Halt, item, refused},
    open::{as_file, patiently},
};
use dwell_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, OpenFlags};
use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// `Dwel`: tells our files from those of other programs.
const APPLICATION: i64 = 0x4477_656c;

/// The size of a page, in bytes, of a new file. With a million messages each operation changes pages of its own, of which
/// every byte goes to the disk twice: half of what is usual is written in half the time, and costs little where few wait.
pub(crate) const PAGE: i64 = 2048;

/// What SQLite calls it if space can be given back a little at a time.
const INCREMENTAL: i64 = 2;

/// The layouts that this version of Dwell can open.
#[derive(Clone, Copy)]
struct Layout<'a> {
    /// How to get from each layout to the next: the first step makes an empty file one of layout 1.
    steps: &'a [&'a str],
    /// The oldest layout that is migrated.
    oldest: usize,
}

impl Layout<'_> {
    fn version(&self) -> usize {
        self.steps.len()
    }
}

const LAYOUT: Layout<'_> = Layout {
    steps: &[
        include_str!("layout/1.sql"),
        include_str!("layout/2.sql"),
        include_str!("layout/3.sql"),
        include_str!("layout/4.sql"),
        include_str!("layout/5.sql"),
        include_str!("layout/6.sql"),
    ],
    oldest: 6,
};

/// Makes an empty database ours.
pub(crate) fn create(connection: &Connection) -> Sql<()> {
    at_once(connection, || write(connection, LAYOUT.steps, 0))
}

/// Makes sure that the file is ours and of this layout: an empty one becomes so, and an older one is migrated after a copy
/// was made, or refused if it is older than every layout that can be migrated. Another process may be doing the same; SQLite would not wait for it at every step, so we do.
pub(crate) fn check(connection: &Connection, path: &Path, timeout: Duration) -> Result<()> {
    let checked = patiently(timeout, || item(check_with(connection, path, LAYOUT)));
    checked.map_err(|error| fault(&path.display().to_string(), error))?
}

/// What is in a file.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Foreign,
    Ours { version: usize },
}

/// By one statement, so that all of it is of one moment.
fn look(connection: &Connection) -> Sql<Found> {
    let sql = "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
               FROM pragma_application_id, pragma_user_version";
    let found = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let (application, version, tables): (i64, i64, i64) = found?;
    Ok(match application {
        APPLICATION => Found::Ours { version: usize::try_from(version).unwrap_or(usize::MAX) },
        0 if version == 0 && tables == 0 => Found::Nothing,
        _ => Found::Foreign,
    })
}

fn check_with(connection: &Connection, path: &Path, layout: Layout<'_>) -> Result<(), Halt> {
    let (shown, known) = (path.display(), layout.version());
    match look(connection)? {
        Found::Foreign => Err(refused(
            ErrorKind::Config,
            format!("`{shown}` is a SQLite database of another program: name another file"),
        )),
        Found::Ours { version } if version > known => Err(refused(
            ErrorKind::Config,
            format!(
                "`{shown}` has layout {version}, and this version of Dwell knows layouts up to {known}: use a newer one, \
                 or another file"
            ),
        )),
        Found::Ours { version } if version < layout.oldest => Err(refused(
            ErrorKind::Config,
            format!(
                "`{shown}` has layout {version}, and this version of Dwell opens layouts from {} on: drain it with the \
                 version of Dwell that wrote it, then use a new file",
                layout.oldest
            ),
        )),
        Found::Ours { version } => {
            use_log(connection, path)?;
            if version < known {
                migrate(connection, path, layout.steps)?;
                return check_with(connection, path, layout);
            }
            Ok(())
        }
        Found::Nothing => {
            // Before the first table, or it has no effect: space is given back a little at a time.
            connection.pragma_update(None, "page_size", PAGE)?;
            connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
            use_log(connection, path)?;
            at_once(connection, || match look(connection)? {
                Found::Nothing => write(connection, layout.steps, 0),
                // Another process was faster.
                _ => Ok(()),
            })?;
            if connection.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, i64>(0))? != INCREMENTAL
            {
                tracing::warn!(
                    file = %shown,
                    "the file was made empty by another program, and never becomes smaller: remove it while it is closed, \
                     or run `PRAGMA auto_vacuum = 2; VACUUM` on it then"
                );
            }
            check_with(connection, path, layout)
        }
    }
}

/// Without it, who reads and who writes would wait for each other.
fn use_log(connection: &Connection, path: &Path) -> Result<(), Halt> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode == "wal" {
        return Ok(());
    }
    Err(refused(
        ErrorKind::Unsupported,
        format!(
            "SQLite cannot keep a write-ahead log for `{}` (its journal mode stays `{mode}`): use a local file system, \
             with memory that processes can share",
            path.display()
        ),
    ))
}

/// From an older version to this one. Nobody else can write from before the copy until it is done, so that the copy is what
/// was migrated, and nobody else makes one.
fn migrate(connection: &Connection, path: &Path, steps: &[&str]) -> Result<(), Halt> {
    let mut copied = None;
    let migrated = at_once(connection, || match look(connection)? {
        Found::Ours { version } if version < steps.len() => {
            copied = Some((copy(path, version)?, version));
            Ok(write(connection, steps, version)?)
        }
        // Another process was faster.
        _ => Ok(()),
    });
    if let Some((copy, version)) = copied {
        let (shown, kept) = (path.display(), copy.display());
        match &migrated {
            Ok(()) => {
                tracing::info!(file = %shown, copy = %kept, version, to = steps.len(), "the file was migrated");
            }
            // The file is as it was: who tries again and again needs no copy for each time.
            Err(_) => drop(fs::remove_file(&copy)),
        }
    }
    migrated
}

/// A copy of the file beside it, as it is now, which the disk has when this returns. One that was cut short has another name,
/// and one that is there already may be of another file: it stays.
fn copy(path: &Path, version: usize) -> Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".layout-{version}"));
    let with = |end: &str| {
        let mut name: OsString = name.clone();
        name.push(end);
        PathBuf::from(name)
    };
    let numbered = (2..).map(|number| with(&format!(".{number}")));
    let copy = [with("")].into_iter().chain(numbered).find(|name| !name.exists()).unwrap_or_default();
    make_copy(path, &with(".part"), &copy).map_err(|error| no_copy(path, &copy, error))?;
    Ok(copy)
}

/// Why no copy could be made.
enum NoCopy {
    Sql(rusqlite::Error),
    Io(io::Error),
}

impl From<rusqlite::Error> for NoCopy {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<io::Error> for NoCopy {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn no_copy(path: &Path, copy: &Path, error: NoCopy) -> Error {
    let kind = match &error {
        NoCopy::Sql(rusqlite::Error::SqliteFailure(cause, text)) => {
            let again = rusqlite::Error::SqliteFailure(*cause, text.clone());
            fault(&path.display().to_string(), again).kind()
        }
        NoCopy::Sql(_) => ErrorKind::Corrupt,
        NoCopy::Io(error) => match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                ErrorKind::StorageFull
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
            _ => ErrorKind::Unavailable,
        },
    };
    let help = match kind {
        ErrorKind::StorageFull => "make room there",
        ErrorKind::Denied => "this process needs to write there",
        ErrorKind::Corrupt => "restore the file from a backup",
        _ => "see to the cause, and try again",
    };
    let (file, copy) = (path.display(), copy.display());
    let text =
        format!("`{file}` has an older layout, and no copy could be made at `{copy}` to migrate it: {help}");
    let made = Error::new(kind, text);
    match error {
        NoCopy::Sql(error) => made.with_source(error),
        NoCopy::Io(error) => made.with_source(error),
    }
}

fn make_copy(path: &Path, part: &Path, copy: &Path) -> Result<(), NoCopy> {
    if part.exists() {
        fs::remove_file(part)?;
    }
    // Not by the connection that writes: SQLite copies nothing within a transaction.
    let reader = Connection::open_with_flags(as_file(path), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    reader.execute("VACUUM INTO ?1", [as_file(part).to_string_lossy()])?;
    drop(reader);
    // To open it for writing is what some systems ask of who has it written to the disk.
    File::options().write(true).open(part)?.sync_all()?;
    fs::rename(part, copy)?;
    // So that the name is there as well, where a directory can be opened.
    if let Some(Ok(directory)) = as_file(copy).parent().map(File::open) {
        directory.sync_all()?;
    }
    Ok(())
}

/// All steps from this version on.
fn write(connection: &Connection, steps: &[&str], from: usize) -> Sql<()> {
    for step in steps.iter().skip(from) {
        connection.execute_batch(step)?;
    }
    connection.pragma_update(None, "application_id", APPLICATION)?;
    connection.pragma_update(None, "user_version", steps.len() as i64)
}

/// All of it, or nothing.
fn at_once<E: From<rusqlite::Error>>(
    connection: &Connection,
    work: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let done = work().and_then(|()| Ok(connection.execute_batch("COMMIT")?));
    if done.is_err() && !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;

    const STEPS: [&str; 2] = [
        "CREATE TABLE note (text TEXT); INSERT INTO note VALUES ('kept')",
        "ALTER TABLE note ADD COLUMN author TEXT DEFAULT 'nobody'",
    ];
    const OLD: Layout<'_> = Layout { steps: STEPS.split_at(1).0, oldest: 1 };
    const NEW: Layout<'_> = Layout { steps: &STEPS, oldest: 1 };

    fn text(connection: &Connection) -> String {
        connection.query_row("SELECT group_concat(text) FROM note", [], |row| row.get(0)).unwrap()
    }

    fn refusal(connection: &Connection, path: &Path) -> Error {
        item(check_with(connection, path, OLD)).unwrap().unwrap_err()
    }

    /// What is in the directory beside the file and its log, sorted.
    fn beside(directory: &Directory) -> Vec<String> {
        let there = fs::read_dir(directory.path()).unwrap();
        let there = there.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut beside: Vec<_> = there.filter(|name| name.contains(".layout")).collect();
        beside.sort();
        beside
    }

    #[test]
    fn an_older_file_is_migrated_after_a_copy_and_a_newer_one_is_refused() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let connection = Connection::open(&path).unwrap();
        check_with(&connection, &path, OLD).unwrap();
        check_with(&connection, &path, NEW).unwrap();
        let author: String = connection.query_row("SELECT author FROM note", [], |row| row.get(0)).unwrap();
        assert_eq!((text(&connection), author), ("kept".into(), "nobody".into()));
        let copy = Connection::open(format!("{}.layout-1", path.display())).unwrap();
        assert_eq!((text(&copy), look(&copy).unwrap()), ("kept".into(), Found::Ours { version: 1 }));

        let error = refusal(&connection, &path);
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("layout 2"), "{error}");
    }

    #[test]
    fn a_file_that_is_too_old_to_be_migrated_is_refused_and_left_as_it_is() {
        for version in 1..LAYOUT.oldest {
            let directory = Directory::new();
            let path = directory.path().join("dwell.db");
            let connection = Connection::open(&path).unwrap();
            let layout = Layout { steps: &LAYOUT.steps[..version], oldest: 1 };
            check_with(&connection, &path, layout).unwrap();
            let error = check(&connection, &path, Duration::ZERO).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            for part in [format!("layout {version}"), "drain it".to_owned(), path.display().to_string()] {
                assert!(error.to_string().contains(&part), "{part}: {error}");
            }
            assert_eq!(look(&connection).unwrap(), Found::Ours { version });
            assert!(beside(&directory).is_empty(), "nothing was copied");
        }
    }

    #[test]
    fn a_new_file_has_small_pages_and_one_with_larger_ones_keeps_them() {
        let size = |connection: &Connection| -> i64 {
            connection.pragma_query_value(None, "page_size", |row| row.get(0)).unwrap()
        };
        let directory = Directory::new();
        let new = directory.path().join("new.db");
        let connection = Connection::open(&new).unwrap();
        check(&connection, &new, Duration::ZERO).unwrap();
        assert_eq!(size(&connection), PAGE);

        let old = directory.path().join("old.db");
        let connection = Connection::open(&old).unwrap();
        connection.pragma_update(None, "page_size", 2 * PAGE).unwrap();
        at_once(&connection, || write(&connection, LAYOUT.steps, 0)).unwrap();
        check(&connection, &old, Duration::ZERO).unwrap();
        assert_eq!(
            (size(&connection), look(&connection).unwrap()),
            (2 * PAGE, Found::Ours { version: LAYOUT.version() })
        );
    }

    #[test]
    fn a_step_that_fails_leaves_the_file_as_it_was() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let connection = Connection::open(&path).unwrap();
        check_with(&connection, &path, OLD).unwrap();
        let broken = [STEPS[0], "INSERT INTO note VALUES ('half'); CREATE TABLE note (again TEXT)"];
        assert!(check_with(&connection, &path, Layout { steps: &broken, oldest: 1 }).is_err());
        assert_eq!(
            (text(&connection), look(&connection).unwrap()),
            ("kept".into(), Found::Ours { version: 1 })
        );
        assert!(beside(&directory).is_empty(), "who tries for ever does not fill the disk with copies");
        check_with(&connection, &path, NEW).unwrap();
    }

    #[test]
    fn a_copy_that_was_cut_short_is_made_anew_and_an_older_one_is_left_alone() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let connection = Connection::open(&path).unwrap();
        check_with(&connection, &path, OLD).unwrap();
        let copy = |end: &str| format!("{}.layout-1{end}", path.display());
        fs::write(copy(".part"), "half of a cop").unwrap();
        fs::write(copy(""), "of a year ago").unwrap();
        check_with(&connection, &path, NEW).unwrap();
        assert_eq!(fs::read_to_string(copy("")).unwrap(), "of a year ago");
        let made = Connection::open(copy(".2")).unwrap();
        assert_eq!((text(&made), look(&made).unwrap()), ("kept".into(), Found::Ours { version: 1 }));
        assert_eq!(beside(&directory), ["dwell.db.layout-1", "dwell.db.layout-1.2"]);
    }

    #[test]
    fn nothing_is_migrated_where_no_copy_can_be_made() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let connection = Connection::open(&path).unwrap();
        check_with(&connection, &path, OLD).unwrap();
        // Nothing can be written under this name.
        fs::create_dir(format!("{}.layout-1.part", path.display())).unwrap();
        let error = item(check_with(&connection, &path, NEW)).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "it is not for want of room");
        assert!(error.to_string().contains("no copy could be made"), "{error}");
        assert_eq!(look(&connection).unwrap(), Found::Ours { version: 1 });
    }

    #[test]
    fn why_no_copy_can_be_made_is_said_as_it_is() {
        let sqlite =
            |code| NoCopy::Sql(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
        for (cause, kind) in [
            (sqlite(rusqlite::ffi::SQLITE_FULL), ErrorKind::StorageFull),
            (sqlite(rusqlite::ffi::SQLITE_CANTOPEN), ErrorKind::Denied),
            (sqlite(rusqlite::ffi::SQLITE_CORRUPT), ErrorKind::Corrupt),
            (NoCopy::Io(io::ErrorKind::StorageFull.into()), ErrorKind::StorageFull),
            (NoCopy::Io(io::ErrorKind::PermissionDenied.into()), ErrorKind::Denied),
            (NoCopy::Io(io::ErrorKind::IsADirectory.into()), ErrorKind::Unavailable),
        ] {
            let error = no_copy(Path::new("dwell.db"), Path::new("dwell.db.layout-1"), cause);
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(error.to_string().contains("make room"), kind == ErrorKind::StorageFull, "{error}");
        }
    }

    #[test]
    fn a_file_that_many_open_while_it_is_made_is_ours_to_all_of_them() {
        for _ in 0..20 {
            let directory = Directory::new();
            let settings = crate::SqliteSettings::file(directory.path().join("dwell.db"));
            std::thread::scope(|scope| {
                let open = || scope.spawn(|| crate::open::open_writer(&settings).map(drop));
                let opened: Vec<_> = (0..8).map(|_| open()).collect();
                for opened in opened {
                    opened.join().unwrap().unwrap();
                }
            });
        }
    }

    #[test]
    fn where_there_can_be_no_log_it_is_said() {
        let error = use_log(&Connection::open_in_memory().unwrap(), Path::new("dwell.db"));
        let error = item(error).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("`memory`"), "{error}");
    }

    #[test]
    fn the_database_of_another_program_is_left_alone() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
        let error = refusal(&connection, &path);
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("another program"), "{error}");
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
        assert_eq!(tables, 1);
    }
}
