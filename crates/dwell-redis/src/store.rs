//! State that all parts of one connection share.

use crate::{
    buckets::{self, Buckets},
    calls::{Call, Calls},
    declared::Declared,
    link::Link,
    places::{Place, Places, list, text, write_context},
    replicas::Replicas,
    scheduler::or_left_out,
    script::Script,
};
use dwell_core::{BoxFuture, Error, ErrorKind, Result, Seams, Text, wire};
use redis::{Cmd, Value};
use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};
use tokio::sync::Notify;

/// A part that is closed with its connection.
pub(crate) trait Member: Send + Sync {
    fn leave(&self) -> BoxFuture<'_, Result<()>>;
}

pub(crate) struct Store {
    pub(crate) link: Link,
    pub(crate) places: Places,
    pub(crate) declared: Declared,
    pub(crate) calls: Calls,
    pub(crate) seams: Seams,
    /// Whether confirmed data survives a restart of the server.
    pub(crate) is_durable: bool,
    is_closed: AtomicBool,
    /// Wakes waiting tasks when this is closed.
    pub(crate) closing: Notify,
    members: Mutex<Vec<Weak<dyn Member>>>,
    pub(crate) buckets: Buckets,
    pub(crate) replicas: Replicas,
    me: Weak<Self>,
}

/// Maximum number of retries because a topic has changed in the meantime.
const RELOADS: usize = 20;

impl Store {
    pub(crate) fn new(link: Link, seams: Seams, is_durable: bool) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            link,
            places: Places::default(),
            declared: Declared::default(),
            calls: Calls::new(&seams),
            seams,
            is_durable,
            is_closed: AtomicBool::new(false),
            closing: Notify::new(),
            members: Mutex::default(),
            buckets: Buckets::default(),
            replicas: Replicas::default(),
            me: me.clone(),
        })
    }

    /// Waits for the configured number of replicas of a write to the server of `key`. A server that
    /// took over in the meantime may lack the write: the answer to `check` shows whether it exists,
    /// and without it the write is not confirmed.
    pub(crate) async fn confirm(
        &self,
        key: &str,
        check: &Cmd,
        is_there: impl Fn(Value) -> bool,
    ) -> Result<()> {
        match self.me.upgrade() {
            Some(store) if self.link.settings.replicas > 0 => {
                self.replicas.confirm(&store, key, check, is_there).await
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn open(&self) -> Result<()> {
        match self.is_closed.load(Ordering::SeqCst) {
            false => Ok(()),
            true => {
                let text =
                    format!("this connection to {} is closed: connect again", self.link.settings.place());
                Err(Error::new(ErrorKind::Closed, text))
            }
        }
    }

    pub(crate) fn add_member(&self, member: Weak<dyn Member>) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.strong_count() > 0);
        members.push(member);
    }

    pub(crate) async fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.closing.notify_waiters();
        let members = std::mem::take(&mut *self.members.lock().unwrap_or_else(PoisonError::into_inner));
        let mut left = Ok(());
        for member in members.iter().filter_map(Weak::upgrade) {
            left = left.and(member.leave().await);
        }
        left
    }

    /// Runs a script on topics of one slot, all of which must exist. `with` receives the topics and
    /// writes the script's own arguments. Returns the answer after `ok`.
    pub(crate) async fn run(
        &self,
        script: &Script,
        topics: &[Text],
        with: impl Fn(&[Arc<Place>], &mut Cmd),
    ) -> Result<Vec<Value>> {
        let call = script.is_remembered.then(|| self.calls.begin());
        self.run_as(call.as_ref(), script, topics, with).await
    }

    /// The same, as a call that the caller has begun.
    pub(crate) async fn run_as(
        &self,
        call: Option<&Call>,
        script: &Script,
        topics: &[Text],
        with: impl Fn(&[Arc<Place>], &mut Cmd),
    ) -> Result<Vec<Value>> {
        for _ in 0..RELOADS {
            let mut places = Vec::with_capacity(topics.len());
            for topic in topics {
                places.push(self.place(topic).await?);
            }
            let answer = self
                .link
                .run(script, |command| {
                    write_context(&self.link, &self.calls.name, call, &places, command);
                    with(&places, command);
                })
                .await?;
            let mut answer = list(answer);
            match answer.first().map(text).as_deref() {
                Some("reload") => self.places.forget(topics),
                Some("ok") => {
                    answer.remove(0);
                    return Ok(answer);
                }
                _ => return Ok(answer),
            }
        }
        let text =
            format!("the topic `{}` is changed too often at the same time: try again", topics.join("`, `"));
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    /// Returns the names of all topics and of all their buckets.
    pub(crate) async fn rooms(&self) -> Result<Vec<Text>> {
        let mut rooms = self.names().await?;
        // Also without `shards`, because another program may use buckets.
        let topics = rooms.iter().filter(|topic| !wire::is_dead_letter_topic(topic));
        let all = topics.map(|topic| async move { or_left_out(topic, buckets::all(self, topic).await) });
        for of in futures_util::future::join_all(all).await {
            rooms.extend(of?);
        }
        Ok(rooms)
    }

    /// Returns the existing topics of one slot.
    pub(crate) async fn family(&self, base: &str) -> Result<Vec<Text>> {
        self.there(&crate::keys::family(base).map(Text::from)).await
    }

    /// Returns those of these topics that exist.
    pub(crate) async fn there(&self, topics: &[Text]) -> Result<Vec<Text>> {
        let mut there = vec![];
        for topic in topics {
            match self.place(topic).await {
                Ok(_) => there.push(topic.clone()),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(there)
    }
}
