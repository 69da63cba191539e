//! The system packages that tests need, and their installation.
//!
//! Packages are installed only on request, and all at once, because two installations at the same
//! time block each other.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
};

/// A tool that tests use, and the packages that contain it.
struct Tool {
    name: &'static str,
    /// Command that succeeds if the tool is installed.
    probe: &'static str,
    packages: &'static [&'static str],
    /// Transport that needs it, or `build` for tools that every run needs.
    of: &'static str,
}

const TOOLS: &[Tool] = &[
    tool(
        "redis-server",
        "redis",
        "command -v redis-server && command -v redis-cli",
        &["redis-server", "redis-tools"],
    ),
    tool("curl", "build", "command -v curl", &["curl"]),
    tool("sqlite3", "build", "command -v sqlite3", &["sqlite3"]),
    tool("a C++ compiler and make", "build", "command -v c++ && command -v make", &["build-essential"]),
    tool("OpenSSL", "build", "pkg-config --exists openssl", &["pkg-config", "libssl-dev"]),
    tool("java", "kafka", "command -v java", &["default-jre-headless"]),
    tool("mvn", "kafka", "command -v mvn", &["maven"]),
    tool("kcat", "kafka", "command -v kcat", &["kcat"]),
    tool("openssl", "kafka", "command -v openssl", &["openssl"]),
    tool("python3", "kafka", "python3 -c 'import ensurepip, venv'", &["python3", "python3-venv"]),
];

const fn tool(
    name: &'static str,
    of: &'static str,
    probe: &'static str,
    packages: &'static [&'static str],
) -> Tool {
    Tool { name, probe, packages, of }
}

impl Tool {
    fn is_there(&self) -> bool {
        let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        let path = std::env::var("PATH").unwrap_or_default();
        // Servers may not be on the user's path.
        let mut shell = Command::new("sh");
        shell.args(["-c", self.probe]).env("PATH", format!("{path}:/usr/sbin"));
        quiet(&mut shell).is_ok_and(|status| status.success())
    }
}

/// Returns an error that says in one line what to install, if one of these tools is missing.
///
/// ```
/// # use dwell_conformance::servers::require;
/// let error = require(&["abacus"]).unwrap_err();
/// assert!(error.to_string().contains("no test needs `abacus`"));
/// ```
pub fn require(names: &[&str]) -> io::Result<()> {
    for name in names {
        let Some(tool) = TOOLS.iter().find(|tool| tool.name == *name) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no test needs `{name}`")));
        };
        if !tool.is_there() {
            return Err(missing(&[tool]));
        }
    }
    Ok(())
}

/// Installs the missing tools of these transports, or of `build`, if `may` is true; otherwise
/// returns an error that lists them.
///
/// ```
/// # use dwell_conformance::servers::install;
/// // The memory transport needs no tools.
/// install(&["memory"], true)?;
/// # Ok::<_, std::io::Error>(())
/// ```
pub fn install(needs: &[&str], may: bool) -> io::Result<()> {
    let wanted = TOOLS.iter().filter(|tool| needs.contains(&tool.of));
    let lacking = |tools: &[&'static Tool]| -> Vec<&'static Tool> {
        tools.iter().copied().filter(|tool| !tool.is_there()).collect()
    };
    let missing_now = lacking(&wanted.collect::<Vec<_>>());
    if missing_now.is_empty() {
        return Ok(());
    }
    if !may || !Path::new("/usr/bin/apt-get").exists() {
        return Err(missing(&missing_now));
    }
    let list = packages(&missing_now);
    eprintln!("installing {list}");
    let apt = format!("{} apt-get -q -o DPkg::Lock::Timeout=300", as_root());
    // Services are not started, because every test has its own server.
    let script = format!(
        "export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1; {apt} install -y --no-install-recommends {list} \
         || {{ {apt} update && {apt} install -y --no-install-recommends {list}; }}"
    );
    let _ = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).stdout(io::stderr()).status();
    match &*lacking(&missing_now) {
        [] => Ok(()),
        still => Err(missing(still)),
    }
}

fn as_root() -> &'static str {
    let has_sudo = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|path| path.join("sudo").is_file());
    if has_sudo { "sudo -n" } else { "" }
}

fn packages(tools: &[&Tool]) -> String {
    tools.iter().flat_map(|tool| tool.packages).copied().collect::<Vec<_>>().join(" ")
}

fn missing(tools: &[&Tool]) -> io::Error {
    let names: Vec<_> = tools.iter().map(|tool| tool.name).collect();
    let text = format!(
        "missing: {}. As root, run `apt-get install {}`, or run `cargo xtask test --install`",
        names.join(", "),
        packages(tools)
    );
    io::Error::new(io::ErrorKind::NotFound, text)
}
