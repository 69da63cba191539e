//! Connections: one that all calls share, and one for each that blocks.

use crate::{
    fault::{fault, unreachable},
    keys,
    script::Script,
    settings::RedisSettings,
};
use dwell_core::{Error, ErrorKind, Result};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    TlsCertificates, Value,
    aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
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
        let door = Arc::new(Door { settings: settings.clone(), certificates });
        Ok(Self { settings, door, shared })
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

    /// Waits until so many replicas have what was written through this link to the server of `key`.
    pub(crate) async fn wait(&self, key: &str) -> Result<()> {
        let wanted = self.settings.replicas;
        if wanted == 0 {
            return Ok(());
        }
        let millis = u64::try_from(self.settings.timeout.as_millis() / 2).unwrap_or(u64::MAX);
        let mut command = redis::cmd("WAIT");
        command.arg(wanted).arg(millis);
        let explain = |error: RedisError| fault(&self.settings, &error);
        let answer = match self.shared.clone() {
            Shared::Server(mut server) => command.query_async(&mut server).await.map_err(explain)?,
            Shared::Cluster(mut cluster) => {
                let route = Route::new(keys::slot(key), SlotAddr::Master);
                let route = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
                cluster.route_command(command, route).await.map_err(explain)?
            }
        };
        match answer {
            Value::Int(have) if have >= i64::from(wanted) => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Timeout,
                format!(
                    "it is stored at {}, and not confirmed by {wanted} replicas as `replicas` asks: it may be lost if the server \
                     is. Try again to have it confirmed: it is not stored twice",
                    self.settings.place()
                ),
            )),
        }
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
