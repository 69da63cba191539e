use super::*;

fn read(url: &str) -> Result<KafkaSettings> {
    KafkaSettings::from_url(&TransportUrl::parse(url)?)
}

#[test]
fn a_url_sets_brokers_credentials_and_options() {
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
fn the_protocol_follows_from_password_and_tls() {
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
fn invalid_settings_are_refused_by_name_and_without_secrets() {
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
        ("kafka://host?send_timeout=0s", "`send_timeout`"),
        ("kafka://host?retention=0s", "`retention`"),
        ("kafka://host?revoke_wait=24h", "`revoke_wait`"),
        ("kafka://host?max_record=100", "`max_record`"),
        ("kafka://host?ladder=5s,2s", "`ladder` of kafka://"),
        ("kafka://host?ladder=5", "`ladder` of kafka:// is `5`"),
        ("kafka://host?read_ahead=0", "`read_ahead`"),
    ] {
        let error = read(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        assert!(error.to_string().contains(named), "{url}: {error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

#[test]
fn debug_output_hides_secret_librdkafka_properties() {
    let mut settings = KafkaSettings::at("host:9092");
    let (open, secret) = (
        ["socket.keepalive.enable", "sasl.username", "ssl.ca.location", "ssl.certificate.pem"],
        [
            "sasl.password",
            "SASL.Password",
            "ssl.key.password",
            "ssl.key.pem",
            "ssl.key.location",
            "ssl.keystore.password",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.config",
        ],
    );
    for name in open.iter().chain(&secret) {
        settings.properties.push(((*name).to_owned(), format!("hunter2-{name}")));
    }
    let shown = format!("{settings:?}");
    for (names, are_shown) in [(&open[..], true), (&secret[..], false)] {
        for name in names {
            assert!(shown.contains(name), "{name}: {shown}");
            assert_eq!(shown.contains(&format!("hunter2-{name}")), are_shown, "{name}: {shown}");
        }
    }
    assert_eq!(settings.client("x").get("sasl.password"), None);
    assert_eq!(settings.finish(settings.client("x")).get("sasl.password"), Some("hunter2-sasl.password"));
}

/// Each option has a distinct value, so that no two can be mixed up.
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
    assert!(properties.is_empty(), "a URL cannot set properties of librdkafka");
}
