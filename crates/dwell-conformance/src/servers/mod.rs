//! Private servers for tests. Each uses free ports of the loopback interface and its own data
//! directory, and ends with the process that started it.

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

/// Range below the ports that the system assigns to clients. Otherwise a restarted server could
/// find its port in use by a client, most likely one that tries to reach it.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Reserves different free ports of the loopback interface for this process. A port stays reserved
/// while its server restarts or its proxy refuses connections. No other test process gets it before
/// this process ends.
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

/// Returns every port once. Each process begins at another port.
fn candidates() -> impl Iterator<Item = u16> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    const APART: usize = 61;
    let begin = std::process::id() as usize * APART;
    PORTS.map(move |_| {
        let at = (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.len();
        PORTS.start + at as u16
    })
}

/// Returns the locked file of this port, or `None` if the port is in use or reserved. The lock ends
/// with the process.
fn reserve(directory: &Path, port: u16) -> io::Result<Option<File>> {
    let lock = File::create(directory.join(port.to_string()))?;
    match lock.try_lock() {
        Ok(()) => Ok(TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(lock)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Waits until the condition holds, up to this number of seconds.
pub(crate) fn wait_until(what: &str, seconds: u64, mut is: impl FnMut() -> bool) -> io::Result<()> {
    for _ in 0..seconds * 50 {
        if is() {
            return Ok(());
        }
        pause(Duration::from_millis(20));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("{what} after {seconds} s")))
}

#[expect(
    clippy::disallowed_methods,
    reason = "servers start in real time, even if a test uses a virtual clock"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ports_are_different_free_and_not_from_the_client_range() {
        let ports: BTreeSet<_> = (0..20).flat_map(|_| free_ports::<12>().unwrap()).collect();
        assert_eq!(ports.len(), 240);
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
    }

    #[test]
    fn a_reserved_port_is_not_assigned_again_while_unused() {
        let [port] = free_ports().unwrap();
        let directory = std::env::temp_dir().join("dwell-test-ports");
        // Another open file stands for another process, because locks belong to open files.
        assert!(TcpListener::bind(("127.0.0.1", port)).is_ok());
        assert!(reserve(&directory, port).unwrap().is_none());
    }
}
