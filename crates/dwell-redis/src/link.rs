//! Connections: one that all calls share, and one for each blocking read.

use crate::{
    fault::{fault, unreachable},
    places::text,
    script::Script,
    settings::RedisSettings,
    shared::{Connection, Shared},
    waiter::server,
};
use dwell_core::{Clock, Error, ErrorKind, Result};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, TlsCertificates, Value,
    aio::MultiplexedConnection,
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use std::{fs, io, sync::Arc, time::Duration};

pub(crate) struct Link {
    pub(crate) settings: RedisSettings,
    /// Opens separate connections.
    pub(crate) door: Arc<Door>,
    /// Shared connection of all calls of a transport.
    pub(crate) shared: Arc<Shared>,
}

/// Everything needed to connect.
pub(crate) struct Door {
    pub(crate) settings: RedisSettings,
    /// Servers of the URL, and all others of their cluster.
    pub(crate) servers: Vec<(String, u16)>,
    certificates: Option<TlsCertificates>,
}

/// Maximum duration of one attempt to connect.
const CONNECT: Duration = Duration::from_secs(5);

impl Link {
    /// Connects. If a single server belongs to a cluster, it is queried for the other servers.
    pub(crate) async fn open(settings: RedisSettings, clock: Arc<dyn Clock>) -> Result<Self> {
        settings.check()?;
        if settings.tls {
            // Another part of the program may have installed one before, which is fine.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let certificates = match &settings.ca {
            None => None,
            Some(path) => {
                let root_cert = fs::read(path).map_err(|error| {
                    let text = format!("the file `{}` of the option `ca` cannot be read", path.display());
                    Error::new(ErrorKind::Config, text).with_source(error)
                })?;
                Some(TlsCertificates { client_tls: None, root_cert: Some(root_cert) })
            }
        };
        let explain = |error: RedisError| unreachable(&settings, &error);
        let servers = settings.hosts.clone();
        let mut door = Door { settings: settings.clone(), servers, certificates };
        let mut connection = door.connect(settings.hosts.len() > 1).await.map_err(explain)?;
        if let Connection::Server(_) = &connection {
            let info = within(&*clock, settings.timeout, async {
                connection.query(redis::cmd("INFO").arg("cluster"), false).await
            });
            if text(&info.await.map_err(explain)?).contains("cluster_enabled:1") {
                connection = door.connect(true).await.map_err(explain)?;
            }
        }
        if let Connection::Cluster(_) = &connection {
            // If the user may not run this command, only the servers of the URL are known.
            let nodes = within(&*clock, settings.timeout, async {
                connection.query(redis::cmd("CLUSTER").arg("NODES"), false).await
            });
            let nodes = nodes.await.map(|nodes| text(&nodes)).unwrap_or_default();
            let others = nodes.lines().filter_map(|line| node(line, &door.servers[0].0)).collect::<Vec<_>>();
            door.servers.extend(others);
            door.servers.sort();
            door.servers.dedup();
        }
        let door = Arc::new(door);
        let shared = Shared::new(door.clone(), clock, connection);
        Ok(Self { settings, door, shared })
    }

    /// Runs a command on every server that accepts commands. Returns one answer each, by its
    /// address.
    pub(crate) async fn query_all(&self, command: &Cmd) -> Result<Value> {
        self.shared.ask(command, true).await.map_err(|error| fault(&self.settings, &error))
    }

    /// Runs a command that may be repeated.
    pub(crate) async fn query(&self, command: &Cmd) -> Result<Value> {
        self.ask(command).await.map_err(|error| fault(&self.settings, &error))
    }

    /// Every command and script that comes here may be repeated: see `calls`.
    async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.shared.ask(command, false).await
    }

    /// Runs a script by its hash, and loads it if the server has forgotten it. `with` writes the
    /// number of keys, the keys and the arguments.
    pub(crate) async fn run(&self, script: &Script, with: impl Fn(&mut Cmd)) -> Result<Value> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&script.hash);
        with(&mut command);
        match self.ask(&command).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let mut command = redis::cmd("EVAL");
                command.arg(&script.text);
                with(&mut command);
                let answer = self.ask(&command).await;
                answer.map_err(|error| fault(&self.settings, &error))
            }
            answer => answer.map_err(|error| fault(&self.settings, &error)),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.shared.is_cluster()
    }
}

