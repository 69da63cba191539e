//! Authentication: TLS with a certificate authority of the test, client certificates, and passwords
//! that are never sent.

use dwell_conformance::servers::{
    kafka::{KafkaServer, PASSWORD, USER},
    require,
};
use dwell_core::{
    Address, Envelope, Error, ErrorKind, Message, OnMissing, Result, Seams, Subscription, Transport,
    TransportUrl,
};
use dwell_kafka::Kafka;
use futures_util::future::join_all;
use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::{fmt, path::PathBuf, process::Command, time::Duration};

/// Creates a certificate authority.
fn authority() -> (Certificate, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(vec![]).unwrap();
    // Its name must differ from those of the certificates, which would otherwise look self-signed.
    authority.distinguished_name.push(DnType::CommonName, "an authority for tests");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&key).unwrap();
    (certificate, Issuer::new(authority, key))
}

/// A file that is deleted with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str, pem: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dwell-kafka-tls-{}-{name}.pem", std::process::id()));
        std::fs::write(&path, pem).unwrap();
        Self(path)
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Creates a key, and a certificate for it from this authority.
fn identity(issuer: &Issuer<'static, KeyPair>) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let names = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = names.signed_by(&key, issuer).unwrap();
    (key.serialize_pem(), certificate.pem())
}

