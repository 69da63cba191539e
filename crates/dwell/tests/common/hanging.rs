//! Virtual time for blocking handlers that hang: time stands still while a thread works, but not for the first few.

use dwell::raw::BoxError;
use dwell_core::{BoxFuture, Busy, Clock, Moment, Seams, SystemClock, Timestamp, VirtualClock};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};
use tokio::sync::Semaphore;

/// A clock that does not wait for the first `hangs` runs of blocking handlers.
struct Impatient {
    time: VirtualClock,
    hangs: AtomicUsize,
}

/// Virtual time that goes on although the first `hangs` runs of blocking handlers hang.
pub fn seams(time: &VirtualClock, hangs: usize) -> Seams {
    let random = Seams::virtual_time(time.clone(), 1).random;
    Seams::new(Arc::new(Impatient { time: time.clone(), hangs: hangs.into() }), random, "test")
}

impl Clock for Impatient {
    fn moment(&self) -> Moment {
        self.time.moment()
    }

    fn elapsed(&self) -> Duration {
        self.time.elapsed()
    }

    fn sleep_until(&self, time: Timestamp) -> BoxFuture<'static, ()> {
        self.time.sleep_until(time)
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        self.time.sleep(delay)
    }

    fn tick(&self, period: Duration) -> BoxFuture<'static, ()> {
        self.time.tick(period)
    }

    fn track(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.time.track(task)
    }

    fn idle(&self) -> BoxFuture<'static, ()> {
        Clock::idle(&self.time)
    }

    fn busy(&self) -> Busy {
        let hangs = self.hangs.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match hangs {
            Ok(_) => SystemClock::new().busy(),
            Err(_) => self.time.busy(),
        }
    }
}

/// Where a blocking handler hangs until it is let go.
#[derive(Clone)]
pub struct Trap {
    inside: Arc<Semaphore>,
    door: Arc<Mutex<mpsc::Receiver<()>>>,
}

/// Opens a trap. It also opens when it is dropped, so that no thread outlives its test.
pub struct Opener(mpsc::Sender<()>);

pub fn trap() -> (Trap, Opener) {
    let (open, door) = mpsc::channel();
    (Trap { inside: Arc::new(Semaphore::new(0)), door: Arc::new(Mutex::new(door)) }, Opener(open))
}

impl Trap {
    /// Hangs here.
    pub fn enter(&self) {
        self.inside.add_permits(1);
        let _ = self.door.lock().expect("nobody panics in here").recv();
    }

    /// Completes when somebody hangs.
    pub async fn caught(&self) {
        self.inside.acquire().await.expect("it is never closed").forget();
    }
}

impl Opener {
    /// Lets one go.
    pub fn open(&self) -> Result<(), BoxError> {
        Ok(self.0.send(())?)
    }
}
