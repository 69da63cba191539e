//! Captures the log of this process.

use std::{
    io,
    sync::{Mutex, Once, PoisonError},
};

static SAID: Mutex<String> = Mutex::new(String::new());

struct Writer;

impl io::Write for Writer {
    fn write(&mut self, said: &[u8]) -> io::Result<usize> {
        SAID.lock().unwrap_or_else(PoisonError::into_inner).push_str(&String::from_utf8_lossy(said));
        Ok(said.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Captures the log of this crate from now on.
pub(crate) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let log = tracing_subscriber::fmt().with_env_filter("dwell_kafka=info").with_ansi(false);
        log.with_writer(|| Writer).init();
    });
}

/// Returns the captured lines that contain all of these texts.
pub(crate) fn lines(with: &[&str]) -> Vec<String> {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = |line: &&str| with.iter().all(|text| line.contains(text));
    said.lines().filter(wanted).map(str::to_owned).collect()
}
