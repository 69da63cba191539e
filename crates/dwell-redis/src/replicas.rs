//! Waiting for replicas.
//!
//! `WAIT` blocks everything behind it on the same connection, for a long time if a replica is
//! unavailable; leases would expire meanwhile. It therefore uses a separate connection for each
//! server, so that an unavailable replica of one server does not delay the others.
//!
//! `WAIT` refers to the last write of its own connection, so a small write precedes it. Replicas
//! receive all earlier writes of the server before it. On a connection without a write, `WAIT`
//! would return at once without confirming anything. For this reason these connections never
//! reconnect automatically: a broken connection confirms nothing.
//!
//! Before the small write, the same connection checks that the data to confirm exists, because it
//! may have been written to a server that this one has replaced since. Concurrent calls for one
//! server share one `WAIT`.

use crate::{
    fault::{fault, replaced},
    keys,
    places::{list, number, text},
    script::MARK,
    store::Store,
    together::Together,
    waiter::server,
};
use dwell_core::{Error, ErrorKind, Result};
use redis::{Cmd, RedisError, Value, aio::MultiplexedConnection};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Host and port.
type Server = (String, u16);

/// Maximum number of redirections to another server.
const REDIRECTIONS: usize = 5;

#[derive(Default)]
pub(crate) struct Replicas {
    waits: Mutex<HashMap<Server, Arc<Together<Ask, Answer>>>>,
    /// Idle connections, with the number of the shared connection at which each was opened. They
    /// are replaced with the shared connection.
    connections: Mutex<HashMap<Server, (u64, MultiplexedConnection)>>,
    /// Known servers of slot ranges in a cluster. The first match counts.
    homes: Mutex<Vec<(u16, u16, Server)>>,
}

/// A request: its slot, the small write in it, and the query that checks the data.
#[derive(Clone)]
struct Ask {
    at: Server,
    mark: String,
    check: Cmd,
}

