//! TLS, with a certificate authority of the test's own.

use dwell_conformance::servers::kafka::KafkaServer;
use dwell_core::{
    Address, Envelope, ErrorKind, Message, OnMissing, Result, Seams, Subscription, Transport, TransportUrl,
};
use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::{path::PathBuf, time::Duration};

/// An authority, and what it signs with.
fn authority() -> (Certificate, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(vec![]).unwrap();
    // Told apart from what it signs, which would else look as if it had signed itself.
    authority.distinguished_name.push(DnType::CommonName, "an authority for tests");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&key).unwrap();
    (certificate, Issuer::new(authority, key))
}

fn write(name: &str, certificate: &Certificate) -> PathBuf {
    let path = std::env::temp_dir().join(format!("dwell-kafka-tls-{}-{name}.pem", std::process::id()));
    std::fs::write(&path, certificate.pem()).unwrap();
    path
}

async fn connect(url: &str) -> Result<dwell_kafka::Kafka> {
    dwell_kafka::connect(&TransportUrl::parse(url)?, Seams::system("test")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_authority_we_trust_is_spoken_to_over_tls_and_no_other() {
    let (ours, issuer) = authority();
    let key = KeyPair::generate().unwrap();
    let names = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = names.signed_by(&key, &issuer).unwrap();
    let server = KafkaServer::start_with_tls(&key.serialize_pem(), &certificate.pem()).unwrap();
    let (trusted, stranger) = (write("ours", &ours), write("stranger", &authority().0));
    let address = server.address_with_tls();
    let url = format!("kafka://{address}?tls=true&partitions=1&ladder=1s&ca={}", trusted.display());
    let kafka = connect(&url).await.unwrap();
    let mail = Subscription::new("orders", "mail");
    kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let order = Envelope::new(Address::topic("orders"), Message::new("a", "orders.placed", "{}"));
    kafka.producer().await.unwrap().send(&[order]).await.pop().unwrap().unwrap();
    let consumer = kafka.consumer(mail).await.unwrap();
    let batch = consumer.receive(1, Duration::from_secs(30), None).await.unwrap();
    assert_eq!(&*batch[0].message.id.0, "a");
    kafka.close().await.unwrap();

    for url in [
        format!("kafka://{address}?tls=true&ca={}", stranger.display()),
        format!("kafka://{address}?tls=true"),
    ] {
        let error = connect(&url).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error:?}");
        assert!(error.to_string().contains("`ca`"), "{url}: {error}");
    }
    for file in [trusted, stranger] {
        std::fs::remove_file(file).unwrap();
    }
}
