//! The connection that all calls of a link share, and its replacement.
//!
//! A connection is replaced when it breaks, when its server has become a replica, and when it is
//! silent: neither a call nor a `PING` after it was answered, within half of `timeout` each. A new
//! connection resolves the name of the server again. Calls that wait on the old connection are
//! repeated on the new one, which has no additional effect: see `calls`.

use crate::link::Door;
use dwell_core::Clock;
use redis::{
    Cmd, RedisError, Value,
    aio::MultiplexedConnection,
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo},
};
use std::{
    io,
    pin::pin,
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{Mutex, watch};

/// Connection to one server, or to all servers of a cluster. A clone is the same connection.
#[derive(Clone)]
pub(crate) enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// The pause after a failed attempt to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// Age from which a connection to a replica is replaced. The address may lead to a replica
/// permanently.
const REPLICA_AGE: Duration = Duration::from_secs(1);

pub(crate) struct Shared {
    door: Arc<Door>,
    clock: Arc<dyn Clock>,
    current: watch::Sender<Current>,
    /// Last failure and its time. Locked while a new connection is opened.
    replacing: Mutex<Option<(Duration, RedisError)>>,
    /// Locked while the connection is probed.
    probing: Arc<Mutex<()>>,
    answers: std::sync::Mutex<Answers>,
}

/// Times of answers, to detect a silent connection.
#[derive(Default)]
struct Answers {
    /// Time of the first call after the last answer.
    unanswered: Option<Duration>,
    /// Time of the last answer.
    last: Option<Duration>,
}

struct Current {
    connection: Connection,
    /// Number of earlier connections.
    number: u64,
    since: Duration,
}

/// Result of one attempt of a call.
enum Tried {
    Answered(Result<Value, RedisError>),
    /// The connection was replaced in the meantime.
    Replaced,
}

impl Connection {
    /// Returns the answer of the server, or of every master if `is_for_all`.
    pub(crate) async fn query(&self, command: &Cmd, is_for_all: bool) -> Result<Value, RedisError> {
        match self.clone() {
            Self::Server(mut server) => command.query_async(&mut server).await,
            Self::Cluster(mut cluster) if is_for_all => {
                let route = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                cluster.route_command(command.clone(), route).await
            }
            Self::Cluster(mut cluster) => command.query_async(&mut cluster).await,
        }
    }
}

impl Shared {
    pub(crate) fn new(door: Arc<Door>, clock: Arc<dyn Clock>, connection: Connection) -> Arc<Self> {
        let current = Current { connection, number: 0, since: clock.elapsed() };
        let (current, _) = watch::channel(current);
        let (replacing, probing, answers) = Default::default();
        Arc::new(Self { door, clock, current, replacing, probing, answers })
    }

    /// Number of earlier connections. Other connections to the same address are replaced with this
    /// one.
    pub(crate) fn number(&self) -> u64 {
        self.current.borrow().number
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.current.borrow().connection, Connection::Cluster(_))
    }

    /// Runs a command that may be repeated, on one server or on every master.
    pub(crate) async fn ask(self: &Arc<Self>, command: &Cmd, is_for_all: bool) -> Result<Value, RedisError> {
        let asked = async {
            let mut is_repeated = false;
            loop {
                let (connection, number) = {
                    let current = self.current.borrow();
                    (current.connection.clone(), current.number)
                };
                match self.try_ask(&connection, number, command, is_for_all).await {
                    Tried::Replaced => {}
                    Tried::Answered(Err(error)) if !is_repeated && self.is_useless(&error) => {
                        is_repeated = true;
                        self.after(&connection, number, error).await?;
                    }
                    Tried::Answered(answer) => return answer,
                }
            }
        };
        tokio::select! {
            biased;
            answer = asked => answer,
            () = self.clock.sleep(self.door.settings.timeout) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }

    async fn try_ask(
        self: &Arc<Self>,
        connection: &Connection,
        number: u64,
        command: &Cmd,
        is_for_all: bool,
    ) -> Tried {
        let mut changes = self.current.subscribe();
        let mut is_replaced = pin!(changes.wait_for(|current| current.number != number));
        if self.is_silent() {
            self.probe(number);
        }
        let mut answer = pin!(async {
            let answer = connection.query(command, is_for_all).await;
            *self.answers() = Answers { unanswered: None, last: Some(self.clock.elapsed()) };
            answer
        });
        tokio::select! {
            biased;
            answer = &mut answer => return Tried::Answered(answer),
            _ = &mut is_replaced => return Tried::Replaced,
            () = self.clock.sleep(self.silence()) => self.probe(number),
        }
        tokio::select! {
            biased;
            answer = answer => Tried::Answered(answer),
            _ = is_replaced => Tried::Replaced,
        }
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether earlier calls have had no answer for long. Their callers may have timed out before
    /// they could detect it.
    fn is_silent(&self) -> bool {
        let now = self.clock.elapsed();
        let since = *self.answers().unanswered.get_or_insert(now);
        now.saturating_sub(since) >= self.silence()
    }

    /// Whether a slow server has answered a call. In a cluster, that may be another server than the
    /// silent one.
    fn is_answered_since(&self, start: Duration) -> bool {
        !self.is_cluster() && self.answers().last.is_some_and(|last| last >= start)
    }

    /// How long a call is waited for before the connection is probed, and then how long for the
    /// probe's answer.
    fn silence(&self) -> Duration {
        self.door.settings.timeout / 2
    }

    /// Whether another attempt on another connection may help.
    fn is_useless(&self, error: &RedisError) -> bool {
        let is_replica = matches!(error.code(), Some("READONLY" | "MASTERDOWN")) && !self.is_cluster();
        is_replica || error.is_connection_dropped()
    }

    /// Prepares the repetition of a call that failed with this error.
    async fn after(
        self: &Arc<Self>,
        connection: &Connection,
        number: u64,
        error: RedisError,
    ) -> Result<(), RedisError> {
        match connection {
            // The client library reconnects to the servers of a running cluster itself.
            Connection::Cluster(_) => {
                self.probe(number);
                Ok(())
            }
            Connection::Server(_) if error.is_connection_dropped() => self.replace(number).await,
            Connection::Server(_) => {
                let age = self.clock.elapsed().saturating_sub(self.current.borrow().since);
                if age < REPLICA_AGE && self.number() == number {
                    return Err(error);
                }
                tracing::warn!(server = %self.door.settings.place(), "server is a replica; reconnecting");
                self.replace(number).await
            }
        }
    }

    /// Replaces the connection with this number if it does not answer a `PING`.
    fn probe(self: &Arc<Self>, number: u64) {
        let Ok(probing) = self.probing.clone().try_lock_owned() else { return };
        let shared = self.clone();
        tokio::spawn(async move {
            let _probing = probing;
            let connection = {
                let current = shared.current.borrow();
                (current.number == number).then(|| current.connection.clone())
            };
            let Some(connection) = connection else { return };
            let start = shared.clock.elapsed();
            let ping = redis::cmd("PING");
            let is_answered = tokio::select! {
                biased;
                // An error from the server is an answer, too.
                answer = connection.query(&ping, true) => answer.map_or_else(|error| error.code().is_some(), |_| true),
                () = shared.clock.sleep(shared.silence()) => false,
            };
            if is_answered || shared.is_answered_since(start) {
                return;
            }
            let server = shared.door.settings.place();
            match shared.replace(number).await {
                Ok(()) => tracing::warn!(%server, "connection silent; replaced it"),
                Err(error) => {
                    let error = crate::fault::unreachable(&shared.door.settings, &error);
                    tracing::warn!(%server, %error, "connection silent; reconnecting failed");
                }
            }
        });
    }

    /// Opens another connection, unless the one with this number was replaced before. Callers that
    /// wait for the same attempt share its failure.
    async fn replace(&self, number: u64) -> Result<(), RedisError> {
        let start = self.clock.elapsed();
        let mut failure = self.replacing.lock().await;
        if self.number() != number {
            return Ok(());
        }
        if let Some((_, error)) = failure.as_ref().filter(|(at, _)| *at >= start) {
            return Err(error.clone());
        }
        match self.door.connect(self.is_cluster()).await {
            Ok(connection) => {
                self.current.send_modify(|current| {
                    let number = current.number + 1;
                    *current = Current { connection, number, since: self.clock.elapsed() };
                });
                *self.answers() = Answers::default();
                Ok(())
            }
            Err(error) => {
                self.clock.sleep(PAUSE).await;
                *failure = Some((self.clock.elapsed(), error.clone()));
                Err(error)
            }
        }
    }
}
