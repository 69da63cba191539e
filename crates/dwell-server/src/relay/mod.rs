//! `dwell relay kafka`: a relay for Kafka's delay topics in a separate process.

mod metrics;
mod status;

use clap::{Args, Subcommand};
use dwell_core::{Error, ErrorKind, Result, Seams, TransportUrl};
use dwell_kafka::{Counts, KafkaSettings};
use std::{io, net::SocketAddr, process::ExitCode, sync::Arc};

use crate::{
    ending::asked_to_end,
    failure::{fail, misused},
};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Forward records from Kafka's delay topics when they are due, until interrupted
    Kafka(Options),
}

/// Several relays of one group share the work.
#[derive(Args)]
pub(crate) struct Options {
    /// Host and port of some brokers, separated by commas
    #[arg(long, value_name = "HOST:PORT,…")]
    brokers: String,
    /// Consumer groups are named NAME-TOPIC for each delay topic. All relays must use the same
    /// NAME, as must those inside a bus
    #[arg(long, value_name = "NAME", default_value = "dwell")]
    group: String,
    /// Prefix of the names of the delay topics
    #[arg(long, value_name = "TEXT", default_value = "delay-")]
    prefix: String,
    /// Levels of the ladder [default: 5s, doubled up to 327680s, and 432000s]
    #[arg(long, value_name = "5s,10s,…")]
    ladder: Option<String>,
    /// Serve metrics for Prometheus at http://ADDR/metrics
    #[arg(long, value_name = "ADDR", value_parser = socket)]
    metrics: Option<SocketAddr>,
    /// Pattern of allowed targets, where `*` stands for any text; records for others are parked
    /// [default: all]
    #[arg(long, value_name = "GLOB")]
    allow_targets: Option<String>,
    /// A setting: an option of a `kafka://` URL such as `tls=true`, `username=…`, `password_file=…`
    /// or `transactions=10s`, or a property of librdkafka such as `ssl.ca.location=…`. Secrets are
    /// read from files: `key_password_file=…`
    #[arg(long = "option", value_name = "KEY=VALUE", value_parser = pair)]
    options: Vec<(String, String)>,
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn socket(text: &str) -> std::result::Result<SocketAddr, String> {
    text.parse().map_err(|_| "write ADDRESS:PORT, such as `127.0.0.1:9187`".to_owned())
}

/// Relays until it is interrupted.
pub(crate) async fn run(command: Command) -> ExitCode {
    let Command::Kafka(options) = command;
    let settings = match settings(&options) {
        Ok(settings) => settings,
        Err(error) if error.kind() == ErrorKind::Config => return misused(&error),
        Err(error) => return fail(&error),
    };
    match relay(settings, options.metrics).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

async fn relay(settings: KafkaSettings, metrics: Option<SocketAddr>) -> Result<()> {
    let (seams, counts) = (Seams::system("relay"), Arc::new(Counts::default()));
    if let Some(address) = metrics {
        let at = metrics::serve(address, counts.clone()).await?;
        tracing::info!("serving metrics at http://{at}/metrics");
    }
    tracing::info!(
        brokers = settings.brokers,
        group = settings.relay.group,
        ladder = %settings.relay.ladder,
        transactions = settings.relay.transactions.is_some(),
        "relaying due records of the delay topics `{}…`; press Ctrl-C to stop",
        settings.relay.prefix
    );
    let _status = status::show(counts.clone(), seams.clock.clone());
    dwell_kafka::relay(settings, seams, counts.clone(), Box::pin(asked_to_end())).await?;
    let tally = counts.tally();
    tracing::info!(forwarded = tally.forwarded, parked = tally.parked, "relay stopped");
    Ok(())
}

/// Suffix of a secret option whose value is the path of a file with the secret.
const FILE: &str = "_file";

/// Builds a URL from the options, so that they are read and checked in one place. Options with a
/// dot are properties of librdkafka.
fn settings(options: &Options) -> Result<KafkaSettings> {
    let (mut login, mut query, mut properties) = ((None, None), vec![], vec![]);
    for (key, value) in &options.options {
        // Anybody who lists processes can read the command line.
        if KafkaSettings::is_secret(key) && !key.ends_with(FILE) {
            let text = format!(
                "`{key}` is secret and must not be on the command line: write it to a file and set `--option {key}{FILE}=PATH`"
            );
            return Err(Error::new(ErrorKind::Config, text));
        }
        let (key, value) = match key.strip_suffix(FILE).filter(|key| KafkaSettings::is_secret(key)) {
            Some(key) => (key, read_secret(value)?),
            None => (key.as_str(), value.clone()),
        };
        match key {
            "username" => login.0 = Some(value),
            "password" => login.1 = Some(value),
            key if key.contains('.') => properties.push((key.to_owned(), value)),
            key => query.push((key, value)),
        }
    }
    query.extend([("group", options.group.clone()), ("prefix", options.prefix.clone())]);
    query.extend(options.ladder.clone().map(|ladder| ("ladder", ladder)));
    let login = match login {
        (Some(user), Some(password)) => format!("{}:{}@", encoded(&user), encoded(&password)),
        (None, None) => String::new(),
        _ => {
            let text =
                "`--option username=…` and `--option password_file=…` go together: set both, or neither";
            return Err(Error::new(ErrorKind::Config, text));
        }
    };
    let query: Vec<_> =
        query.iter().map(|(key, value)| format!("{}={}", encoded(key), encoded(value))).collect();
    let brokers = brokers(&options.brokers)?;
    let url = TransportUrl::parse(&format!("kafka://{login}{brokers}?{}", query.join("&")))?;
    let mut settings = KafkaSettings::from_url(&url)?;
    settings.relay.allow_targets = options.allow_targets.clone();
    settings.properties = properties;
    Ok(settings)
}

/// Returns hosts and ports. The scheme is accepted, because people copy it from a URL.
fn brokers(given: &str) -> Result<&str> {
    let brokers = given.trim_start_matches("kafka://").trim_end_matches('/');
    if brokers.contains(['@', '/', '?']) {
        let text = "`--brokers` accepts only hosts and ports, such as `one:9092,two:9092`: set users and options with `--option`";
        return Err(Error::new(ErrorKind::Config, text));
    }
    Ok(brokers)
}

fn read_secret(path: &str) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Denied,
        };
        Error::new(kind, format!("the secret file `{path}` cannot be read")).with_source(error)
    })?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// Percent-encodes a text.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }

    fn read(more: &[&str]) -> Result<KafkaSettings> {
        read_all(&[&["--brokers", "one:9092,two", "--group", "shop"], more].concat())
    }

    fn read_all(line: &[&str]) -> Result<KafkaSettings> {
        let line = Line::try_parse_from([&["dwell", "kafka"], line].concat());
        let Command::Kafka(options) = line.unwrap_or_else(|error| panic!("{error}")).command;
        settings(&options)
    }

    #[test]
    fn the_default_group_is_that_of_relays_inside_a_bus() {
        let settings = read_all(&["--brokers", "one"]).unwrap();
        assert_eq!(settings.relay, KafkaSettings::at("one").relay);
    }

    #[test]
    fn brokers_accept_a_scheme_but_no_other_part_of_a_url() {
        for given in ["kafka://one:9092,two", "kafka://one:9092,two/"] {
            assert_eq!(read_all(&["--brokers", given]).unwrap().brokers, "one:9092,two:9092");
        }
        for given in ["kafka://me:s3cret@one:9092", "one:9092?tls=true"] {
            let said = read_all(&["--brokers", given]).unwrap_err().to_string();
            assert!(said.contains("`--brokers`") && said.contains("`--option`"), "{said}");
            assert!(!said.contains("s3cret"), "{said}");
        }
    }

    #[test]
    fn options_set_url_options_and_librdkafka_properties() {
        let settings =
            read(&["--ladder", "1s,2s", "--allow-targets", "shop.*", "--option", "transactions=10s"]);
        let settings = settings.unwrap();
        assert_eq!(settings.brokers, "one:9092,two:9092");
        assert_eq!((settings.relay.group.as_str(), settings.relay.prefix.as_str()), ("shop", "delay-"));
        assert_eq!(settings.relay.ladder.to_string(), "1s,2s");
        assert_eq!(settings.relay.allow_targets.as_deref(), Some("shop.*"));
        assert!(settings.relay.transactions.is_some());
        let settings = read(&["--option", "socket.keepalive.enable=true", "--prefix", "later."]).unwrap();
        assert_eq!(settings.properties, [("socket.keepalive.enable".to_owned(), "true".to_owned())]);
        assert_eq!(settings.relay.prefix, "later.");
    }

    #[test]
    fn invalid_options_are_refused_by_name() {
        let refused = |more: &[&str]| read(more).unwrap_err().to_string();
        assert!(refused(&["--option", "partitons=3"]).contains("partitons"));
        assert!(refused(&["--ladder", "5s,1s"]).contains("5s"), "{}", refused(&["--ladder", "5s,1s"]));
        assert!(refused(&["--ladder", "5"]).contains("`ladder`"), "{}", refused(&["--ladder", "5"]));
        assert!(refused(&["--option", "username=me"]).contains("password_file"));
        let said = refused(&["--option", "username=me", "--option", "password=s3cret"]);
        assert!(said.contains("password_file") && !said.contains("s3cret"), "{said}");
        assert!(
            refused(&["--option", "username=me", "--option", "password_file=/nowhere"]).contains("/nowhere")
        );
    }

    #[test]
    fn secrets_on_the_command_line_are_refused() {
        for key in ["password", "key_password", "sasl.password", "ssl.key.password", "ssl.key.pem"] {
            let said = read(&["--option", &format!("{key}=s3cret")]).unwrap_err();
            assert!(said.to_string().contains(&format!("`--option {key}_file=PATH`")), "{said}");
            assert!(!format!("{said:?}").contains("s3cret"), "{said:?}");
        }
    }

    #[test]
    fn secrets_are_read_from_files() {
        let file = std::env::temp_dir().join(format!("dwell-relay-secrets-{}", std::process::id()));
        std::fs::write(&file, "s3cret&more=1\n").unwrap();
        let of = |key: &str| format!("{key}_file={}", file.display());
        let settings = read(&["--option", "tls=true", "--option", &of("key_password")]);
        let more = read(&["--option", &of("sasl.password"), "--option", "ssl.key.location=/key.pem"]);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(settings.unwrap().tls.unwrap().key_password.unwrap().expose(), "s3cret&more=1");
        let expected = [("sasl.password", "s3cret&more=1"), ("ssl.key.location", "/key.pem")];
        assert_eq!(more.unwrap().properties, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_password_file_may_contain_any_characters() {
        let file = std::env::temp_dir().join(format!("dwell-relay-password-{}", std::process::id()));
        std::fs::write(&file, "p@ss/w?rd%\n").unwrap();
        let option = format!("password_file={}", file.display());
        let settings = read(&["--option", "username=me", "--option", &option]).unwrap();
        std::fs::remove_file(file).unwrap();
        assert_eq!(settings.sasl.unwrap().password.expose(), "p@ss/w?rd%");
    }
}
