//! The statements of one transaction. The connection keeps them by their text, and to look one up that way takes about as
//! long as to run a short one: within a transaction they are known by where their text lies in the program.

use crate::fault::Sql;
use rusqlite::{CachedStatement, Connection};
use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

pub(crate) struct Statements<'a> {
    connection: &'a Connection,
    /// Those that nobody is at. There are few: a transaction uses about ten.
    idle: RefCell<Vec<(&'static str, CachedStatement<'a>)>>,
}

impl<'a> Statements<'a> {
    pub(crate) fn new(connection: &'a Connection) -> Self {
        Self { connection, idle: RefCell::default() }
    }

    pub(crate) fn lend(&self, sql: &'static str) -> Sql<Lent<'_, 'a>> {
        let mut idle = self.idle.borrow_mut();
        let at = idle.iter().position(|(of, _)| std::ptr::eq(*of, sql));
        let statement = match at {
            Some(at) => idle.swap_remove(at).1,
            None => self.connection.prepare_cached(sql)?,
        };
        Ok(Lent { of: self, sql, statement: Some(statement) })
    }
}

/// A statement that one is at. It goes back by itself.
pub(crate) struct Lent<'t, 'a> {
    of: &'t Statements<'a>,
    sql: &'static str,
    statement: Option<CachedStatement<'a>>,
}

impl<'a> Deref for Lent<'_, 'a> {
    type Target = CachedStatement<'a>;

    fn deref(&self) -> &Self::Target {
        self.statement.as_ref().expect("it is there until the drop")
    }
}

impl DerefMut for Lent<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.statement.as_mut().expect("it is there until the drop")
    }
}

impl Drop for Lent<'_, '_> {
    fn drop(&mut self) {
        self.of.idle.borrow_mut().extend(self.statement.take().map(|statement| (self.sql, statement)));
    }
}
