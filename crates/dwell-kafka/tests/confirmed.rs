//! A record counts as sent only when a broker has returned its offset.

use dwell_core::{Address, Envelope, Message, Seams, Transport as _};
use dwell_kafka::{Kafka, KafkaSettings};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    mocking::MockCluster,
    producer::DefaultProducerContext,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use std::time::Duration;

/// This happens to the first producer of a partition whose leader is not ready yet: its first batch
/// is refused, the second one in flight is accepted, and librdkafka concludes that the first one
/// was accepted, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_batch_before_an_accepted_one_is_sent_again() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("orders", 1, 1).unwrap();
    let settings = KafkaSettings::at(cluster.bootstrap_servers());
    let kafka = Kafka::connect(settings, Seams::system("first")).await.unwrap();
    let producer = kafka.producer().await.unwrap();
    let send = async |body: &'static str| {
        let envelope = Envelope::new(Address::topic("orders"), Message::new(body, "t", body));
        producer.send(&[envelope]).await.remove(0).unwrap();
    };
    // The producer knows broker and topic by now. (The mock broker does not check sequence numbers,
    // like a broker that does not know the producer.)
    send("before").await;
    // The second batch is sent before the first is answered, and answered before the first is
    // resent.
    cluster.broker_round_trip_time(-1, Duration::from_millis(500)).unwrap();
    cluster
        .request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART]);
    let second = async {
        Seams::system("later").clock.sleep(Duration::from_millis(40)).await;
        send("second").await;
    };
    tokio::join!(send("first"), second);
    assert_eq!(read(&cluster), ["before", "second", "first"]);
}

/// Returns all bodies in the partition.
fn read(cluster: &MockCluster<'_, DefaultProducerContext>) -> Vec<String> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers());
    config.set("group.id", "reader").set("enable.partition.eof", "true");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_offset("orders", 0, Offset::Beginning).unwrap();
    consumer.assign(&partitions).unwrap();
    let mut bodies = vec![];
    while let Some(Ok(message)) = consumer.poll(Duration::from_secs(30)) {
        bodies.push(String::from_utf8(message.payload().unwrap().to_vec()).unwrap());
    }
    bodies
}
