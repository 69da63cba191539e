//! Private servers for tests: each on free ports of the loopback interface, with its data in a directory of its own, ended
//! with whoever started it, however that one ends.

pub mod kafka;
mod keeper;
pub mod redis;
mod tools;

pub use tools::{install, require};

use std::{
    io,
    net::TcpListener,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// Below those that the system gives to whoever connects somewhere: a server that is restarted would find its port taken by
/// a client, most likely one that tries to reach it.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// So many free ports of the loopback interface, all different.
pub(crate) fn free_ports<const COUNT: usize>() -> io::Result<[u16; COUNT]> {
    /// Each process begins elsewhere, and no port is tried twice before all were.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    const APART: usize = 61;
    let begin = std::process::id() as usize * APART;
    let mut listeners = vec![];
    for _ in PORTS {
        let at = (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.len();
        // Held until all are known, so that none is given twice.
        listeners.extend(TcpListener::bind(("127.0.0.1", PORTS.start + at as u16)));
        if listeners.len() == COUNT {
            let mut ports = [0; COUNT];
            for (port, listener) in ports.iter_mut().zip(&listeners) {
                *port = listener.local_addr()?.port();
            }
            return Ok(ports);
        }
    }
    Err(io::Error::other(format!("there are no {COUNT} free ports among {PORTS:?}")))
}

/// Waits until it is so, up to so many seconds.
pub(crate) fn wait_until(what: &str, seconds: u64, mut is: impl FnMut() -> bool) -> io::Result<()> {
    for _ in 0..seconds * 50 {
        if is() {
            return Ok(());
        }
        pause(Duration::from_millis(20));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("{what}: not after {seconds} s")))
}

#[expect(
    clippy::disallowed_methods,
    reason = "a server starts in real time, whatever the clock of a test does"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ports_are_all_different_free_and_none_that_the_system_gives_to_clients() {
        let ports: BTreeSet<_> = (0..20).flat_map(|_| free_ports::<12>().unwrap()).collect();
        assert_eq!(ports.len(), 240);
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
    }
}
