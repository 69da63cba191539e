//! Waiting for changes on the server with a blocking read on a separate connection. The read is
//! only a signal: its waiter then polls, and also polls after a while without a signal.
//!
//! The server ends a blocking read late, by up to a tenth of a second. Timeouts are therefore
//! measured here. A read that is still pending after the timeout serves the next waiter: while it
//! is pending, nothing has changed.

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

/// Requested duration of a blocking read. A dead connection is noticed soon after.
const BLOCK: Duration = Duration::from_secs(2);

/// Additional time after which the connection counts as dead.
const GRACE: Duration = Duration::from_secs(3);

/// Pause after the first failed connection attempt. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause, and polling interval of waiters.
const LONGEST_PAUSE: Duration = BLOCK;

/// Streams, with the last known entry of each.
pub(crate) type Signals = Vec<(String, String)>;

/// Answer of the server; `false` if the connection has failed.
type Read = Pin<Box<dyn Future<Output = bool> + Send>>;

pub(crate) struct Waiter {
    line: Arc<Line>,
    /// The pending read, and its start.
    read: Mutex<Option<(Read, Duration)>>,
    /// Number of consecutive failures.
    failures: AtomicU32,
}

/// The connection, and the server that is believed to have the keys.
struct Line {
    door: Arc<Door>,
    shared: Arc<Shared>,
    /// Opened while the shared connection had this number. A new one may lead to another server.
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

    /// Waits until one of the streams has a new entry, for at most this duration, or until it is
    /// time to poll. Errors do not shorten the wait.
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
        // The read stays pending when this is dropped, because its answer must still be received.
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

/// Pause after this number of consecutive failures.
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
        // The error names the server as `host:port`, and also the slot.
        let asked = lock(&self.server).0.clone();
        match error.redirect_node().and_then(|(address, _)| server(address, &asked)) {
            Some(server) => *lock(&self.server) = server,
            // That server may be gone for good. Any other server knows the owner of its slots.
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

/// Returns the server at this address. An address without a host is the server that was queried.
pub(crate) fn server(address: &str, asked: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host.is_empty() { asked } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

/// Returns the stream of changes in one topic, after the last signal, for its promoter.
pub(crate) fn wake_of(store: &Store, topic: &str, last: String) -> (String, String) {
    (keys::of_topic(&store.link.settings.prefix, topic).swap_remove(3), last)
}

/// Returns the stream of messages of other programs in a topic, after those that could not be taken
/// in.
pub(crate) fn incoming_of(store: &Store, topic: &str, stuck: String) -> (String, String) {
    (keys::of_topic(&store.link.settings.prefix, topic).swap_remove(7), stuck)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_attempts_back_off_and_never_stop() {
        let pauses = [0, 1, 2, 3, 50].map(pause);
        assert_eq!(pauses.map(|pause| pause.as_millis()), [100, 200, 400, 800, 2000]);
    }

    #[test]
    fn a_redirection_names_host_and_port() {
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
