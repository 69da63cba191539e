//! Writes a batch that brokers accept and clients cannot read, with a hand-written request.
//!
//! The batch is an LZ4 frame with a wrong content checksum. Brokers do not verify it; librdkafka
//! does.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

/// Writes such a batch, with one record, to a partition.
pub(crate) fn put_unreadable(address: &str, topic: &str, partition: i32) {
    let batch = batch(&frame(&record()));
    let mut body = vec![];
    body.extend((-1_i16).to_be_bytes()); // no transaction
    body.extend((-1_i16).to_be_bytes()); // all replicas
    body.extend(10_000_i32.to_be_bytes());
    body.extend(1_i32.to_be_bytes());
    text(&mut body, topic);
    body.extend(1_i32.to_be_bytes());
    body.extend(partition.to_be_bytes());
    body.extend((batch.len() as i32).to_be_bytes());
    body.extend(batch);
    let mut request = vec![];
    request.extend(0_i16.to_be_bytes()); // Produce
    request.extend(3_i16.to_be_bytes());
    request.extend(1_i32.to_be_bytes());
    text(&mut request, "raw");
    request.extend(body);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&(request.len() as i32).to_be_bytes()).unwrap();
    stream.write_all(&request).unwrap();
    let mut size = [0; 4];
    stream.read_exact(&mut size).unwrap();
    let mut answer = vec![0; i32::from_be_bytes(size) as usize];
    stream.read_exact(&mut answer).unwrap();
    // After the correlation id: one topic with its name, one partition, and its index.
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    assert_eq!(answer[at..at + 2], [0, 0], "the broker accepts the batch");
}

fn text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as i16).to_be_bytes());
    to.extend(text.as_bytes());
}

/// Returns a record without a key and headers, with a body of one byte. Its length comes first.
/// Numbers are zigzag-encoded.
fn record() -> Vec<u8> {
    let record = [0, 0, 0, 1, 2, b'x', 0];
    [&[record.len() as u8 * 2][..], &record].concat()
}

fn frame(content: &[u8]) -> Vec<u8> {
    let flags = [0x64, 0x40];
    let mut frame = 0x184d_2204_u32.to_le_bytes().to_vec();
    frame.extend(flags);
    frame.push((xxh32(&flags) >> 8) as u8);
    // An uncompressed block.
    frame.extend((content.len() as u32 | 1 << 31).to_le_bytes());
    frame.extend(content);
    frame.extend([0; 4]);
    frame.extend((xxh32(content) ^ 1).to_le_bytes());
    frame
}

fn batch(records: &[u8]) -> Vec<u8> {
    let mut checked = vec![];
    checked.extend(3_i16.to_be_bytes()); // LZ4
    checked.extend(0_i32.to_be_bytes());
    checked.extend(1_700_000_000_000_i64.to_be_bytes());
    checked.extend(1_700_000_000_000_i64.to_be_bytes());
    checked.extend((-1_i64).to_be_bytes());
    checked.extend((-1_i16).to_be_bytes());
    checked.extend((-1_i32).to_be_bytes());
    checked.extend(1_i32.to_be_bytes());
    checked.extend(records);
    let mut batch = 0_i64.to_be_bytes().to_vec();
    batch.extend((checked.len() as i32 + 9).to_be_bytes());
    batch.extend((-1_i32).to_be_bytes());
    batch.push(2);
    batch.extend(crc32c(&checked).to_be_bytes());
    batch.extend(checked);
    batch
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// Hashes less than 16 bytes.
fn xxh32(bytes: &[u8]) -> u32 {
    const PRIMES: [u32; 5] = [2_654_435_761, 2_246_822_519, 3_266_489_917, 668_265_263, 374_761_393];
    let mut hash = PRIMES[4].wrapping_add(bytes.len() as u32);
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        hash = hash.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(PRIMES[2]));
        hash = hash.rotate_left(17).wrapping_mul(PRIMES[3]);
    }
    for byte in rest {
        hash = hash.wrapping_add(u32::from(*byte).wrapping_mul(PRIMES[4]));
        hash = hash.rotate_left(11).wrapping_mul(PRIMES[0]);
    }
    hash = (hash ^ hash >> 15).wrapping_mul(PRIMES[1]);
    hash = (hash ^ hash >> 13).wrapping_mul(PRIMES[2]);
    hash ^ hash >> 16
}
