//! Deduplication of effects: handled messages, and current claims.
//!
//! Times are wall times, because other processes read them: if the clock is set forward, a claim
//! ends early.

use crate::{fault::Sql, handle::Handle, tx::Tx};
use dwell_core::{BoxFuture, Claim, Inbox, MessageId, Result};
use rusqlite::OptionalExtension;
use std::{sync::Arc, time::Duration};

pub(crate) struct SqliteInbox(pub(crate) Arc<Handle>);

impl Inbox for SqliteInbox {
    fn claim<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        fence: u64,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Claim>> {
        Box::pin(async move {
            let (subscription, id) = (subscription.to_owned(), id.clone());
            let job = self.0.open()?.write(1, move |tx| tx.claim(&subscription, &id, fence as i64, lease));
            job.await
        })
    }

    fn done<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        keep: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (subscription, id) = (subscription.to_owned(), id.clone());
            let job = self.0.open()?.write(1, move |tx| tx.write_claim(&subscription, &id, None, keep));
            job.await
        })
    }

    fn abandon<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        fence: u64,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (subscription, id) = (subscription.to_owned(), id.clone());
            let job = self.0.open()?.write(1, move |tx| {
                tx.sql("DELETE FROM inbox WHERE subscription = ?1 AND id = ?2 AND fence = ?3")?.execute((
                    &subscription,
                    &*id.0,
                    fence as i64,
                ))
            });
            job.await.map(drop)
        })
    }
}

impl Tx<'_> {
    fn claim(&self, subscription: &str, id: &MessageId, fence: i64, lease: Duration) -> Sql<Claim> {
        let found: Option<Option<i64>> = self
            .sql("SELECT fence FROM inbox WHERE subscription = ?1 AND id = ?2 AND until > ?3")?
            .query_row((subscription, &*id.0, self.now.0), |row| row.get(0))
            .optional()?;
        match found {
            Some(None) => Ok(Claim::Done),
            Some(Some(other)) if other != fence => Ok(Claim::Busy),
            _ => {
                self.write_claim(subscription, id, Some(fence), lease)?;
                Ok(Claim::New)
            }
        }
    }

    /// Writes a claim; without a fence, it is done.
    fn write_claim(&self, subscription: &str, id: &MessageId, fence: Option<i64>, keep: Duration) -> Sql<()> {
        self.sql("INSERT OR REPLACE INTO inbox VALUES (?1, ?2, ?3, ?4)")?.execute((
            subscription,
            &*id.0,
            fence,
            self.now.after(keep).0,
        ))?;
        Ok(())
    }
}
