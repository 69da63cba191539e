//! Settings of a connection, and the URL that they are read from.

use crate::relay::{Ladder, RelaySettings};
use dwell_core::{Error, ErrorKind, Result, Secret, TransportUrl};
use rdkafka::ClientConfig;
use std::{fmt, fs::File, path::Path, time::Duration};

/// Settings of a connection to Kafka.
///
/// ```
/// use dwell_kafka::KafkaSettings;
///
/// let mut settings = KafkaSettings::at("broker-1:9092,broker-2:9092");
/// settings.partitions = 12;
/// assert_eq!(settings.relay.prefix, "delay-");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct KafkaSettings {
    /// Host and port of some brokers, separated by commas. The client learns the other brokers from
    /// them.
    pub brokers: String,
    /// User, password and authentication mechanism.
    pub sasl: Option<Sasl>,
    /// Encryption and certificates.
    pub tls: Option<Tls>,
    /// Number of partitions of topics that are created.
    pub partitions: u16,
    /// Replication factor of topics that are created; the broker's default if absent.
    pub replication: Option<u16>,
    /// Retention of topics that are created; the broker's default if absent. Dead letters are kept
    /// without a limit.
    pub retention: Option<Duration>,
    /// Session timeout: a consumer that is silent for longer loses its partitions.
    pub session: Duration,
    /// How long a partition that is revoked waits for the handlers that work on its records.
    pub revoke_wait: Duration,
    /// How long a send waits for its confirmation.
    pub send_timeout: Duration,
    /// Size of the largest record, in bytes: the broker's `message.max.bytes`.
    pub max_record: usize,
    /// Number of records of a partition that may be handed out above its committed offset. One
    /// stuck message holds back this many.
    pub max_span: usize,
    /// Whether a bus runs the relay itself. Otherwise you run the relay in another process.
    pub relay_inside: bool,
    /// Settings of the delay topics and the relay.
    pub relay: RelaySettings,
    /// Further properties of librdkafka, by its own names. They override all other settings.
    pub properties: Vec<(String, String)>,
}

/// User, password and mechanism for SASL.
#[derive(Clone, Debug)]
pub struct Sasl {
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub mechanism: &'static str,
    /// The user.
    pub username: String,
    /// The password.
    pub password: Secret,
}

/// Certificates and keys for TLS.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// File with the certificates of the authorities that sign the broker's certificate; those of
    /// the system if absent.
    pub ca: Option<String>,
    /// File with the client certificate, for brokers that require one.
    pub certificate: Option<String>,
    /// File with the private key of the client certificate.
    pub private_key: Option<Secret>,
    /// Password of the private key.
    pub key_password: Option<Secret>,
}

/// Room for the key, the headers and the record's own bookkeeping beside the largest body.
pub(crate) const HEADER_ROOM: usize = 48 << 10;

/// librdkafka allows at most a day between two polls, and a poll takes a little longer than the
/// revocation that it waits for.
const LONGEST_WAIT: Duration = Duration::from_secs(23 * 3600);

/// How long a broker may take to answer a request, except for requests with a limit of their own.
pub(crate) const SILENT: Duration = Duration::from_secs(8);

/// Shortest duration: Kafka counts in milliseconds.
const SHORTEST: Duration = Duration::from_millis(1);
/// Interval at which each client refreshes the metadata of its topics. librdkafka's default is five
/// minutes.
const METADATA_REFRESH: Duration = Duration::from_secs(15);

