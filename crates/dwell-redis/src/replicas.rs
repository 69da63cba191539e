//! Waiting until replicas have what was written.
//!
//! `WAIT` keeps everything waiting that comes behind it on the same connection, and where a replica is away that is long: leases would
//! run out. So it has a connection of its own, one for each server: where a replica of one is away, nobody waits longer at another.
//! It is about that connection's own last write, so a small one goes before it; whatever else the server has written before, it has
//! passed on before that. On a connection that has written nothing, it would be answered at once, for nothing. So these are connections
//! that never connect again by themselves: one that breaks confirms nothing.
//!
//! Before that small write, the same connection is asked whether what is to be confirmed is there at all: what was written may have gone to
//! another server, which this one has replaced since. Those who wait for one server at the same time wait together.

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

/// A host and its port.
type Server = (String, u16);

/// How often one server may say that another has the key.
const REDIRECTIONS: usize = 5;

#[derive(Default)]
pub(crate) struct Replicas {
    waits: Mutex<HashMap<Server, Arc<Together<Ask, Answer>>>>,
    /// Those that are not in use, with the number of the shared connection at which each was opened: with a new one, they are
    /// replaced as well.
    connections: Mutex<HashMap<Server, (u64, MultiplexedConnection)>>,
    /// Which server of a cluster has the slots from one to another, as far as is known. The first that fits counts.
    homes: Mutex<Vec<(u16, u16, Server)>>,
}

/// What to confirm: where, the small write in its slot, and the question whether it is there.
#[derive(Clone)]
struct Ask {
    at: Server,
    mark: String,
    check: Cmd,
}

#[derive(Clone)]
enum Answer {
    /// The replicas have it, if this answer to the question says that it is there.
    Confirmed(Value),
    Elsewhere(Server),
    Unconfirmed(String),
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replicas {
    /// Waits until as many replicas as `replicas` asks for have what was written to the server of `key`, and is there by the answer to
    /// `check`.
    pub(crate) async fn confirm(
        &self,
        store: &Arc<Store>,
        key: &str,
        check: &Cmd,
        is_there: impl Fn(Value) -> bool,
    ) -> Result<()> {
        let settings = &store.link.settings;
        let (slot, mark) = (keys::slot(key), keys::mark(&settings.prefix, key));
        let mut why = "it is not clear which server has it".to_owned();
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
                    "whoever waited for them was stopped".clone_into(&mut why);
                    break;
                }
            }
        }
        let text = format!(
            "it is stored at {}, and not confirmed by {} replicas as `replicas` asks ({why}): it may be lost if the server is. Try again to \
             have it confirmed: it is not stored twice",
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

    /// The server of a slot. One that was asked in vain would say so as well, but only when those who wait there are done.
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
        // Not everybody may ask.
        let said = store.link.query(redis::cmd("CLUSTER").arg("SLOTS")).await.map(list).unwrap_or_default();
        let homes: Vec<_> = said.into_iter().filter_map(|of| range(of, &first.0)).collect();
        let home = find(&homes).unwrap_or_else(|| first.clone());
        *lock(&self.homes) = homes;
        home
    }

    /// A server that cannot be reached may have been replaced: who has what is asked anew.
    fn leave(&self) {
        lock(&self.homes).clear();
    }
}

/// First and last slot, and host and port of the server that has them.
fn range(said: Value, asked: &str) -> Option<(u16, u16, Server)> {
    let said = list(said);
    let (first, last) = (number(said.first()?), number(said.get(1)?));
    let master = list(said.get(2)?.clone());
    let address = format!("{}:{}", text(master.first()?), number(master.get(1)?));
    Some((first.try_into().ok()?, last.try_into().ok()?, server(&address, asked)?))
}

/// All of one server.
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

/// A connection that was dropped on the way here is not used again.
async fn try_all(store: &Store, at: &Server, asks: &[Ask]) -> Result<Vec<Answer>, RedisError> {
    let shared = store.link.shared.number();
    let kept = lock(&store.replicas.connections).remove(at).filter(|(of, _)| *of == shared);
    let marked = match kept {
        // It may have died since it was used last: then all of it is done on another.
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

/// Asks for each whether it is there, and writes something small behind that.
async fn mark(
    store: &Store,
    mut connection: MultiplexedConnection,
    asks: &[Ask],
) -> Result<Marked, RedisError> {
    // A server without others takes one mark for all. In a cluster, it only takes those of slots that are its own.
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
        // While a slot moves, its new server takes nothing that does not say that it knows.
        Err(error) => match error.redirect_node().filter(|_| error.code() == Some("MOVED")) {
            Some((address, _)) if let Some(home) = server(address, asked) => Answer::Elsewhere(home),
            _ => Answer::Unconfirmed(fault(&store.link.settings, &error).to_string()),
        },
    }
}
