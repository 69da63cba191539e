//! Tables of the file, and the migration of a file with an older layout.

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

/// `Dwel` in ASCII: distinguishes our files from those of other programs.
const APPLICATION: i64 = 0x4477_656c;

/// Page size of a new file, in bytes. With a million messages, each operation changes separate
/// pages, and each changed page is written to the disk twice. Half of SQLite's default size halves
/// the bytes and the time, and costs little with few pending messages.
pub(crate) const PAGE: i64 = 2048;

/// Value of `auto_vacuum` for a file that returns free space in small steps.
const INCREMENTAL: i64 = 2;

/// Layouts that this version of Dwell can open.
#[derive(Clone, Copy)]
struct Layout<'a> {
    /// Migration steps from each layout to the next. The first step creates layout 1 in an empty
    /// file.
    steps: &'a [&'a str],
    /// Oldest layout that can be migrated.
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

/// Creates the tables in an empty database.
pub(crate) fn create(connection: &Connection) -> Sql<()> {
    at_once(connection, || write(connection, LAYOUT.steps, 0))
}

/// Checks that the file belongs to Dwell and has the current layout. An empty file gets the tables.
/// An older layout is migrated after a copy was made, or refused if it is too old. Another process
/// may be doing the same. SQLite does not wait for that process at every step, so this function
/// does.
pub(crate) fn check(connection: &Connection, path: &Path, timeout: Duration) -> Result<()> {
    let checked = patiently(timeout, || item(check_with(connection, path, LAYOUT)));
    checked.map_err(|error| fault(&path.display().to_string(), error))?
}

/// Content of a file before it is checked.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Foreign,
    Ours { version: usize },
}

/// Reads everything in one statement, and thus from one snapshot.
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
            format!("`{shown}` is a SQLite database of another program: use another file"),
        )),
        Found::Ours { version } if version > known => Err(refused(
            ErrorKind::Config,
            format!(
                "`{shown}` has layout {version}, and this version of Dwell supports layouts up to {known}: use a \
                 newer version of Dwell, or another file"
            ),
        )),
        Found::Ours { version } if version < layout.oldest => Err(refused(
            ErrorKind::Config,
            format!(
                "`{shown}` has layout {version}, and this version of Dwell supports layouts from {} on: drain it with the \
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
            // This must precede the first table: it has no effect later.
            connection.pragma_update(None, "page_size", PAGE)?;
            connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
            use_log(connection, path)?;
            at_once(connection, || match look(connection)? {
                Found::Nothing => write(connection, layout.steps, 0),
                // Another process has created the tables meanwhile.
                _ => Ok(()),
            })?;
            if connection.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, i64>(0))? != INCREMENTAL
            {
                tracing::warn!(
                    file = %shown,
                    "the empty file was created by another program without auto_vacuum, so it never shrinks; while it is \
                     closed, remove it or run `PRAGMA auto_vacuum = 2; VACUUM`"
                );
            }
            check_with(connection, path, layout)
        }
    }
}

/// Turns on the write-ahead log. Without it, readers and the writer would block each other.
fn use_log(connection: &Connection, path: &Path) -> Result<(), Halt> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode == "wal" {
        return Ok(());
    }
    Err(refused(
        ErrorKind::Unsupported,
        format!(
            "SQLite cannot use a write-ahead log for `{}` (its journal mode stays `{mode}`): use a local file system \
             that supports shared memory between processes",
            path.display()
        ),
    ))
}

/// Migrates a file from an older layout. The write lock is held from before the copy until the end,
/// so that the copy is the state that was migrated, and no other process makes a copy too.
fn migrate(connection: &Connection, path: &Path, steps: &[&str]) -> Result<(), Halt> {
    let mut copied = None;
    let migrated = at_once(connection, || match look(connection)? {
        Found::Ours { version } if version < steps.len() => {
            copied = Some((copy(path, version)?, version));
            Ok(write(connection, steps, version)?)
        }
        // Another process has migrated the file meanwhile.
        _ => Ok(()),
    });
    if let Some((copy, version)) = copied {
        let (shown, kept) = (path.display(), copy.display());
        match &migrated {
            Ok(()) => {
                tracing::info!(file = %shown, copy = %kept, version, to = steps.len(), "file migrated to the current layout");
            }
            // The file is unchanged. Remove the copy, so that repeated attempts do not fill the
            // disk.
            Err(_) => drop(fs::remove_file(&copy)),
        }
    }
    migrated
}