impl KafkaSettings {
    /// Returns the default settings for these brokers.
    pub fn at(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            sasl: None,
            tls: None,
            partitions: 4,
            replication: None,
            retention: None,
            session: Duration::from_secs(10),
            revoke_wait: Duration::from_secs(10),
            send_timeout: Duration::from_secs(30),
            max_record: 1_048_588,
            max_span: 10_000,
            relay_inside: true,
            relay: RelaySettings::default(),
            properties: vec![],
        }
    }

    /// Reads settings from `kafka://user:password@host:port,host:port?option=value`.
    pub fn from_url(url: &TransportUrl) -> Result<Self> {
        let refuse = |text: &str| Err(Error::new(ErrorKind::Config, text));
        if url.scheme() != "kafka" {
            return refuse("the Kafka transport requires a URL that begins with `kafka://`");
        }
        if url.hosts().is_empty() {
            return refuse("a Kafka URL must name its brokers: write `kafka://host:9092`");
        }
        if !matches!(url.path(), "" | "/") {
            return refuse("a Kafka URL has no path: write `kafka://host:9092?option=value`");
        }
        let host = |(host, port): &(String, Option<u16>)| {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            format!("{host}:{}", port.unwrap_or(9092))
        };
        let mut settings = Self::at(url.hosts().iter().map(host).collect::<Vec<_>>().join(","));
        let mut options = url.options();
        let mechanism = options.one_of("sasl", &["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])?;
        settings.sasl = match (url.username(), url.password()) {
            (Some(username), Some(password)) => Some(Sasl {
                mechanism: mechanism.unwrap_or("PLAIN"),
                username: username.to_owned(),
                password: password.clone(),
            }),
            (None, None) if mechanism.is_none() => None,
            _ => {
                return refuse(
                    "user and password go together: write `kafka://user:password@host:9092?sasl=PLAIN`",
                );
            }
        };
        let tls = Tls {
            ca: options.text("ca")?.map(str::to_owned),
            certificate: options.text("certificate")?.map(str::to_owned),
            private_key: options.secret("private_key")?,
            key_password: options.secret("key_password")?,
        };
        settings.tls = match options.flag("tls")? {
            Some(true) => Some(tls),
            _ if tls.is_set() => {
                return refuse(
                    "`ca`, `certificate` and `private_key` require `tls=true`: add it, or remove them",
                );
            }
            _ => None,
        };
        let number = |value: Option<u16>, name: &str| match value {
            Some(0) => Err(Error::new(
                ErrorKind::Config,
                format!("the option `{name}` of kafka:// is 0: set at least 1"),
            )),
            value => Ok(value),
        };
        settings.partitions =
            number(options.number("partitions")?, "partitions")?.unwrap_or(settings.partitions);
        settings.replication = number(options.number("replication")?, "replication")?;
        settings.retention = options.duration("retention")?;
        let set = |value: &mut Duration, given: Option<Duration>| *value = given.unwrap_or(*value);
        set(&mut settings.session, options.duration("session")?);
        set(&mut settings.revoke_wait, options.duration("revoke_wait")?);
        set(&mut settings.send_timeout, options.duration("send_timeout")?);
        settings.max_record = options.number("max_record")?.unwrap_or(settings.max_record);
        settings.max_span = options.number("max_span")?.unwrap_or(settings.max_span);
        settings.relay_inside = options.one_of("relay", &["inside", "elsewhere"])? != Some("elsewhere");
        let relay = &mut settings.relay;
        if let Some(prefix) = options.text("prefix")? {
            prefix.clone_into(&mut relay.prefix);
        }
        if let Some(group) = options.text("group")? {
            group.clone_into(&mut relay.group);
        }
        if let Some(ladder) = options.text("ladder")? {
            relay.ladder = Ladder::parse(ladder).map_err(|error| {
                let text = format!("the option `ladder` of kafka:// is `{ladder}`: {error}");
                Error::new(ErrorKind::Config, text)
            })?;
        }
        set(&mut relay.outage, options.duration("outage")?);
        set(&mut relay.absent_for, options.duration("absent_for")?);
        relay.read_ahead.1 = options.number("read_ahead")?.unwrap_or(relay.read_ahead.1);
        relay.transactions = options.duration("transactions")?;
        options.finish()?;
        settings.check()?;
        Ok(settings)
    }

    /// Returns whether the value of a librdkafka property is a secret. Secrets are not displayed
    /// and are not passed on a command line.
    ///
    /// ```
    /// use dwell_kafka::KafkaSettings;
    ///
    /// assert!(KafkaSettings::is_secret("sasl.password"));
    /// assert!(!KafkaSettings::is_secret("ssl.key.location"));
    /// ```
    pub fn is_secret(property: &str) -> bool {
        let property = property.to_ascii_lowercase();
        // `sasl.oauthbearer.config` holds what tokens are requested with.
        let within = ["password", "secret", "token", "key.pem", "oauthbearer.config"];
        within.iter().any(|part| property.contains(part))
    }

    /// Checks that these settings can work. The error names the setting to change.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Config, text));
        if self.max_record <= HEADER_ROOM {
            return refuse(format!("`max_record` is {}: set more than {HEADER_ROOM}", self.max_record));
        }
        if self.max_span == 0 {
            return refuse("`max_span` is 0, so no message could be handed out: set at least 1".to_owned());
        }
        if self.session < Duration::from_secs(1) {
            return refuse("`session` is below 1s, which brokers refuse: set at least 1s".to_owned());
        }
        // librdkafka reads 0 as no limit at all.
        if self.send_timeout < SHORTEST {
            return refuse(
                "`send_timeout` is below 1ms, so no send could be confirmed: set at least 1ms".to_owned(),
            );
        }
        if self.retention.is_some_and(|retention| retention < SHORTEST) {
            return refuse(
                "`retention` is below 1ms, so topics would drop all records: set at least 1ms".to_owned(),
            );
        }
        if self.revoke_wait > LONGEST_WAIT {
            return refuse(
                "`revoke_wait` is above 23h, and a poll may take at most a day: set at most 23h".to_owned(),
            );
        }
        if let Some(tls) = &self.tls {
            if tls.certificate.is_some() != tls.private_key.is_some() {
                return refuse(
                    "`certificate` and `private_key` of kafka:// go together: set both, or neither"
                        .to_owned(),
                );
            }
            let files = [
                ("ca", tls.ca.as_deref()),
                ("certificate", tls.certificate.as_deref()),
                ("private_key", tls.private_key.as_ref().map(Secret::expose)),
            ];
            for (name, file) in files {
                if let Some(Err(error)) = file.map(|file| File::open(Path::new(file))) {
                    let text = format!("the file in the option `{name}` of kafka:// cannot be read");
                    return Err(Error::new(ErrorKind::Config, text).with_source(error));
                }
            }
        }
        self.relay.check()
    }

    /// Returns the size of the largest body that fits into a record with reasonable headers.
    pub(crate) fn max_body(&self) -> usize {
        self.max_record - HEADER_ROOM
    }

    /// Returns the properties that all clients share.
    pub(crate) fn client(&self, client_id: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("client.id", client_id);
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "1000");
        config.set("message.max.bytes", self.max_record.to_string());
        // How soon a client reads partitions that were added to a topic, and finds a recreated
        // topic.
        config.set("topic.metadata.refresh.interval.ms", METADATA_REFRESH.as_millis().to_string());
        // A silent connection is replaced once a request on it has timed out.
        config
            .set("socket.timeout.ms", SILENT.as_millis().to_string())
            .set("socket.keepalive.enable", "true");
        // A small request must not wait until the kernel has confirmed the one before it: that may
        // take 40 ms.
        config.set("socket.nagle.disable", "true");
        let protocol = match (&self.sasl, &self.tls) {
            (None, None) => "plaintext",
            (None, Some(_)) => "ssl",
            (Some(_), None) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(sasl) = &self.sasl {
            config.set("sasl.mechanism", sasl.mechanism);
            config.set("sasl.username", &sasl.username).set("sasl.password", sasl.password.expose());
        }
        if let Some(tls) = &self.tls {
            let files = [
                ("ssl.ca.location", tls.ca.as_deref()),
                ("ssl.certificate.location", tls.certificate.as_deref()),
                ("ssl.key.location", tls.private_key.as_ref().map(Secret::expose)),
                ("ssl.key.password", tls.key_password.as_ref().map(Secret::expose)),
            ];
            for (name, value) in files {
                if let Some(value) = value {
                    config.set(name, value);
                }
            }
        }
        config
    }

    /// Adds the further properties, which override the others.
    pub(crate) fn finish(&self, mut config: ClientConfig) -> ClientConfig {
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config
    }
}

