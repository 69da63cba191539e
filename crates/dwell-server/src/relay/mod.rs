//! `dwell relay kafka`: a relay of Kafka's delay topics in a process of its own.

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
    /// Empty the delay topics of Kafka on time, for any client that writes into them; until it is interrupted
    Kafka(Options),
}

/// Several relays of one group share the work.
#[derive(Args)]
pub(crate) struct Options {
    /// Host and port of some brokers, separated by commas
    #[arg(long, value_name = "HOST:PORT,…")]
    brokers: String,
    /// The consumer groups are NAME, a dash, and the delay topic. All relays have one NAME, also those inside of a bus
    #[arg(long, value_name = "NAME", default_value = "dwell")]
    group: String,
    /// What the names of the delay topics begin with
    #[arg(long, value_name = "TEXT", default_value = "delay-")]
    prefix: String,
    /// The levels [default: 5s, doubled up to 327680s, and 432000s]
    #[arg(long, value_name = "5s,10s,…")]
    ladder: Option<String>,
    /// Serve metrics for Prometheus at http://ADDR/metrics
    #[arg(long, value_name = "ADDR", value_parser = socket)]
    metrics: Option<SocketAddr>,
    /// Targets that may be sent to, `*` standing for any text; others are parked [default: all]
    #[arg(long, value_name = "GLOB")]
    allow_targets: Option<String>,
    /// A setting: an option of a `kafka://` URL such as `tls=true`, `username=…`, `password_file=…` or `transactions=10s`, or
    /// a property of librdkafka such as `ssl.ca.location=…`. One that is secret is read from a file: `key_password_file=…`
    #[arg(long = "option", value_name = "KEY=VALUE", value_parser = pair)]
    options: Vec<(String, String)>,
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn socket(text: &str) -> std::result::Result<SocketAddr, String> {
    text.parse().map_err(|_| "write it ADDRESS:PORT, such as `127.0.0.1:9187`".to_owned())
}

/// Relays until it is interrupted or asked to end.
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
        tracing::info!("metrics are at http://{at}/metrics");
    }
    tracing::info!(
        brokers = settings.brokers,
        group = settings.relay.group,
        ladder = %settings.relay.ladder,
        transactions = settings.relay.transactions.is_some(),
        "relaying what is due in `{}…`; Ctrl-C ends it",
        settings.relay.prefix
    );
    let _status = status::show(counts.clone(), seams.clock.clone());
    dwell_kafka::relay(settings, seams, counts.clone(), Box::pin(asked_to_end())).await?;
    let tally = counts.tally();
    tracing::info!(forwarded = tally.forwarded, parked = tally.parked, "the relay has ended");
    Ok(())
}

/// What the name of a secret ends with where its value is the file that it is in.
const FILE: &str = "_file";

/// All as it would stand in a URL, so that it is read and checked in one place; properties of librdkafka have a dot.
fn settings(options: &Options) -> Result<KafkaSettings> {
    let (mut login, mut query, mut properties) = ((None, None), vec![], vec![]);
    for (key, value) in &options.options {
        // Whoever lists processes would read it.
        if KafkaSettings::is_secret(key) && !key.ends_with(FILE) {
            let text = format!(
                "`{key}` does not go on the command line: write it to a file, and say `--option {key}{FILE}=PATH`"
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
            let text = "`--option username=…` and `--option password_file=…` go together";
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

/// Hosts and ports. People copy them from a URL.
fn brokers(given: &str) -> Result<&str> {
    let brokers = given.trim_start_matches("kafka://").trim_end_matches('/');
    if brokers.contains(['@', '/', '?']) {
        let text = "`--brokers` takes hosts and ports alone, such as `one:9092,two:9092`: users and options go to `--option`";
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
        Error::new(kind, format!("a secret cannot be read from `{path}`")).with_source(error)
    })?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// In percent-encoding.
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
    fn a_relay_has_the_group_of_those_inside_of_a_bus_unless_told_otherwise() {
        let settings = read_all(&["--brokers", "one"]).unwrap();
        assert_eq!(settings.relay, KafkaSettings::at("one").relay);
    }

    #[test]
    fn brokers_may_be_written_as_a_url_says_them_and_nothing_else_of_it() {
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
    fn the_options_are_those_of_a_url_and_properties_of_the_library() {
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
    fn what_makes_no_sense_is_refused_by_name() {
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
    fn nothing_secret_is_taken_from_the_command_line() {
        for key in ["password", "key_password", "sasl.password", "ssl.key.password", "ssl.key.pem"] {
            let said = read(&["--option", &format!("{key}=s3cret")]).unwrap_err();
            assert!(said.to_string().contains(&format!("`--option {key}_file=PATH`")), "{said}");
            assert!(!format!("{said:?}").contains("s3cret"), "{said:?}");
        }
    }

    #[test]
    fn what_is_secret_comes_from_files() {
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
    fn a_password_comes_from_a_file_whatever_is_in_it() {
        let file = std::env::temp_dir().join(format!("dwell-relay-password-{}", std::process::id()));
        std::fs::write(&file, "p@ss/w?rd%\n").unwrap();
        let option = format!("password_file={}", file.display());
        let settings = read(&["--option", "username=me", "--option", &option]).unwrap();
        std::fs::remove_file(file).unwrap();
        assert_eq!(settings.sasl.unwrap().password.expose(), "p@ss/w?rd%");
    }
}
