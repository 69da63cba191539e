"""A client that knows only the documented headers.

client.py BROKERS DELAY_TOPIC TARGET PROCESS_AT COUNT

Writes COUNT records into a delay topic in a transaction that it commits, and one record in a transaction
that it aborts. Then moves the records of the target to another topic, TARGET-copy, with their offsets, in
one transaction. Prints one JSON object per record of that topic.
"""

import json
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

brokers, delay_topic, target, process_at, count = sys.argv[1:]
count = int(count)
copy = target + "-copy"


def producer(name):
    made = Producer({"bootstrap.servers": brokers, "transactional.id": f"{target}-{name}"})
    made.init_transactions(30)
    return made


def reader(group, topic):
    made = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    made.subscribe([topic])
    return made


def read(consumer, wanted, patience):
    """Returns this number of records, or those that arrived in time."""
    records, end = [], time.time() + patience
    while len(records) < wanted and time.time() < end:
        record = consumer.poll(0.2)
        if record is not None and not record.error():
            records.append(record)
    return records


def delayed(sender, body):
    headers = [("colour", b"red"), ("x-target-topic", target), ("x-process-at", process_at), ("colour", b"blue")]
    sender.produce(delay_topic, key="order-" + body, value=body, headers=headers)


sender = producer("sender")
sender.begin_transaction()
delayed(sender, "never")
sender.flush()
sender.abort_transaction(30)
sender.begin_transaction()
for number in range(count):
    delayed(sender, str(number))
sender.commit_transaction(30)

mover, consumer = producer("mover"), reader(target + "-mover", target)
# One more than expected, so that a duplicate is noticed.
came = read(consumer, count, 40)
came += read(consumer, 1, 2)
mover.begin_transaction()
for record in came:
    headers = list(record.headers()) + [("timestamp", str(record.timestamp()[1]))]
    mover.produce(copy, key=record.key(), value=record.value(), headers=headers)
offsets = {}
for record in came:
    offsets[record.partition()] = max(offsets.get(record.partition(), 0), record.offset() + 1)
offsets = [TopicPartition(target, partition, offset) for partition, offset in offsets.items()]
mover.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
mover.commit_transaction(30)
consumer.close()

consumer = reader(target + "-reader", copy)
for record in read(consumer, len(came), 20):
    headers = [[name, value.decode()] for name, value in record.headers()]
    print(json.dumps({"key": record.key().decode(), "body": record.value().decode(), "headers": headers}))
consumer.close()
