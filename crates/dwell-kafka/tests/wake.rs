//! Wake-ups of a relay. Periodic checks, which would hide a missing wake-up, are disabled here.

mod rig;

use dwell_core::{BoxFuture, Clock, Moment, Seams, SystemClock, Timestamp};
use dwell_kafka::{Ladder, Tally};
use rig::scene::Scene;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A clock that can be stopped: sleeps for a duration then never end, and only sleeps until a time
/// do.
struct Clockwork {
    of: SystemClock,
    stopped: AtomicBool,
}

impl Clock for Clockwork {
    fn moment(&self) -> Moment {
        self.of.moment()
    }

    fn elapsed(&self) -> Duration {
        self.of.elapsed()
    }

    fn sleep_until(&self, time: Timestamp) -> BoxFuture<'static, ()> {
        self.of.sleep_until(time)
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        if self.stopped.load(Ordering::SeqCst) {
            Box::pin(std::future::pending())
        } else {
            self.of.sleep(delay)
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_in_memory_wakes_the_relay_when_it_is_due() {
    const COUNT: u64 = 3;
    let mut scene = Scene::new().await;
    // Records that are due within twenty seconds wait in memory.
    scene.settings.relay.ladder = Ladder::parse("20s,40s").unwrap();
    let clock = Arc::new(Clockwork { of: SystemClock::new(), stopped: AtomicBool::new(false) });
    let relay = scene.relay_with(Seams { clock: clock.clone(), ..Seams::system("relay") });
    // The relay creates its topics when it starts.
    let due = scene.delay_topic("due");
    scene.wait_for(&due).await;
    let target = scene.topic("orders").await;
    let at = scene.now() + 15_000;
    for n in 0..COUNT as i64 {
        // At different times, so that the relay sleeps for each record.
        let headers = [("x-target-topic", target.clone()), ("x-process-at", (at + n * 500).to_string())];
        scene.write(&due, "k", &headers, "x");
    }
    // A slow machine may have forwarded some of them already.
    let read = |tally: Tally| tally.held + tally.forwarded == COUNT;
    scene.until("all are held", || read(relay.counts.tally())).await;
    clock.stopped.store(true, Ordering::SeqCst);
    scene.until("all are forwarded", || relay.counts.tally().forwarded == COUNT).await;
    relay.stop().await;
}
