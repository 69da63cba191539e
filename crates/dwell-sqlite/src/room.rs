//! Allocation of the remaining room in the file and in its log.
//!
//! A file with a `max_size` accepts users' messages until only a reserved part is left. Copies of
//! messages in progress may use half of that part, and due messages with several subscriptions half
//! of the rest. The last pages are kept for frugal transactions: for settling leased messages, and
//! for delivering a few more. Each kind of work thus finds room that the earlier kinds had to
//! leave.

use crate::{
    fault::{Sql, full},
    halt::{Halt, item, refused},
    orders::LARGEST,
    settings::SqliteSettings,
    tx::{Tx, pragma},
};
use dwell_core::ErrorKind;
use rusqlite::Connection;

/// Fractions of the maximum size that are kept from users, from copies, and from due messages.
const FROM_USERS: i64 = 32;
const FROM_COPIES: i64 = 64;
const FROM_DUE: i64 = 128;

/// Number of pages kept for frugal transactions.
const LAST: i64 = 8;

/// Maximum size of an empty file, in pages.
const EMPTY: i64 = 64;

/// Approximate size of a row without its body but with its index entries, in bytes.
const ROW: i64 = 512;

/// Room left in a file of limited size, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    left: i64,
    most: i64,
    page: i64,
}

impl Room {
    /// Returns the room left in the file, if its size is limited.
    pub(crate) fn of(connection: &Connection, settings: &SqliteSettings) -> Sql<Option<Self>> {
        if settings.max_size.is_none() {
            return Ok(None);
        }
        let (limit, page) = (pragma(connection, "max_page_count")?, pragma(connection, "page_size")?);
        let left = limit - pragma(connection, "page_count")? + pragma(connection, "freelist_count")?;
        Ok(Some(Self { left: left * page, most: limit * page, page }))
    }

    /// Returns whether a transaction with this many bytes may have used up the room.
    pub(crate) fn is_little_for(self, bytes: usize) -> bool {
        self.left - 2 * (LARGEST + bytes) as i64 <= self.most / FROM_USERS
    }

    /// Takes the room for this number of copies, and returns whether they fit.
    pub(crate) fn take_for_due(&mut self, copies: usize, bytes: i64) -> bool {
        let needed = copies as i64 * (bytes + ROW);
        let fits = copies == 0 || self.left - needed >= self.most / FROM_DUE;
        self.left -= if fits { needed } else { 0 };
        fits
    }

    /// Returns whether this number of copies leaves the last pages free.
    pub(crate) fn has_for_one(self, copies: usize, bytes: i64) -> bool {
        copies == 0 || self.left - copies as i64 * (bytes + ROW) >= LAST / 2 * self.page
    }
}

impl Tx<'_> {
    /// Returns the room left in the file, if its size is limited.
    pub(crate) fn room(&self) -> Sql<Option<Room>> {
        Room::of(self.connection(), self.settings)
    }

    /// Fails if a normal transaction, which began with the room `before`, would use the last pages.
    pub(crate) fn keep_last_pages(&self, before: Option<Room>) -> Sql<()> {
        match (before, self.room()?) {
            (Some(before), Some(now)) if now.left < before.left && now.left < LAST * now.page => Err(full()),
            _ => Ok(()),
        }
    }

    /// Checks the length of the log; `goes_on` describes what is still possible otherwise.
    pub(crate) fn check_log(&self, most: u64, goes_on: &str) -> Result<(), Halt> {
        let (file, length) = (self.file_name(), self.own.log_length);
        if length <= most {
            return Ok(());
        }
        Err(refused(
            ErrorKind::StorageFull,
            format!(
                "the log of `{file}` has {length} bytes and cannot be emptied, because another program holds a read \
                 transaction open: end that transaction, or raise `max_log`; {goes_on}"
            ),
        ))
    }

    /// Checks that there is room for this number of copies of a message of this size.
    pub(crate) fn check_room(&self, is_copy: bool, copies: usize, bytes: usize) -> Result<(), Halt> {
        if self.own.is_short && !is_copy {
            return Err(refused(
                ErrorKind::StorageFull,
                format!(
                    "the disk of `{}` is full: free some space on it; stored messages are still processed, and sending \
                     resumes once there is room",
                    self.file_name()
                ),
            ));
        }
        if !is_copy {
            self.check_log(self.settings.max_log, "stored messages are still processed")?;
        }
        let Some(room) = self.room()? else { return Ok(()) };
        let kept = room.most / if is_copy { FROM_COPIES } else { FROM_USERS };
        // Small messages share pages, so their size is rounded down to whole pages.
        let needed = (copies * bytes) as i64 / room.page * room.page;
        if room.left - needed > kept {
            return Ok(());
        }
        let (file, most) = (self.file_name(), self.settings.max_size.unwrap_or_default());
        if needed + EMPTY * room.page > room.most - kept {
            // Waiting would not help, so the sender of a copy must give it up.
            let text = format!(
                "a message of {bytes} bytes for {copies} subscriptions is more than `{file}` can ever hold with `max_size` \
                 {most}: send a smaller message, or raise `max_size`"
            );
            return Err(refused(ErrorKind::TooLarge, text));
        }
        Err(refused(
            ErrorKind::StorageFull,
            format!(
                "there is no room for a message of {bytes} bytes in `{file}` with `max_size` {most}: raise `max_size`, or let \
                 consumers catch up; stored messages are still processed, and sending resumes once there is room"
            ),
        ))
    }

    /// Returns whether users may send at all.
    pub(crate) fn has_room(&self) -> Sql<bool> {
        Ok(item(self.check_room(false, 1, 0))?.is_ok())
    }

    /// Returns the error for due messages without room.
    pub(crate) fn no_room_for_due(&self) -> Halt {
        let (file, most) = (self.file_name(), self.settings.max_size.unwrap_or_default());
        refused(
            ErrorKind::StorageFull,
            format!(
                "there is no room in `{file}` to deliver due messages to several subscriptions: raise `max_size`, which is \
                 {most}, free some disk space, or let consumers catch up"
            ),
        )
    }
}