/// Encrypts a key with a password.
fn encrypted(key: &str, password: &str) -> String {
    require(&["openssl"]).unwrap();
    let plain = File::new("plain-key", key);
    let mut command = Command::new("openssl");
    command.args(["pkcs8", "-topk8", "-v2", "aes-256-cbc", "-passout", "env:PASSWORD", "-in"]).arg(&plain.0);
    let output = command.env("PASSWORD", password).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn connect(url: &str) -> Result<Kafka> {
    dwell_kafka::connect(&TransportUrl::parse(url)?, Seams::system("test")).await
}

/// Returns the error of each URL. They are tried concurrently, because each takes a while to fail.
async fn refused(urls: &[String]) -> Vec<Error> {
    let answers = join_all(urls.iter().map(|url| connect(url))).await;
    answers.into_iter().map(|answer| answer.map(drop).unwrap_err()).collect()
}

/// Sends and receives a message.
async fn use_it(kafka: Kafka) {
    let mail = Subscription::new("orders", "mail");
    kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let order = Envelope::new(Address::topic("orders"), Message::new("a", "orders.placed", "{}"));
    kafka.producer().await.unwrap().send(&[order]).await.pop().unwrap().unwrap();
    let consumer = kafka.consumer(mail).await.unwrap();
    let batch = consumer.receive(1, Duration::from_secs(30), None).await.unwrap();
    assert_eq!(&*batch[0].message.id.0, "a");
    kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_broker_with_a_trusted_authority_is_accepted_over_tls() {
    let (ours, issuer) = authority();
    let (key, certificate) = identity(&issuer);
    let server = KafkaServer::start_with_tls(&key, &certificate).unwrap();
    let (trusted, stranger) = (File::new("ours", &ours.pem()), File::new("stranger", &authority().0.pem()));
    let address = server.address_with_tls();
    let url = format!("kafka://{address}?tls=true&partitions=1&ladder=1s&ca={trusted}");
    use_it(connect(&url).await.unwrap()).await;
    let with_password = server.address_with_tls_and_password();
    let login = |password: &str| {
        format!("kafka://{USER}:{password}@{with_password}?tls=true&partitions=1&ladder=1s&ca={trusted}")
    };
    let kafka = connect(&login(PASSWORD)).await.unwrap();
    kafka.provision(&[], &[Subscription::new("orders", "mail")], OnMissing::Validate).await.unwrap();
    kafka.close().await.unwrap();
    let error = connect(&login("hunter2-is-wrong")).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");

    let urls = [format!("kafka://{address}?tls=true&ca={stranger}"), format!("kafka://{address}?tls=true")];
    for (error, url) in refused(&urls).await.into_iter().zip(urls) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error:?}");
        assert!(error.to_string().contains("`ca`"), "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_accepts_only_client_certificates_of_its_authority() {
    let (ours, issuer) = authority();
    let ((key, certificate), (our_key, our_certificate)) = (identity(&issuer), identity(&issuer));
    let (strange_key, strange_certificate) = identity(&authority().1);
    let server = KafkaServer::start_with_client_certificates(&key, &certificate, &ours.pem()).unwrap();
    let trusted = File::new("clients-ca", &ours.pem());
    let (our_key, our_certificate) = (File::new("key", &our_key), File::new("certificate", &our_certificate));
    let strange_key = File::new("strange-key", &strange_key);
    let strange_certificate = File::new("strange-certificate", &strange_certificate);
    let url = format!("kafka://{}?tls=true&partitions=1&ladder=1s&ca={trusted}", server.address_with_tls());
    let ours = format!("{url}&certificate={our_certificate}&private_key={our_key}");
    use_it(connect(&ours).await.unwrap()).await;

    let urls = [
        url.clone(),
        format!("{url}&certificate={strange_certificate}&private_key={strange_key}"),
        format!("{url}&certificate={our_certificate}&private_key={strange_key}"),
        format!("{url}&certificate={our_certificate}"),
    ];
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unavailable, ErrorKind::Config, ErrorKind::Config];
    for ((error, url), kind) in refused(&urls).await.into_iter().zip(urls).zip(kinds) {
        assert_eq!(error.kind(), kind, "{url}: {error:?}");
        assert!(error.to_string().contains("`certificate`"), "{url}: {error}");
        assert!(!format!("{error:?}").contains(&strange_key.to_string()), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_key_needs_its_password_and_errors_do_not_show_it() {
    let (ours, issuer) = authority();
    let ((key, certificate), (our_key, our_certificate)) = (identity(&issuer), identity(&issuer));
    let our_key = encrypted(&our_key, "hunter2-is-right");
    assert!(our_key.starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----"));
    let server = KafkaServer::start_with_client_certificates(&key, &certificate, &ours.pem()).unwrap();
    let trusted = File::new("encrypted-ca", &ours.pem());
    let our_key = File::new("encrypted-key", &our_key);
    let our_certificate = File::new("encrypted-certificate", &our_certificate);
    let url = format!(
        "kafka://{}?tls=true&partitions=1&ladder=1s&ca={trusted}&certificate={our_certificate}&private_key={our_key}",
        server.address_with_tls()
    );
    use_it(connect(&format!("{url}&key_password=hunter2-is-right")).await.unwrap()).await;

    let urls = [format!("{url}&key_password=hunter2-is-wrong"), url];
    for error in refused(&urls).await {
        assert_eq!(error.kind(), ErrorKind::Config, "{error:?}");
        assert!(error.to_string().contains("`key_password`"), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        assert!(!format!("{error:?}").contains(&our_key.to_string()), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_scram_password_is_refused_and_errors_do_not_show_it() {
    let server = KafkaServer::start().unwrap();
    let address = server.address_with_password();
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
        let url = |user: &str, password: &str| {
            format!("kafka://{user}:{password}@{address}?sasl={mechanism}&partitions=1&ladder=1s")
        };
        let kafka = connect(&url(USER, PASSWORD)).await.unwrap();
        match mechanism {
            "SCRAM-SHA-256" => use_it(kafka).await,
            _ => kafka.close().await.unwrap(),
        }
        for (user, password) in [(USER, "hunter2-is-wrong"), ("stranger", PASSWORD)] {
            let error = connect(&url(user, password)).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
            assert!(error.to_string().contains("check the user, the password and `sasl`"), "{error}");
            assert!(!format!("{error:?}").contains(password), "{error:?}");
        }
    }
    for mechanism in ["GSSAPI", "OAUTHBEARER"] {
        let error = connect(&format!("kafka://{USER}:{PASSWORD}@{address}?sasl={mechanism}")).await;
        let error = error.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error:?}");
        assert!(error.to_string().contains("SCRAM-SHA-512"), "{error}");
        assert!(!format!("{error:?}").contains(PASSWORD), "{error:?}");
    }
}