/// Makes a copy of the current file beside it, and returns once the disk has it. An incomplete copy
/// has another name. An existing copy is never overwritten, since it may belong to another file.
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

/// Reason why a copy could not be made.
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
            let error = rusqlite::Error::SqliteFailure(*cause, text.clone());
            fault(&path.display().to_string(), error).kind()
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
        ErrorKind::StorageFull => "free some space there",
        ErrorKind::Denied => "grant this process write access there",
        ErrorKind::Corrupt => "restore the file from a backup",
        _ => "remove the cause, then open the file again",
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
    // The writer's connection cannot be used: SQLite does not run `VACUUM INTO` within a
    // transaction.
    let reader = Connection::open_with_flags(as_file(path), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    reader.execute("VACUUM INTO ?1", [as_file(part).to_string_lossy()])?;
    drop(reader);
    // Some systems require write access for `sync_all`.
    File::options().write(true).open(part)?.sync_all()?;
    fs::rename(part, copy)?;
    // Makes the new name durable too, on systems where a directory can be opened.
    if let Some(Ok(directory)) = as_file(copy).parent().map(File::open) {
        directory.sync_all()?;
    }
    Ok(())
}

/// Runs all steps from this version on.
fn write(connection: &Connection, steps: &[&str], from: usize) -> Sql<()> {
    for step in steps.iter().skip(from) {
        connection.execute_batch(step)?;
    }
    connection.pragma_update(None, "application_id", APPLICATION)?;
    connection.pragma_update(None, "user_version", steps.len() as i64)
}

/// Runs `work` in one transaction.
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

    /// Returns the sorted names of the copies beside the file.
    fn beside(directory: &Directory) -> Vec<String> {
        let there = fs::read_dir(directory.path()).unwrap();
        let there = there.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut beside: Vec<_> = there.filter(|name| name.contains(".layout")).collect();
        beside.sort();
        beside
    }

    #[test]
    fn older_layout_is_copied_and_migrated_and_newer_layout_is_refused() {
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
    fn layout_too_old_to_migrate_is_refused_and_left_unchanged() {
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
            assert!(beside(&directory).is_empty(), "no copy was made");
        }
    }

    #[test]
    fn new_file_has_small_pages_and_existing_file_keeps_its_page_size() {
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
    fn failed_migration_leaves_the_file_unchanged() {
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
        assert!(beside(&directory).is_empty(), "repeated attempts must not fill the disk with copies");
        check_with(&connection, &path, NEW).unwrap();
    }

    #[test]
    fn incomplete_copy_is_replaced_and_existing_copy_is_kept() {
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
    fn migration_stops_if_no_copy_can_be_made() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let connection = Connection::open(&path).unwrap();
        check_with(&connection, &path, OLD).unwrap();
        // Occupies the name of the incomplete copy with a directory.
        fs::create_dir(format!("{}.layout-1.part", path.display())).unwrap();
        let error = item(check_with(&connection, &path, NEW)).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "the cause is not a full disk");
        assert!(error.to_string().contains("no copy could be made"), "{error}");
        assert_eq!(look(&connection).unwrap(), Found::Ours { version: 1 });
    }

    #[test]
    fn copy_error_names_its_cause() {
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
            assert_eq!(
                error.to_string().contains("free some space"),
                kind == ErrorKind::StorageFull,
                "{error}"
            );
        }
    }

    #[test]
    fn concurrent_opens_of_a_new_file_all_succeed() {
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
    fn missing_write_ahead_log_is_an_error() {
        let error = use_log(&Connection::open_in_memory().unwrap(), Path::new("dwell.db"));
        let error = item(error).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("`memory`"), "{error}");
    }

    #[test]
    fn database_of_another_program_is_refused_and_left_unchanged() {
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
