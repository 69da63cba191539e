//! A record counts as sent when a broker has said where it lies.

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

/// What happens where a producer is the first to write to a partition whose leader is about to begin: its first batch is
/// refused, the second, which is on its way by then, is taken, and the library concludes that it has the first, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_batch_that_is_refused_while_the_next_is_taken_is_sent_again() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("orders", 1, 1).unwrap();
    let settings = KafkaSettings::at(cluster.bootstrap_servers());
    let kafka = Kafka::connect(settings, Seams::system("first")).await.unwrap();
    let producer = kafka.producer().await.unwrap();
    let send = async |body: &'static str| {
        let envelope = Envelope::new(Address::topic("orders"), Message::new(body, "t", body));
        producer.send(&[envelope]).await.remove(0).unwrap();
    };
    // The producer knows broker and topic by now. (This broker looks at no sequence, like one that knows no producer.)
    send("before").await;
    // The second is on its way before the first is answered, and answered before the first is sent again.
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

/// All bodies in the partition.
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
