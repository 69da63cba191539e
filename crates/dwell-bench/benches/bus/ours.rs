//! A bus in memory with one subscription, and its handlers.

use crate::{
    CAPACITY,
    message::{Left, Placed, publish},
};
use dwell::{IntoHandler, Pipeline, Step, prelude::*};
use std::time::{Duration, Instant};

/// A handler that only counts.
pub(crate) async fn bare(_: Placed, State(left): State<Left>) -> Result<(), Failure> {
    left.handled();
    Ok(())
}

/// The same handler with three steps, added by attributes.
#[handler]
#[defer_on_error(delay = "30s")]
#[timeout("10s")]
#[retry_inline(max_retries = 3)]
pub(crate) async fn attributed(_: Placed, State(left): State<Left>) -> Result<(), Failure> {
    left.handled();
    Ok(())
}

/// The same handler with three steps, added by the builder.
pub(crate) fn built() -> Pipeline<Placed> {
    Pipeline::new(bare)
        .step(Step::defer_on_error().delay(Duration::from_secs(30)))
        .step(Step::timeout(Duration::from_secs(10)))
        .step(Step::retry_inline().max_retries(3))
}

/// Returns a bus on which this handler receives every event.
pub(crate) async fn bus<H, Marker>(left: &Left, handler: H) -> Bus
where
    H: IntoHandler<Marker, Message = Placed>,
{
    let subscription = Subscription::named("bench").with(|settings| settings.batch = 200);
    let wiring = Bus::builder().state(left.clone()).subscribe(subscription, handler);
    wiring.start(&format!("memory://?capacity={CAPACITY}")).await.expect("memory starts")
}

/// Messages per second, from publish to handled.
pub(crate) async fn rate<H, Marker>(messages: usize, producers: usize, handler: H) -> f64
where
    H: IntoHandler<Marker, Message = Placed>,
{
    let left = Left::new(messages);
    let bus = bus(&left, handler).await;
    let start = Instant::now();
    for producer in 0..producers {
        let bus = bus.clone();
        tokio::spawn(async move {
            for number in (producer..messages).step_by(producers) {
                publish(&bus, number).await;
            }
        });
    }
    left.none().await;
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    bus.shutdown().await.expect("memory closes");
    rate
}

/// Blocks the handlers.
pub(crate) fn pause(bus: &Bus) {
    bus.monitor().pumps().iter().for_each(|pump| pump.pause());
}

/// Unblocks the handlers.
pub(crate) fn resume(bus: &Bus) {
    bus.monitor().pumps().iter().for_each(|pump| pump.resume());
}
