//! What can be set, and where it is read from.

use crate::relay::{Ladder, RelaySettings};
use dwell_core::{Error, ErrorKind, Result, Secret, TransportUrl};
use rdkafka::ClientConfig;
use std::{fs::File, path::Path, time::Duration};

/// What a connection to Kafka can be told.
///
/// ```
/// use dwell_kafka::KafkaSettings;
///
/// let mut settings = KafkaSettings::at("broker-1:9092,broker-2:9092");
/// settings.partitions = 12;
/// assert_eq!(settings.relay.prefix, "delay-");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KafkaSettings {
    /// Host and port of some brokers, separated by commas; they name the others.
    pub brokers: String,
    /// User and password, and how they are shown to the broker.
    pub sasl: Option<Sasl>,
    /// Encryption, and how the broker proves who it is.
    pub tls: Option<Tls>,
    /// Partitions of the topics that are made.
    pub partitions: u16,
    /// Copies of each partition of the topics that are made; the broker's default if absent.
    pub replication: Option<u16>,
    /// How long the topics that are made keep their records; the broker's default if absent. Dead letters are kept for
    /// ever.
    pub retention: Option<Duration>,
    /// How long a consumer may be silent before its partitions go to others.
    pub session: Duration,
    /// How long a partition that is taken away waits for the handlers that work on its records.
    pub revoke_wait: Duration,
    /// How long a send waits for its confirmation.
    pub send_timeout: Duration,
    /// The largest record, in bytes: what the broker's `message.max.bytes` allows.
    pub max_record: usize,
    /// Records of a partition that may be handed out above its committed offset: what one stuck message holds up.
    pub max_span: usize,
    /// Whether a bus runs the relay itself; otherwise it runs elsewhere.
    pub relay_inside: bool,
    /// The delay topics.
    pub relay: RelaySettings,
    /// Further properties of librdkafka, by its own names; they beat all others.
    pub properties: Vec<(String, String)>,
}

/// User and password.
#[derive(Clone, Debug)]
pub struct Sasl {
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub mechanism: &'static str,
    /// The user.
    pub username: String,
    /// The password.
    pub password: Secret,
}

/// Encryption.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// File with the certificates of who vouches for the broker; the system's if absent.
    pub ca: Option<String>,
    /// File with our own certificate, where the broker asks for one.
    pub certificate: Option<String>,
    /// File with the key of our own certificate.
    pub private_key: Option<Secret>,
    /// The password of that file.
    pub key_password: Option<Secret>,
}

/// Room for key, headers and the record's own bookkeeping beside the largest body.
pub(crate) const HEADER_ROOM: usize = 48 << 10;

/// librdkafka takes no more than a day between two polls, and a poll takes a moment more than what it waits for.
const LONGEST_WAIT: Duration = Duration::from_secs(23 * 3600);

