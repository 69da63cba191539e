//! The baseline: a bounded channel, with JSON encoding and decoding.

use crate::{CAPACITY, message::Placed};
use std::{hint::black_box, time::Instant};
use tokio::sync::mpsc;

/// Messages per second, from encoding to decoding.
pub(crate) async fn rate(messages: usize, producers: usize) -> f64 {
    let (send, mut receive) = mpsc::channel::<Vec<u8>>(CAPACITY);
    let start = Instant::now();
    for producer in 0..producers {
        let send = send.clone();
        tokio::spawn(async move {
            for number in (producer..messages).step_by(producers) {
                let body = serde_json::to_vec(&Placed::new(number)).expect("it is plain data");
                send.send(body).await.expect("the receiver listens");
            }
        });
    }
    drop(send);
    let receiver = tokio::spawn(async move {
        let mut received = 0;
        while let Some(body) = receive.recv().await {
            black_box(serde_json::from_slice::<Placed>(&body).expect("it was written just now"));
            received += 1;
        }
        received
    });
    assert_eq!(receiver.await.expect("nobody panics"), messages);
    messages as f64 / start.elapsed().as_secs_f64()
}
