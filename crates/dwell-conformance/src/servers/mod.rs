//! Private servers for tests: each on free ports of the loopback interface, with its data in a directory of its own, ended
//! with whoever started it, however that one ends.

pub mod kafka;
mod keeper;
pub mod redis;

use std::{
    io,
    net::TcpListener,
    path::Path,
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

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

/// A program of the distribution, installed if it is not there and we may. The error says in one line what to install.
pub fn require(program: &str, packages: &[&str]) -> io::Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if is_there(program) {
        return Ok(());
    }
    let list = packages.join(" ");
    let as_root = if is_there("sudo") { "sudo -n" } else { "" };
    // Its service is not wanted: every test has a server of its own.
    let script = format!(
        "export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1; {as_root} apt-get install -y -q --no-install-recommends {list} \
         || {{ {as_root} apt-get update -q && {as_root} apt-get install -y -q --no-install-recommends {list}; }}"
    );
    if is_there("apt-get") {
        eprintln!("`{program}` is not there: installing {list}");
        let _ = Command::new("sh").args(["-c", &script]).stdout(io::stderr()).status();
    }
    match is_there(program) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("`{program}` is needed and could not be installed: run `apt-get install {list}` as root"),
        )),
    }
}

fn is_there(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|path| path.join(program).is_file())
        || Path::new("/usr/sbin").join(program).is_file()
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
