//! Waiting for the server to say that there is something: a read that blocks, on a connection of its own. It is only a
//! signal; whoever is woken looks for himself, and looks anyway after a while.

use crate::{keys, store::Store};
use redis::{Cmd, Value, aio::MultiplexedConnection};
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// The longest that the server is asked to hold an answer back. A connection that has died without a word is noticed by then.
const LONGEST: Duration = Duration::from_secs(2);

/// How long after that the connection counts as dead.
const GRACE: Duration = Duration::from_secs(3);

/// What to wait for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signals {
    /// Streams, and the last entry of each that is known.
    pub(crate) streams: Vec<(String, String)>,
}

pub(crate) struct Waiter {
    connection: Mutex<Option<MultiplexedConnection>>,
    /// The server that has the keys, as far as is known.
    server: Mutex<(String, u16)>,
}

impl Waiter {
    pub(crate) fn new(store: &Store) -> Self {
        let server = store.link.settings.hosts[0].clone();
        Self { connection: Mutex::default(), server: Mutex::new(server) }
    }

    /// Waits until one of the streams has more, or as long as that. Trouble is no reason to wait less: it is slept out,
    /// for the caller looks again anyway.
    pub(crate) async fn wait(&self, store: &Store, signals: &Signals, at_most: Duration) {
        let clock = &store.seams.clock;
        let block = at_most.min(LONGEST);
        if block < Duration::from_millis(1) {
            clock.sleep(at_most).await;
            return;
        }
        let waited = tokio::select! {
            biased;
            answer = self.read(store, signals, block) => answer,
            () = clock.sleep(block + GRACE) => None,
        };
        if waited.is_none() {
            *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
            clock.sleep(block.min(Duration::from_millis(100))).await;
        }
    }

    /// `None` if the connection is of no use.
    async fn read(&self, store: &Store, signals: &Signals, block: Duration) -> Option<()> {
        let mut connection = self.connect(store).await?;
        let mut command: Cmd = redis::cmd("XREAD");
        // Rounded up: who is woken too early would look in vain.
        command.arg("COUNT").arg(1).arg("BLOCK").arg(crate::places::to_millis(block)).arg("STREAMS");
        signals.streams.iter().for_each(|(key, _)| _ = command.arg(key));
        signals.streams.iter().for_each(|(_, last)| _ = command.arg(last));
        match command.query_async::<Value>(&mut connection).await {
            Ok(_) => Some(()),
            Err(error) => {
                if let Some((host, port)) = error.redirect_node() {
                    let host = if host.is_empty() { store.link.settings.hosts[0].0.as_str() } else { host };
                    *self.server.lock().unwrap_or_else(PoisonError::into_inner) = (host.to_owned(), port);
                } else if store.link.is_cluster() {
                    // That server may have gone for good: any other knows who has its slots.
                    self.next_server(store);
                }
                None
            }
        }
    }

    async fn connect(&self, store: &Store) -> Option<MultiplexedConnection> {
        let known = self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_some() {
            return known;
        }
        let (host, port) = self.server.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match store.link.own(&host, port).await {
            Ok(connection) => {
                *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
                Some(connection)
            }
            Err(_) => {
                self.next_server(store);
                None
            }
        }
    }

    fn next_server(&self, store: &Store) {
        let hosts = &store.link.settings.hosts;
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let next =
            hosts.iter().position(|host| *host == *server).map_or(0, |index| (index + 1) % hosts.len());
        *server = hosts[next].clone();
    }
}

/// The streams that tell of changes in one topic, behind the last signal.
pub(crate) fn of_topic(store: &Store, topic: &str, last: &str) -> Signals {
    let keys = keys::of_topic(&store.link.settings.prefix, topic);
    Signals { streams: vec![(keys[3].clone(), last.to_owned()), (keys[7].clone(), "0-0".to_owned())] }
}
