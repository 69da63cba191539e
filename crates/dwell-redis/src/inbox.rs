//! The inbox: completed messages and claims. Each is a key that expires on the server.

use crate::{
    keys,
    places::{text, to_millis},
    script::{INBOX_ABANDON, INBOX_CLAIM, INBOX_DONE},
    store::Store,
};
use dwell_core::{BoxFuture, Claim, Inbox, MessageId, Result};
use std::{sync::Arc, time::Duration};

pub(crate) struct RedisInbox(pub(crate) Arc<Store>);

impl RedisInbox {
    fn key(&self, subscription: &str, id: &MessageId) -> String {
        keys::inbox(&self.0.link.settings.prefix, subscription, &id.0)
    }
}

/// The server accepts no expiry of zero, nor one beyond its range.
fn millis(duration: Duration) -> u64 {
    to_millis(duration).clamp(1, 1 << 52)
}

impl Inbox for RedisInbox {
    fn claim<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        fence: u64,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Claim>> {
        Box::pin(async move {
            self.0.open()?;
            let key = self.key(subscription, id);
            let answer = self.0.link.run(&INBOX_CLAIM, |command| {
                command.arg(1).arg(&key).arg(fence).arg(millis(lease));
            });
            Ok(match text(&answer.await?).as_str() {
                "new" => Claim::New,
                "done" => Claim::Done,
                _ => Claim::Busy,
            })
        })
    }

    fn done<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        keep: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.0.open()?;
            let key = self.key(subscription, id);
            let noted = self.0.link.run(&INBOX_DONE, |command| {
                command.arg(1).arg(&key).arg(millis(keep));
            });
            noted.await?;
            self.0.confirm(&key, redis::cmd("GET").arg(&key), |is| text(&is) == "done").await
        })
    }

    fn abandon<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        fence: u64,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.0.open()?;
            let key = self.key(subscription, id);
            let answer = self.0.link.run(&INBOX_ABANDON, |command| _ = command.arg(1).arg(&key).arg(fence));
            answer.await.map(drop)
        })
    }
}