impl Door {
    /// Opens a connection for all calls.
    pub(crate) async fn connect(&self, is_cluster: bool) -> Result<Connection, RedisError> {
        Ok(match is_cluster {
            true => Connection::Cluster(self.cluster().await?),
            false => {
                let (host, port) = &self.settings.hosts[0];
                Connection::Server(self.own(host, *port).await?)
            }
        })
    }

    /// Opens a separate connection to one server, for blocking commands. In a cluster, the server
    /// redirects to another.
    pub(crate) async fn own(&self, host: &str, port: u16) -> Result<MultiplexedConnection, RedisError> {
        let info = self.info(host, port)?;
        let client = match &self.certificates {
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
            None => Client::open(info),
        }?;
        // Callers have their own timeouts, and replace a silent connection.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    async fn cluster(&self) -> Result<ClusterConnection, RedisError> {
        let nodes = self.servers.iter().map(|(host, port)| self.info(host, *port));
        let nodes = nodes.collect::<Result<Vec<_>, RedisError>>()?;
        let mut builder = ClusterClient::builder(nodes)
            .tcp_settings(tcp_settings())
            .connection_timeout(CONNECT)
            .response_timeout(self.settings.timeout)
            .retries(3)
            .min_retry_wait(50)
            .max_retry_wait(500);
        if let Some(certificates) = &self.certificates {
            builder = builder.certs(certificates.clone());
        }
        builder.build()?.get_async_connection().await
    }

    fn info(&self, host: &str, port: u16) -> Result<ConnectionInfo, RedisError> {
        let host = host.to_owned();
        let address = match self.settings.tls {
            false => ConnectionAddr::Tcp(host, port),
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let info = address.into_connection_info()?.set_redis_settings(login(&self.settings));
        Ok(info.set_tcp_settings(tcp_settings()))
    }
}

/// Returns the answer if it arrives in time.
async fn within(
    clock: &dyn Clock,
    time: Duration,
    answer: impl Future<Output = Result<Value, RedisError>>,
) -> Result<Value, RedisError> {
    tokio::select! {
        biased;
        answer = answer => answer,
        () = clock.sleep(time) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    }
}

/// The operating system closes a connection whose peer has vanished: an idle one after about
/// fifteen seconds, and one with unsent data after ten.
fn tcp_settings() -> TcpSettings {
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(Duration::from_secs(10));
    settings
}

/// Parses a line of `CLUSTER NODES`: its second word is `host:port@bus`, optionally followed by a
/// name.
fn node(line: &str, asked: &str) -> Option<(String, u16)> {
    let (address, _) = line.split(' ').nth(1)?.split_once('@')?;
    server(address, asked).filter(|(_, port)| *port > 0)
}

fn login(settings: &RedisSettings) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_db(settings.database);
    if let Some(name) = &settings.username {
        login = login.set_username(name);
    }
    if let Some(password) = &settings.password {
        login = login.set_password(password.expose());
    }
    login
}

#[cfg(test)]
mod tests {
    use super::node;

    #[test]
    fn the_servers_of_a_cluster_are_parsed_from_cluster_nodes() {
        let said = [
            "07c3 127.0.0.1:30004@31004,hostname4 slave e7d1 0 1426238317239 4 connected",
            "67ed 10.0.0.2:30002@31002 master - 0 1426238316232 2 connected 5461-10922",
            "e7d1 :30001@31001 myself,master - 0 0 1 connected 0-5460",
            "e7d2 :0@0 master,noaddr - 0 0 1 disconnected",
            "",
        ];
        let found: Vec<_> = said.iter().filter_map(|line| node(line, "asked")).collect();
        let servers = [("127.0.0.1", 30004), ("10.0.0.2", 30002), ("asked", 30001)];
        assert_eq!(found, servers.map(|(host, port)| (host.to_owned(), port)));
    }
}
