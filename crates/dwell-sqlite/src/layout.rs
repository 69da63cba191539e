//! The tables, and how a file of another version becomes one of this.

use crate::fault::{Sql, fault};
use dwell_core::{Error, ErrorKind, Result};
use rusqlite::Connection;
use std::path::{Path, PathBuf};

/// `Dwel`: tells our files from those of other programs.
const APPLICATION: i64 = 0x4477_656c;

/// How to get from each version to the next: the first makes an empty file one of version 1.
const STEPS: &[&str] = &[include_str!("layout/1.sql"), include_str!("layout/2.sql")];

/// Makes an empty database ours.
pub(crate) fn create(connection: &Connection) -> Sql<()> {
    migrate(connection, STEPS, 0)
}

/// Makes sure that the file is ours and of this version: an empty one becomes so, an older one is migrated, after a copy
/// was made.
pub(crate) fn check(connection: &Connection, path: &Path) -> Result<()> {
    check_with(connection, path, STEPS)
}

/// What is in a file.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Foreign,
    Ours { version: usize },
}

fn look(connection: &Connection) -> Sql<Found> {
    let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(match application {
        APPLICATION => Found::Ours { version: usize::try_from(version).unwrap_or(usize::MAX) },
        0 if version == 0 && tables == 0 => Found::Nothing,
        _ => Found::Foreign,
    })
}

fn check_with(connection: &Connection, path: &Path, steps: &[&str]) -> Result<()> {
    let shown = path.display().to_string();
    let sql = |error| fault(&shown, error);
    let known = steps.len();
    match look(connection).map_err(sql)? {
        Found::Foreign => Err(Error::new(
            ErrorKind::Config,
            format!("`{shown}` is a SQLite database of another program: name another file"),
        )),
        Found::Ours { version } if version > known => Err(Error::new(
            ErrorKind::Config,
            format!(
                "`{shown}` has layout {version}, and this version of Dwell knows layouts up to {known}: use a newer one, \
                 or another file"
            ),
        )),
        Found::Ours { version } => {
            if version < known {
                let copy = copy(connection, path, version)?;
                migrate(connection, steps, version).map_err(sql)?;
                tracing::info!(file = %shown, copy = %copy.display(), version, to = known, "the file was migrated");
            }
            use_log(connection).map_err(sql)
        }
        Found::Nothing => {
            // Before the first table, or it has no effect: space is given back a little at a time.
            connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(sql)?;
            use_log(connection).map_err(sql)?;
            migrate(connection, steps, 0).map_err(sql)
        }
    }
}

fn use_log(connection: &Connection) -> Sql<()> {
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))
}

/// A copy of the file beside it, as it is now.
fn copy(connection: &Connection, path: &Path, version: usize) -> Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".layout-{version}"));
    let copy = PathBuf::from(name);
    let shown = copy.display();
    if copy.exists() {
        // An earlier migration was cut short: its copy is as good, and perhaps better.
        return Ok(copy);
    }
    let made = connection.execute("VACUUM INTO ?1", [copy.to_string_lossy()]);
    made.map_err(|error| {
        let text = format!(
            "`{}` has an older layout, and no copy could be made at `{shown}` to migrate it",
            path.display()
        );
        Error::new(ErrorKind::StorageFull, format!("{text}: make room, or make `{shown}` yourself"))
            .with_source(error)
    })?;
    Ok(copy)
}

/// All steps from this version on, or none. Another process may have been faster.
fn migrate(connection: &Connection, steps: &[&str], from: usize) -> Sql<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let migrated = (|| {
        let from = match look(connection)? {
            Found::Ours { version } => version,
            _ => from,
        };
        for step in steps.iter().skip(from) {
            connection.execute_batch(step)?;
        }
        if from < steps.len() {
            connection.pragma_update(None, "application_id", APPLICATION)?;
            connection.pragma_update(None, "user_version", steps.len() as i64)?;
        }
        connection.execute_batch("COMMIT")
    })();
    if migrated.is_err() && !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    migrated
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;

    const OLD: &[&str] = &["CREATE TABLE note (text TEXT); INSERT INTO note VALUES ('kept')"];
    const NEW: &[&str] = &[OLD[0], "ALTER TABLE note ADD COLUMN author TEXT DEFAULT 'nobody'"];

    fn text(connection: &Connection) -> String {
        connection.query_row("SELECT group_concat(text) FROM note", [], |row| row.get(0)).unwrap()
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

        let error = check_with(&connection, &path, OLD).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("layout 2"), "{error}");
    }

    #[test]
    fn what_waits_in_a_file_of_layout_1_is_found_by_its_due_time_in_this_one() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let connection = Connection::open(&path).unwrap();
        check_with(&connection, &path, &STEPS[..1]).unwrap();
        let waits = "INSERT INTO message (number, topic, place, home, phase, state, born, step, due, created_at, updated_at,
                         deliveries, id, type, content_type, handled, failed, body)
                     VALUES (?1, 1, 1, 1, 0, 0, 0, ?1, ?2, 0, 0, 0, 'id', 'type', '', 0, 0, x'')";
        for (number, due) in [(1, 30), (2, 10), (3, 20)] {
            connection.execute(waits, (number, due)).unwrap();
        }
        check(&connection, &path).unwrap();
        assert_eq!(look(&connection).unwrap(), Found::Ours { version: STEPS.len() });
        let due: String = connection
            .query_row(
                "SELECT group_concat(number) FROM (
                     SELECT number FROM message INDEXED BY message_due WHERE topic = 1 AND phase = 0 ORDER BY due, number
                 )",
                [],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(due, "2,3,1");
    }

    #[test]
    fn a_step_that_fails_leaves_the_file_as_it_was() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let connection = Connection::open(&path).unwrap();
        check_with(&connection, &path, OLD).unwrap();
        let broken = [OLD[0], "INSERT INTO note VALUES ('half'); CREATE TABLE note (again TEXT)"];
        assert!(check_with(&connection, &path, &broken).is_err());
        assert_eq!(
            (text(&connection), look(&connection).unwrap()),
            ("kept".into(), Found::Ours { version: 1 })
        );
        check_with(&connection, &path, NEW).unwrap();
    }

    #[test]
    fn the_database_of_another_program_is_left_alone() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
        let error = check_with(&connection, &path, OLD).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("another program"), "{error}");
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
        assert_eq!(tables, 1);
    }
}
