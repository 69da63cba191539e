//! Prepared statements of one transaction. The connection caches statements by their text, and such
//! a lookup takes about as long as running a short statement. Within a transaction they are found
//! by the address of their text instead.

use crate::fault::Sql;
use rusqlite::{CachedStatement, Connection};
use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

pub(crate) struct Statements<'a> {
    connection: &'a Connection,
    /// Statements not in use. There are few: a transaction uses about ten.
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

/// Statement in use. Dropping it returns it.
pub(crate) struct Lent<'t, 'a> {
    of: &'t Statements<'a>,
    sql: &'static str,
    statement: Option<CachedStatement<'a>>,
}

impl<'a> Deref for Lent<'_, 'a> {
    type Target = CachedStatement<'a>;

    fn deref(&self) -> &Self::Target {
        self.statement.as_ref().expect("present until the drop")
    }
}

impl DerefMut for Lent<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.statement.as_mut().expect("present until the drop")
    }
}

impl Drop for Lent<'_, '_> {
    fn drop(&mut self) {
        self.of.idle.borrow_mut().extend(self.statement.take().map(|statement| (self.sql, statement)));
    }
}
