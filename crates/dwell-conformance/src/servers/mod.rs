//! Private servers for tests: each on free ports of the loopback interface, with its data in a directory of its own, ended
//! with whoever started it, however that one ends.

pub mod kafka;
mod keeper;
pub mod redis;
mod tools;

pub use tools::{install, require};

use std::{
    fs::{self, File},
    io,
    net::TcpListener,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Below those that the system gives to whoever connects somewhere: a server that is restarted would find its port taken by
/// a client, most likely one that tries to reach it.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Reserves free ports of the loopback interface for this process, all different. A port stays reserved while its server
/// restarts or its proxy refuses connections: no other test process gets it before this one ends.
pub(crate) fn free_ports<const COUNT: usize>() -> io::Result<[u16; COUNT]> {
    /// Locked files of the reserved ports.
    static RESERVED: Mutex<Vec<File>> = Mutex::new(vec![]);
    let directory = std::env::temp_dir().join("dwell-test-ports");
    fs::create_dir_all(&directory)?;
    let mut ports = vec![];
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    for port in candidates() {
        if let Some(lock) = reserve(&directory, port)? {
            reserved.push(lock);
            ports.push(port);
        }
        if let Ok(ports) = ports.as_slice().try_into() {
            return Ok(ports);
        }
    }
    Err(io::Error::other(format!("there are no {COUNT} free ports among {PORTS:?}")))
}

/// Every port once. Each process begins elsewhere, and tries no port twice before all were tried.
fn candidates() -> impl Iterator<Item = u16> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    const APART: usize = 61;
    let begin = std::process::id() as usize * APART;
    PORTS.map(move |_| {
        let at = (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.len();
        PORTS.start + at as u16
    })
}

/// The locked file of this port, unless the port is in use or reserved. The lock ends with the process that holds the file.
fn reserve(directory: &Path, port: u16) -> io::Result<Option<File>> {
    let lock = File::create(directory.join(port.to_string()))?;
    match lock.try_lock() {
        Ok(()) => Ok(TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(lock)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
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

    #[test]
    fn a_reserved_port_is_not_given_again_while_nothing_listens_on_it() {
        let [port] = free_ports().unwrap();
        let directory = std::env::temp_dir().join("dwell-test-ports");
        // Another open file stands for another process: locks belong to open files.
        assert!(TcpListener::bind(("127.0.0.1", port)).is_ok());
        assert!(reserve(&directory, port).unwrap().is_none());
    }
}