#[derive(Clone)]
enum Answer {
    /// The replicas have it if this answer to the query shows that it exists.
    Confirmed(Value),
    Elsewhere(Server),
    Unconfirmed(String),
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replicas {
    /// Waits until the number of replicas in `replicas` has the data that was written to the server
    /// of `key`, and that exists according to the answer to `check`.
    pub(crate) async fn confirm(
        &self,
        store: &Arc<Store>,
        key: &str,
        check: &Cmd,
        is_there: impl Fn(Value) -> bool,
    ) -> Result<()> {
        let settings = &store.link.settings;
        let (slot, mark) = (keys::slot(key), keys::mark(&settings.prefix, key));
        let mut why = "its server is unknown".to_owned();
        for _ in 0..REDIRECTIONS {
            let at = self.home(store, slot).await;
            let ask = Ask { at: at.clone(), mark: mark.clone(), check: check.clone() };
            match self.waits(store, at).ask(vec![ask]).await.and_then(|mut answers| answers.pop()) {
                Some(Answer::Confirmed(found)) if is_there(found.clone()) => return Ok(()),
                Some(Answer::Confirmed(_)) => return Err(replaced(settings)),
                Some(Answer::Elsewhere(home)) => {
                    let mut homes = lock(&self.homes);
                    homes.retain(|(first, last, _)| first != last || *first != slot);
                    homes.insert(0, (slot, slot, home));
                }
                Some(Answer::Unconfirmed(reason)) => {
                    why = reason;
                    break;
                }
                None => {
                    "the waiting task was cancelled".clone_into(&mut why);
                    break;
                }
            }
        }
        let text = format!(
            "the write is stored at {}, but not confirmed by {} replicas as `replicas` requires ({why}), and may be lost with the server. Try again to \
             confirm it; it is not stored twice",
            settings.place(),
            settings.replicas
        );
        Err(Error::new(ErrorKind::Timeout, text))
    }

    fn waits(&self, store: &Arc<Store>, at: Server) -> Arc<Together<Ask, Answer>> {
        let start = || {
            Arc::new(Together::new(store, |store, asks| {
                Box::pin(async move { confirm_all(&store, asks).await })
            }))
        };
        lock(&self.waits).entry(at).or_insert_with(start).clone()
    }

    /// Returns the server of a slot. The wrong server would also redirect, but only after the calls
    /// that wait there.
    async fn home(&self, store: &Store, slot: u16) -> Server {
        let first = &store.link.settings.hosts[0];
        if !store.link.is_cluster() {
            return first.clone();
        }
        let find = |homes: &[(u16, u16, Server)]| {
            homes.iter().find(|home| (home.0..=home.1).contains(&slot)).map(|home| home.2.clone())
        };
        let known = find(&lock(&self.homes));
        if let Some(home) = known {
            return home;
        }
        // The user may not have permission for this command.
        let said = store.link.query(redis::cmd("CLUSTER").arg("SLOTS")).await.map(list).unwrap_or_default();
        let homes: Vec<_> = said.into_iter().filter_map(|of| range(of, &first.0)).collect();
        let home = find(&homes).unwrap_or_else(|| first.clone());
        *lock(&self.homes) = homes;
        home
    }

    /// Forgets the servers of slots, because an unreachable server may have been replaced.
    fn leave(&self) {
        lock(&self.homes).clear();
    }
}

/// Parses a slot range: first and last slot, and host and port of its server.
fn range(said: Value, asked: &str) -> Option<(u16, u16, Server)> {
    let said = list(said);
    let (first, last) = (number(said.first()?), number(said.get(1)?));
    let master = list(said.get(2)?.clone());
    let address = format!("{}:{}", text(master.first()?), number(master.get(1)?));
    Some((first.try_into().ok()?, last.try_into().ok()?, server(&address, asked)?))
}

/// Handles all requests of one server.
async fn confirm_all(store: &Store, asks: Vec<Ask>) -> Vec<Answer> {
    let Some(at) = asks.first().map(|ask| ask.at.clone()) else { return vec![] };
    let unconfirmed = |why: &str| vec![Answer::Unconfirmed(why.to_owned()); asks.len()];
    let limit = store.seams.clock.sleep(store.link.settings.timeout);
    let answers = tokio::select! {
        biased;
        answers = try_all(store, &at, &asks) => answers,
        () = limit => {
            store.replicas.leave();
            return unconfirmed("the server did not answer in time");
        }
    };
    answers.unwrap_or_else(|error| {
        store.replicas.leave();
        unconfirmed(&fault(&store.link.settings, &error).to_string())
    })
}

/// Runs all requests. A connection that is dropped on the way is not used again.
async fn try_all(store: &Store, at: &Server, asks: &[Ask]) -> Result<Vec<Answer>, RedisError> {
    let shared = store.link.shared.number();
    let kept = lock(&store.replicas.connections).remove(at).filter(|(of, _)| *of == shared);
    let marked = match kept {
        // It may have died since its last use. Then everything is repeated on another one.
        Some((_, kept)) => mark(store, kept, asks).await.ok(),
        None => None,
    };
    let (mut connection, answers) = match marked {
        Some(marked) => marked,
        None => mark(store, store.link.door.own(&at.0, at.1).await?, asks).await?,
    };
    let answers: Vec<_> = answers.into_iter().map(|answer| read(store, answer, &at.0)).collect();
    let mut have = 0;
    if answers.iter().any(|answer| matches!(answer, Answer::Confirmed(_))) {
        let millis = u64::try_from(store.link.settings.timeout.as_millis() / 2).unwrap_or(u64::MAX);
        let mut wait = redis::cmd("WAIT");
        wait.arg(store.link.settings.replicas).arg(millis);
        have = number(&wait.query_async(&mut connection).await?);
    }
    lock(&store.replicas.connections).insert(at.clone(), (shared, connection));
    let confirmed = |answer| match answer {
        Answer::Confirmed(_) if have < i64::from(store.link.settings.replicas) => {
            Answer::Unconfirmed(format!("{have} have it"))
        }
        answer => answer,
    };
    Ok(answers.into_iter().map(confirmed).collect())
}

type Marked = (MultiplexedConnection, Vec<Result<Value, RedisError>>);

/// Checks each request's data, and performs a small write after that.
async fn mark(
    store: &Store,
    mut connection: MultiplexedConnection,
    asks: &[Ask],
) -> Result<Marked, RedisError> {
    // A single server needs one mark for all. In a cluster, a server accepts only marks in its own
    // slots.
    let mut marks: BTreeSet<_> = asks.iter().map(|ask| &ask.mark).collect();
    if !store.link.is_cluster() {
        marks.retain(|mark| **mark == asks[0].mark);
    }
    let mut pipe = redis::pipe();
    asks.iter().for_each(|ask| _ = pipe.add_command(ask.check.clone()));
    for mark in &marks {
        pipe.cmd("EVAL").arg(&MARK.text).arg(1).arg(mark);
    }
    let mut answers: Vec<Result<Value, RedisError>> =
        pipe.ignore_errors().query_async(&mut connection).await?;
    let written = answers.split_off(asks.len());
    let written: HashMap<_, _> = marks.into_iter().zip(written).collect();
    let both = asks.iter().zip(answers).map(|(ask, found)| {
        match written.get(&ask.mark).or_else(|| written.get(&asks[0].mark)) {
            Some(Ok(_)) => found,
            Some(Err(error)) => Err(error.clone()),
            None => Err((redis::ErrorKind::UnexpectedReturnType, "an answer is missing").into()),
        }
    });
    let both = both.collect();
    Ok((connection, both))
}

fn read(store: &Store, answer: Result<Value, RedisError>, asked: &str) -> Answer {
    match answer {
        Ok(found) => Answer::Confirmed(found),
        // While a slot moves, its new server accepts only commands after `ASKING`.
        Err(error) => match error.redirect_node().filter(|_| error.code() == Some("MOVED")) {
            Some((address, _)) if let Some(home) = server(address, asked) => Answer::Elsewhere(home),
            _ => Answer::Unconfirmed(fault(&store.link.settings, &error).to_string()),
        },
    }
}
