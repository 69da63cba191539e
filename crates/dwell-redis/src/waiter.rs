//! Waiting for the server to say that there is something: a read that blocks, on a connection of its own. It is only a
//! signal; whoever is woken looks for himself, and looks anyway after a while.
//!
//! The server ends a blocking read late, by up to a tenth of a second. So the time is kept here, and a read that is still
//! under way when its time has come serves the next one who waits: as long as it is, there was nothing new.

use crate::{keys, link::Door, places::to_millis, shared::Shared, store::Store};
use redis::{Cmd, Value, aio::MultiplexedConnection};
use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

/// How long the server is asked to hold an answer back. A connection that has died without a word is noticed soon after.
const BLOCK: Duration = Duration::from_secs(2);

/// How long after that the connection counts as dead.
const GRACE: Duration = Duration::from_secs(3);

/// How long nobody tries to connect again after it has failed; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest. Whoever waits looks that often.
const LONGEST_PAUSE: Duration = BLOCK;

/// Streams, and the last entry of each that is known.
pub(crate) type Signals = Vec<(String, String)>;

/// The answer of the server; `false` if the connection is of no use.
type Read = Pin<Box<dyn Future<Output = bool> + Send>>;

pub(crate) struct Waiter {
    line: Arc<Line>,
    /// The read that is under way, and since when.
    read: Mutex<Option<(Read, Duration)>>,
    /// How often in a row the connection was of no use.
    failures: AtomicU32,
}

/// The connection, and the server that has the keys, as far as is known.
struct Line {
    door: Arc<Door>,
    shared: Arc<Shared>,
    /// Opened while the shared connection had this number: a new one may lead to another server.
    connection: Mutex<Option<(u64, MultiplexedConnection)>>,
    server: Mutex<(String, u16)>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiter {
    pub(crate) fn new(store: &Store) -> Self {
        let (door, shared) = (store.link.door.clone(), store.link.shared.clone());
        let server = Mutex::new(door.settings.hosts[0].clone());
        Self {
            line: Arc::new(Line { door, shared, connection: Mutex::default(), server }),
            read: Mutex::default(),
            failures: AtomicU32::new(0),
        }
    }

    /// Waits until one of the streams has more, or as long as that, or until it is time to look anyway. Trouble is no reason
    /// to wait less.
    pub(crate) async fn wait(&self, store: &Store, signals: &Signals, at_most: Duration) {
        let clock = &store.seams.clock;
        let now = clock.elapsed();
        {
            let mut read = lock(&self.read);
            if read.as_ref().is_some_and(|(_, since)| now.saturating_sub(*since) > BLOCK + GRACE) {
                *read = None;
                *lock(&self.line.connection) = None;
            }
            if read.is_none() {
                *read = Some((Box::pin(self.line.clone().read(signals.clone())), now));
            }
        }
        // Left where it is when this is dropped: the server has been asked, and its answer must be taken.
        let answered = poll_fn(|cx| {
            let mut read = lock(&self.read);
            let Some((asked, _)) = read.as_mut() else { return Poll::Ready(true) };
            match asked.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(answer) => {
                    *read = None;
                    Poll::Ready(answer)
                }
            }
        });
        let at_most = at_most.min(BLOCK);
        let is_useful = tokio::select! {
            biased;
            answer = answered => Some(answer),
            () = clock.sleep(at_most) => None,
        };
        match is_useful {
            None => {}
            Some(true) => self.failures.store(0, Ordering::Relaxed),
            Some(false) => {
                *lock(&self.line.connection) = None;
                let failures = self.failures.fetch_add(1, Ordering::Relaxed);
                clock.sleep(at_most.min(pause(failures))).await;
            }
        }
    }
}

/// How long nobody tries again after so many failures before.
fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE)
}

impl Line {
    async fn read(self: Arc<Self>, signals: Signals) -> bool {
        let Some(mut connection) = self.connect().await else { return false };
        let mut command: Cmd = redis::cmd("XREAD");
        command.arg("COUNT").arg(1).arg("BLOCK").arg(to_millis(BLOCK)).arg("STREAMS");
        signals.iter().for_each(|(key, _)| _ = command.arg(key));
        signals.iter().for_each(|(_, last)| _ = command.arg(last));
        let Err(error) = command.query_async::<Value>(&mut connection).await else { return true };
        // It names the server as `host:port`, and beside it the slot.
        let asked = lock(&self.server).0.clone();
        match error.redirect_node().and_then(|(address, _)| server(address, &asked)) {
            Some(server) => *lock(&self.server) = server,
            // That server may have gone for good: any other knows who has its slots.
            None => self.next_server(),
        }
        false
    }

    async fn connect(&self) -> Option<MultiplexedConnection> {
        let number = self.shared.number();
        let known = lock(&self.connection).clone().filter(|(of, _)| *of == number);
        if let Some((_, connection)) = known {
            return Some(connection);
        }
        let (host, port) = lock(&self.server).clone();
        match self.door.own(&host, port).await {
            Ok(connection) => {
                *lock(&self.connection) = Some((number, connection.clone()));
                Some(connection)
            }
            Err(_) => {
                self.next_server();
                None
            }
        }
    }

    fn next_server(&self) {
        let hosts = &self.door.servers;
        let mut server = lock(&self.server);
        let next =
            hosts.iter().position(|host| *host == *server).map_or(0, |index| (index + 1) % hosts.len());
        *server = hosts[next].clone();
    }
}

/// The server at this address; one that names no host is where we asked.
pub(crate) fn server(address: &str, asked: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host.is_empty() { asked } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

/// The stream that tells of changes in one topic to whoever makes ready what is due there, behind the last signal.
pub(crate) fn wake_of(store: &Store, topic: &str, last: String) -> (String, String) {
    (keys::of_topic(&store.link.settings.prefix, topic).swap_remove(3), last)
}

/// What other programs have put into a topic, for whoever takes it in: behind what could not be.
pub(crate) fn incoming_of(store: &Store, topic: &str, stuck: String) -> (String, String) {
    (keys::of_topic(&store.link.settings.prefix, topic).swap_remove(7), stuck)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_connect_tries_ever_less_often_and_never_gives_up() {
        let pauses = [0, 1, 2, 3, 50].map(pause);
        assert_eq!(pauses.map(|pause| pause.as_millis()), [100, 200, 400, 800, 2000]);
    }

    #[test]
    fn a_redirection_leads_to_the_host_and_port_that_it_names() {
        let leads = |address| server(address, "asked");
        assert_eq!(leads("10.0.0.2:7001"), Some(("10.0.0.2".to_owned(), 7001)));
        assert_eq!(leads("node-2.example:6379"), Some(("node-2.example".to_owned(), 6379)));
        assert_eq!(leads("[::1]:7001"), Some(("::1".to_owned(), 7001)));
        assert_eq!(leads("::1:7001"), Some(("::1".to_owned(), 7001)));
        assert_eq!(leads(":7001"), Some(("asked".to_owned(), 7001)));
        assert_eq!(leads("10.0.0.2"), None);
        assert_eq!(leads("10.0.0.2:none"), None);
    }
}
