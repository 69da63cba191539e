//! `rediss://`, with a certificate authority of the test.

use dwell_conformance::servers::redis::{RedisCluster, RedisOptions, RedisServer, TlsFiles};
use dwell_core::{
    Address, Envelope, ErrorKind, Message, OnMissing, Result, Seams, Subscription, Transport, TransportUrl,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::{path::PathBuf, time::Duration};

/// Creates an authority, and a certificate for `localhost` signed by it, as files.
fn certificates(name: &str) -> TlsFiles {
    let directory = std::env::temp_dir().join(format!("dwell-tls-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let write = |file: &str, text: String| -> PathBuf {
        let path = directory.join(file);
        std::fs::write(&path, text).unwrap();
        path
    };
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(vec![]).unwrap();
    // With a name that differs from the certificate's, which would otherwise look self-signed.
    authority.distinguished_name.push(DnType::CommonName, "an authority for tests");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let signed = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    TlsFiles {
        ca: write("ca.pem", certificate.pem()),
        certificate: write("server.pem", signed.pem()),
        key: write("server.key", key.serialize_pem()),
    }
}

async fn connect(url: &str) -> Result<dwell_redis::Redis> {
    dwell_redis::connect(&TransportUrl::parse(url)?, Seams::system("test")).await
}

/// Sends a message to a consumer on another connection.
async fn speak(url: &str) {
    let redis = connect(url).await.unwrap();
    let mail = Subscription::new("orders", "mail");
    redis.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let consumer = redis.consumer(mail).await.unwrap();
    let waiting = tokio::spawn(async move { consumer.receive(1, Duration::from_secs(10), None).await });
    let order = Envelope::new(Address::topic("orders"), Message::new("a", "orders.placed", "{}"));
    redis.producer().await.unwrap().send(&[order]).await.pop().unwrap().unwrap();
    let batch = waiting.await.unwrap().unwrap();
    assert_eq!(&*batch[0].message.id.0, "a");
}

#[tokio::test]
async fn a_cluster_works_over_tls() {
    let files = certificates("cluster");
    let options = RedisOptions { tls: Some(files.clone()), ..RedisOptions::default() };
    let cluster = RedisCluster::start_with(options).unwrap();
    speak(&format!("{}?ca={}", cluster.url(), files.ca.display())).await;
    let error = connect(&cluster.url()).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("TLS"), "{error}");
}

#[tokio::test]
async fn only_a_server_with_a_trusted_certificate_is_accepted() {
    let files = certificates("ours");
    let options = RedisOptions { tls: Some(files.clone()), ..RedisOptions::default() };
    let server = RedisServer::start(options).unwrap();
    let trusted = format!("{}?ca={}", server.url(), files.ca.display());
    speak(&trusted).await;

    let stranger = certificates("stranger");
    let plain = server.url().replace("rediss://", "redis://");
    for url in [format!("{}?ca={}", server.url(), stranger.ca.display()), server.url(), plain] {
        let error = connect(&url).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error:?}");
        assert!(error.to_string().contains("TLS"), "{url}: {error}");
    }
}
