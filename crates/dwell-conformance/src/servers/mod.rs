//! Private servers for tests: each on free ports of the loopback interface, with its data in a directory of its own, ended
//! with whoever started it, however that one ends.

pub mod kafka;
mod keeper;
pub mod redis;
mod tools;

pub use tools::{install, require};

use std::{io, net::TcpListener, time::Duration};

/// So many free ports of the loopback interface, all different.
pub(crate) fn free_ports<const COUNT: usize>() -> io::Result<[u16; COUNT]> {
    // Held until all are known, so that none is given twice.
    let listeners: Vec<_> =
        (0..COUNT).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect::<io::Result<_>>()?;
    let mut ports = [0; COUNT];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
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