impl KafkaSettings {
    /// The defaults, at these brokers.
    pub fn at(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            sasl: None,
            tls: None,
            partitions: 4,
            replication: None,
            retention: None,
            session: Duration::from_secs(30),
            revoke_wait: Duration::from_secs(10),
            send_timeout: Duration::from_secs(30),
            max_record: 1_048_588,
            max_span: 10_000,
            relay_inside: true,
            relay: RelaySettings::default(),
            properties: vec![],
        }
    }

    /// From `kafka://user:password@host:port,host:port?option=value`.
    pub fn from_url(url: &TransportUrl) -> Result<Self> {
        let refuse = |text: &str| Err(Error::new(ErrorKind::Config, text));
        if url.scheme() != "kafka" {
            return refuse("the transport of Kafka takes a URL that begins with `kafka://`");
        }
        if url.hosts().is_empty() {
            return refuse("a URL of Kafka names its brokers: `kafka://host:9092`");
        }
        if !matches!(url.path(), "" | "/") {
            return refuse("a URL of Kafka has no path: write `kafka://host:9092?option=value`");
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
                return refuse("user and password go together: `kafka://user:password@host:9092?sasl=PLAIN`");
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
                    "`ca`, `certificate` and `private_key` are for `tls=true`: add it, or drop them",
                );
            }
            _ => None,
        };
        let number = |value: Option<u16>, name: &str| match value {
            Some(0) => {
                Err(Error::new(ErrorKind::Config, format!("`{name}` of kafka:// is 0: at least 1 is needed")))
            }
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
            relay.ladder = Ladder::parse(ladder)?;
        }
        set(&mut relay.outage, options.duration("outage")?);
        set(&mut relay.absent_for, options.duration("absent_for")?);
        relay.read_ahead.1 = options.number("read_ahead")?.unwrap_or(relay.read_ahead.1);
        relay.transactions = options.duration("transactions")?;
        options.finish()?;
        settings.check()?;
        Ok(settings)
    }

    /// Whether these settings can work. The error names the one to change.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Config, text));
        if self.max_record <= HEADER_ROOM {
            return refuse(format!("`max_record` is {}: more than {HEADER_ROOM} is needed", self.max_record));
        }
        if self.max_span == 0 {
            return refuse("`max_span` is 0: nothing would ever be handed out".to_owned());
        }
        if self.session < Duration::from_secs(1) {
            return refuse("`session` is below 1s: no broker takes that".to_owned());
        }
        if self.revoke_wait > LONGEST_WAIT {
            return refuse("`revoke_wait` is above 23h: Kafka gives up on a consumer after a day".to_owned());
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
                    let text = format!("the file that `{name}` of kafka:// names cannot be read");
                    return Err(Error::new(ErrorKind::Config, text).with_source(error));
                }
            }
        }
        self.relay.check()
    }

    /// The largest body that fits into a record, whatever reasonable headers it has.
    pub(crate) fn max_body(&self) -> usize {
        self.max_record - HEADER_ROOM
    }

    /// What all clients have in common.
    pub(crate) fn client(&self, client_id: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("client.id", client_id);
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "1000");
        config.set("message.max.bytes", self.max_record.to_string());
        // A small request does not wait for the kernel to confirm the one before it: that may take 40 ms.
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

    /// With the further properties, which come last.
    pub(crate) fn finish(&self, mut config: ClientConfig) -> ClientConfig {
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config
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
mod tests {
    use super::*;

    fn read(url: &str) -> Result<KafkaSettings> {
        KafkaSettings::from_url(&TransportUrl::parse(url)?)
    }

    #[test]
    fn a_url_says_it_all() {
        let url = "kafka://app:hunter2@one,[::1]:9093?sasl=SCRAM-SHA-512&partitions=12&replication=3&ladder=1s,2s&prefix=later-&read_ahead=65536";
        let settings = read(url).unwrap();
        assert_eq!(settings.brokers, "one:9092,[::1]:9093");
        assert_eq!((settings.partitions, settings.replication), (12, Some(3)));
        assert_eq!(settings.sasl.as_ref().map(|sasl| sasl.mechanism), Some("SCRAM-SHA-512"));
        assert_eq!((&*settings.relay.prefix, settings.relay.read_ahead.1), ("later-", 65_536));
        assert!(!format!("{settings:?}").contains("hunter2"));
        assert_eq!(settings.client("x").get("security.protocol"), Some("sasl_plaintext"));
    }

    #[test]
    fn passwords_and_encryption_go_together_in_every_way() {
        for (url, protocol) in [
            ("kafka://host", "plaintext"),
            ("kafka://host?tls=true", "ssl"),
            ("kafka://app:hunter2@host", "sasl_plaintext"),
            ("kafka://app:hunter2@host?tls=true", "sasl_ssl"),
        ] {
            let client = read(url).unwrap().client("x");
            assert_eq!(client.get("security.protocol"), Some(protocol), "{url}");
            assert_eq!(client.get("sasl.password").is_some(), url.contains("hunter2"), "{url}");
        }
        let key = "kafka://host?tls=true&certificate=/dev/null&private_key=/dev/null&key_password=hunter2";
        let settings = read(key).unwrap();
        assert_eq!(settings.client("x").get("ssl.key.password"), Some("hunter2"));
        assert!(!format!("{settings:?}").contains("hunter2"));
    }

    #[test]
    fn what_cannot_work_is_refused_by_name_and_without_secrets() {
        for (url, named) in [
            ("kafka://", "kafka://host:9092"),
            ("kafka://host/topic", "no path"),
            ("kafka://user@host", "go together"),
            ("kafka://host?sasl=PLAIN", "go together"),
            ("kafka://host?ca=a.pem", "tls=true"),
            ("kafka://host?tls=true&ca=/nowhere/a.pem", "`ca`"),
            ("kafka://host?tls=true&private_key=/nowhere/hunter2", "go together"),
            ("kafka://host?tls=true&certificate=/dev/null&private_key=/nowhere/hunter2", "`private_key`"),
            ("kafka://host?partitions=0", "`partitions`"),
            ("kafka://host?partitons=1", "did you mean `partitions`?"),
            ("kafka://host?session=10ms", "`session`"),
            ("kafka://host?revoke_wait=24h", "`revoke_wait`"),
            ("kafka://host?max_record=100", "`max_record`"),
            ("kafka://host?ladder=5s,2s", "ladder"),
            ("kafka://host?read_ahead=0", "`read_ahead`"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.to_string().contains(named), "{url}: {error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    /// A value of its own for each, so that none is taken for another.
    #[test]
    fn each_option_is_read_into_its_own_setting() {
        let [ca, certificate, private_key] = ["/dev/null", "/dev/zero", "/dev/full"];
        let url = format!(
            "kafka://app:hunter2@one:1?sasl=SCRAM-SHA-256&tls=true&ca={ca}&certificate={certificate}\
             &private_key={private_key}&key_password=sesame&partitions=2&replication=3&retention=4s&session=5s\
             &revoke_wait=6s&send_timeout=7s&max_record=80000&max_span=9&relay=elsewhere&prefix=ten-&group=eleven\
             &ladder=12s,24s&outage=13s&absent_for=14s&read_ahead=15&transactions=16s"
        );
        let KafkaSettings {
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
        } = read(&url).unwrap();
        let (sasl, tls, seconds) = (sasl.unwrap(), tls.unwrap(), Duration::from_secs);
        assert_eq!(brokers, "one:1");
        assert_eq!(
            (sasl.mechanism, &*sasl.username, sasl.password.expose()),
            ("SCRAM-SHA-256", "app", "hunter2")
        );
        assert_eq!((tls.ca.as_deref(), tls.certificate.as_deref()), (Some(ca), Some(certificate)));
        let secrets = [tls.private_key, tls.key_password].map(|secret| secret.unwrap().expose().to_owned());
        assert_eq!(secrets, [private_key, "sesame"]);
        assert_eq!((partitions, replication, retention), (2, Some(3), Some(seconds(4))));
        assert_eq!([session, revoke_wait, send_timeout], [5, 6, 7].map(seconds));
        assert_eq!((max_record, max_span, relay_inside), (80_000, 9, false));
        let expected = RelaySettings {
            prefix: "ten-".to_owned(),
            group: "eleven".to_owned(),
            ladder: Ladder::parse("12s,24s").unwrap(),
            outage: seconds(13),
            absent_for: seconds(14),
            read_ahead: (RelaySettings::default().read_ahead.0, 15),
            transactions: Some(seconds(16)),
            allow_targets: None,
        };
        assert_eq!(relay, expected);
        assert!(properties.is_empty(), "a URL has no properties of librdkafka");
    }
}
