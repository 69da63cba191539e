//! Room: who may have what is left in the file and in its log.
//!
//! A file that has a `max_size` is filled by what its users send, up to a part that is kept. Copies of what is on its way may
//! have half of that part, and what is due and goes to several subscriptions half of the rest. The last pages are for who is
//! frugal: for settling what is in hands, and for handing out a little more. So each finds room that those before it left.

use crate::{
    fault::{Sql, full},
    halt::{Halt, item, refused},
    orders::LARGEST,
    settings::SqliteSettings,
    tx::{Tx, pragma},
};
use dwell_core::ErrorKind;
use rusqlite::Connection;

/// These parts of the largest size are kept from users, from copies, and from what is due.
const FROM_USERS: i64 = 32;
const FROM_COPIES: i64 = 64;
const FROM_DUE: i64 = 128;

/// So many pages are kept for who is frugal.
const LAST: i64 = 8;

/// What a file takes that has nothing in it, at most, in pages.
const EMPTY: i64 = 64;

/// About what a row takes beside its body, with its part of the indexes, in bytes.
const ROW: i64 = 512;

/// What is left of a file that has a largest size, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    left: i64,
    most: i64,
    page: i64,
}

impl Room {
    /// What is left of the file, if it has a largest size.
    pub(crate) fn of(connection: &Connection, settings: &SqliteSettings) -> Sql<Option<Self>> {
        if settings.max_size.is_none() {
            return Ok(None);
        }
        let (limit, page) = (pragma(connection, "max_page_count")?, pragma(connection, "page_size")?);
        let left = limit - pragma(connection, "page_count")? + pragma(connection, "freelist_count")?;
        Ok(Some(Self { left: left * page, most: limit * page, page }))
    }

    /// Whether a transaction that brings so many bytes may have used up what is left.
    pub(crate) fn is_little_for(self, bytes: usize) -> bool {
        self.left - 2 * (LARGEST + bytes) as i64 <= self.most / FROM_USERS
    }

    /// Whether so many copies of so many bytes leave something, and takes it if so.
    pub(crate) fn take_for_due(&mut self, copies: usize, bytes: i64) -> bool {
        let needed = copies as i64 * (bytes + ROW);
        let fits = copies == 0 || self.left - needed >= self.most / FROM_DUE;
        self.left -= if fits { needed } else { 0 };
        fits
    }

    /// Whether so many copies of so many bytes leave the last pages alone.
    pub(crate) fn has_for_one(self, copies: usize, bytes: i64) -> bool {
        copies == 0 || self.left - copies as i64 * (bytes + ROW) >= LAST / 2 * self.page
    }
}

impl Tx<'_> {
    /// What is left of the file, if it has a largest size.
    pub(crate) fn room(&self) -> Sql<Option<Room>> {
        Room::of(self.connection(), self.settings)
    }

    /// The last pages are not for who writes more than is needed, if the file had so much `before`.
    pub(crate) fn keep_last_pages(&self, before: Option<Room>) -> Sql<()> {
        match (before, self.room()?) {
            (Some(before), Some(now)) if now.left < before.left && now.left < LAST * now.page => Err(full()),
            _ => Ok(()),
        }
    }

    /// Whether the log is no longer than this; if it is, only this goes on.
    pub(crate) fn check_log(&self, most: u64, goes_on: &str) -> Result<(), Halt> {
        let (file, length) = (self.file_name(), self.own.log_length);
        if length <= most {
            return Ok(());
        }
        Err(refused(
            ErrorKind::StorageFull,
            format!(
                "the log of `{file}` has {length} bytes, and cannot be emptied as long as another program reads an old \
                 state of the file: end that, or raise `max_log`; {goes_on}"
            ),
        ))
    }

    /// Whether so many copies of a message of so many bytes may come in.
    pub(crate) fn check_room(&self, is_copy: bool, copies: usize, bytes: usize) -> Result<(), Halt> {
        if self.own.is_short && !is_copy {
            return Err(refused(
                ErrorKind::StorageFull,
                format!(
                    "the disk under `{}` is full: free some room on it; what is there is still handled, and sends go \
                     through again once there is room",
                    self.file_name()
                ),
            ));
        }
        if !is_copy {
            self.check_log(self.settings.max_log, "what is in it is still handled")?;
        }
        let Some(room) = self.room()? else { return Ok(()) };
        let kept = room.most / if is_copy { FROM_COPIES } else { FROM_USERS };
        // What is small is counted in pages, which it shares.
        let needed = (copies * bytes) as i64 / room.page * room.page;
        if room.left - needed > kept {
            return Ok(());
        }
        let (file, most) = (self.file_name(), self.settings.max_size.unwrap_or_default());
        if needed + EMPTY * room.page > room.most - kept {
            // To wait does not help: whoever has it on its way puts it aside.
            let text = format!(
                "a message of {bytes} bytes, once for each of {copies}, is more than `{file}` ever takes, whose `max_size` is \
                 {most}: send less, or raise it"
            );
            return Err(refused(ErrorKind::TooLarge, text));
        }
        Err(refused(
            ErrorKind::StorageFull,
            format!(
                "a message of {bytes} bytes has no room in `{file}`, whose `max_size` is {most}: raise it, or let consumers \
                 catch up; what is in it is still handled, and sends go through again once there is room"
            ),
        ))
    }

    /// Whether users may send anything.
    pub(crate) fn has_room(&self) -> Sql<bool> {
        Ok(item(self.check_room(false, 1, 0))?.is_ok())
    }

    /// Something is due, and there is no room for what it becomes.
    pub(crate) fn no_room_for_due(&self) -> Halt {
        let (file, most) = (self.file_name(), self.settings.max_size.unwrap_or_default());
        refused(
            ErrorKind::StorageFull,
            format!(
                "what is due in `{file}` goes to several subscriptions, and there is no room for that: raise its `max_size`, \
                 which is {most}, free some room on its disk, or let consumers catch up"
            ),
        )
    }
}