/// Shows no secrets, in whichever setting they are.
impl fmt::Debug for KafkaSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Lists each field by name, so that a new field cannot be omitted.
        let Self {
            brokers,
            sasl,
            tls,
            partitions,
            replication,
            retention,
            session,
            revoke_wait,
            send_timeout,
            max_record,
            max_span,
            relay_inside,
            relay,
            properties,
        } = self;
        let shown = |(name, value): &(String, String)| {
            // The path of a key is hidden as well.
            let is_hidden = Self::is_secret(name) || name.contains("key");
            (name.clone(), if is_hidden { Secret::new("").to_string() } else { value.clone() })
        };
        f.debug_struct("KafkaSettings")
            .field("brokers", brokers)
            .field("sasl", sasl)
            .field("tls", tls)
            .field("partitions", partitions)
            .field("replication", replication)
            .field("retention", retention)
            .field("session", session)
            .field("revoke_wait", revoke_wait)
            .field("send_timeout", send_timeout)
            .field("max_record", max_record)
            .field("max_span", max_span)
            .field("relay_inside", relay_inside)
            .field("relay", relay)
            .field("properties", &properties.iter().map(shown).collect::<Vec<_>>())
            .finish()
    }
}

impl Tls {
    fn is_set(&self) -> bool {
        self.ca.is_some()
            || self.certificate.is_some()
            || self.private_key.is_some()
            || self.key_password.is_some()
    }
}

#[cfg(test)]
mod tests;
