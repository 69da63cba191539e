//! Connections: one that all calls share, and one for each that blocks.

use crate::{
    fault::{fault, unreachable},
    script::Script,
    settings::RedisSettings,
    waiter::server,
};
use dwell_core::{Error, ErrorKind, Result};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    TlsCertificates, Value,
    aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo},
};
use std::{fs, sync::Arc, time::Duration};

/// What all calls of a transport go through. A clone is the same link.
#[derive(Clone)]
enum Shared {
    Server(ConnectionManager),
    Cluster(ClusterConnection),
}

pub(crate) struct Link {
    pub(crate) settings: RedisSettings,
    /// For those that need a connection of their own.
    pub(crate) door: Arc<Door>,
    shared: Shared,
}

/// All that it takes to connect.
pub(crate) struct Door {
    pub(crate) settings: RedisSettings,
    /// Those that the URL names, and all others of their cluster.
    pub(crate) servers: Vec<(String, u16)>,
    certificates: Option<TlsCertificates>,
}

/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(5);

impl Link {
    /// Connects. One server that says that it belongs to a cluster is asked for the others.
    pub(crate) async fn open(settings: RedisSettings) -> Result<Self> {
        settings.check()?;
        if settings.tls {
            // Another part of the program may have chosen one before: that is as good.
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
        let mut is_cluster = settings.hosts.len() > 1;
        let mut shared = None;
        if !is_cluster {
            let (host, port) = &settings.hosts[0];
            let client = client(&settings, certificates.as_ref(), host, *port).map_err(explain)?;
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(CONNECT))
                .set_response_timeout(Some(settings.timeout))
                .set_min_delay(Duration::from_millis(50))
                .set_max_delay(Duration::from_secs(1))
                .set_number_of_retries(1);
            let mut manager = ConnectionManager::new_with_config(client, config).await.map_err(explain)?;
            let info: String =
                redis::cmd("INFO").arg("cluster").query_async(&mut manager).await.map_err(explain)?;
            is_cluster = info.contains("cluster_enabled:1");
            shared = Some(Shared::Server(manager));
        }
        if is_cluster {
            shared = Some(Shared::Cluster(cluster(&settings, certificates.as_ref()).await.map_err(explain)?));
        }
        let shared =
            shared.ok_or_else(|| Error::new(ErrorKind::Config, "the redis:// URL names no server"))?;
        let mut servers = settings.hosts.clone();
        if let Shared::Cluster(cluster) = &shared {
            // Not everybody may ask; then it is those of the URL alone.
            let nodes = redis::cmd("CLUSTER").arg("NODES").query_async::<String>(&mut cluster.clone()).await;
            let nodes = nodes.unwrap_or_default();
            let others = nodes.lines().filter_map(|line| node(line, &servers[0].0)).collect::<Vec<_>>();
            servers.extend(others);
            servers.sort();
            servers.dedup();
        }
        let door = Arc::new(Door { settings: settings.clone(), servers, certificates });
        Ok(Self { settings, door, shared })
    }

    /// The same of every server that takes commands: one answer each, by its address.
    pub(crate) async fn query_all(&self, command: &Cmd) -> Result<Value> {
        let Shared::Cluster(cluster) = &self.shared else { return self.query(command).await };
        let route = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let answers = cluster.clone().route_command(command.clone(), route).await;
        answers.map_err(|error| fault(&self.settings, &error))
    }

    /// One command that may be repeated.
    pub(crate) async fn query(&self, command: &Cmd) -> Result<Value> {
        self.ask(command).await.map_err(|error| fault(&self.settings, &error))
    }

    /// A connection that has died meanwhile is only noticed by the next command, which is then repeated; in a cluster, the client
    /// library does so by itself. Every command and script that comes here may be: see `calls`.
    async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        match self.try_ask(command).await {
            Err(error) if error.is_connection_dropped() => self.try_ask(command).await,
            answer => answer,
        }
    }

    async fn try_ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        match self.shared.clone() {
            Shared::Server(mut server) => command.query_async(&mut server).await,
            Shared::Cluster(mut cluster) => command.query_async(&mut cluster).await,
        }
    }

    /// One script, by its hash; a server that has forgotten it is told again. `with` writes the number of keys, the keys and
    /// the arguments.
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
        matches!(self.shared, Shared::Cluster(_))
    }
}

impl Door {
    /// A connection of its own to one server, for commands that block. In a cluster, the server says where to go.
    pub(crate) async fn own(&self, host: &str, port: u16) -> Result<MultiplexedConnection, RedisError> {
        let client = client(&self.settings, self.certificates.as_ref(), host, port)?;
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&config).await
    }
}

/// The server that a line of `CLUSTER NODES` is about: its second word is `host:port@bus`, and perhaps a name behind that.
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

fn client(
    settings: &RedisSettings,
    certificates: Option<&TlsCertificates>,
    host: &str,
    port: u16,
) -> Result<Client, RedisError> {
    let address = match settings.tls {
        false => ConnectionAddr::Tcp(host.to_owned(), port),
        true => ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: false, tls_params: None },
    };
    let info = address.into_connection_info()?.set_redis_settings(login(settings));
    match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        None => Client::open(info),
    }
}

async fn cluster(
    settings: &RedisSettings,
    certificates: Option<&TlsCertificates>,
) -> Result<ClusterConnection, RedisError> {
    let nodes = settings.hosts.iter().map(|(host, port)| {
        let address = match settings.tls {
            false => ConnectionAddr::Tcp(host.clone(), *port),
            true => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
        };
        Ok(address.into_connection_info()?.set_redis_settings(login(settings)))
    });
    let nodes = nodes.collect::<Result<Vec<_>, RedisError>>()?;
    let mut builder = ClusterClient::builder(nodes)
        .connection_timeout(CONNECT)
        .response_timeout(settings.timeout)
        .retries(3)
        .min_retry_wait(50)
        .max_retry_wait(500);
    if let Some(certificates) = certificates {
        builder = builder.certs(certificates.clone());
    }
    builder.build()?.get_async_connection().await
}

#[cfg(test)]
mod tests {
    use super::node;

    #[test]
    fn the_other_servers_of_a_cluster_are_known_by_what_one_of_them_says() {
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
