//! A file on a file system that is temporarily read-only. Where permitted, the test mounts one in a
//! child process, which is this test again, marked by an environment variable.

use super::*;
use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::{Command, ExitStatus},
};

const IS_INSIDE: &str = "DWELL_SQLITE_TEST_READ_ONLY";
const ENTRY: &str = "read_only::read_only_file_is_denied_and_intact_once_writable";

/// Runs a shell command with a file system mounted at the directory, which is `$0`.
fn run(flags: &[&str], directory: &Path, then: &str) -> Option<ExitStatus> {
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(flags).args(["sh", "-c", &format!("mount -t tmpfs tmpfs \"$0\" && {then}")]);
    command.arg(directory).arg(this).arg(ENTRY).env(IS_INSIDE, directory).env("TMPDIR", directory);
    command.status().ok()
}

#[tokio::test]
async fn read_only_file_is_denied_and_intact_once_writable() {
    if let Some(disk) = std::env::var_os(IS_INSIDE) {
        return scenario(Path::new(&disk)).await;
    }
    let directory = directory::Directory::new();
    let is_permitted =
        |flags: &&[&str]| run(flags, directory.path(), "true").is_some_and(|status| status.success());
    let Some(flags) = disk::MOUNTING.into_iter().find(is_permitted) else {
        return disk::leave_out("a read-only disk");
    };
    let ended = run(flags, directory.path(), "exec \"$1\" --exact \"$2\" --nocapture").unwrap();
    assert!(ended.success(), "{ended}");
}

async fn scenario(disk: &Path) {
    let mounted = |how: &str| {
        let status = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(disk).status();
        assert!(status.unwrap().success(), "{how}");
    };
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    broker.sqlite.close().await.unwrap();

    mounted("ro");
    let error = broker.file.open(settings(), &broker.clock).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let text = error.to_string();
    assert!(text.contains(&*broker.file.path().to_string_lossy()), "{text}");
    assert!(text.contains("write access to the file"), "{text}");

    mounted("rw");
    let broker = Broker::on(broker.clock, broker.file, settings()).await;
    for consumer in [&broker.mail, &broker.stock] {
        assert_eq!(seen(consumer).await, ["a"]);
    }
    broker.file.check();
}

const FILE: &str = "DWELL_SQLITE_TEST_NOT_OURS";
const OTHER: &str = "read_only::open_without_write_permission_is_denied_and_leaves_no_files";

/// Opens a file without write permission, in a child process: this test again, copied to a
/// directory that every user may enter.
#[tokio::test]
async fn open_without_write_permission_is_denied_and_leaves_no_files() {
    if let Some(file) = std::env::var_os(FILE) {
        let url = format!("sqlite://{}", file.to_string_lossy());
        let url = dwell_core::TransportUrl::parse(&url).unwrap();
        let error = Sqlite::open(SqliteSettings::from_url(&url).unwrap(), dwell_core::Seams::system("test"))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("write access to the file"), "{error}");
        return;
    }
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    broker.sqlite.close().await.unwrap();
    let (file, directory) = (broker.file.path().to_owned(), broker.file.path().parent().unwrap().to_owned());
    let may = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    may(&directory, 0o777);
    may(&file, 0o444);
    let this = directory.join("test");
    fs::copy(std::env::current_exe().unwrap(), &this).unwrap();
    may(&this, 0o755);
    // Root drops its privileges, because it may write any file.
    let mut command = match fs::metadata(&file).unwrap().uid() {
        0 => {
            let mut nobody = Command::new("setpriv");
            nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&this);
            nobody
        }
        _ => Command::new(&this),
    };
    let ended = command.args(["--exact", OTHER, "--nocapture"]).env(FILE, &file).status().unwrap();
    assert!(ended.success(), "{ended}");
    let mut beside: Vec<_> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    beside.retain(|name| name.to_string_lossy().contains("-wal") || name.to_string_lossy().contains("-shm"));
    assert!(beside.is_empty(), "{beside:?}");
    may(&file, 0o644);
    let broker = Broker::on(broker.clock, broker.file, settings()).await;
    assert_eq!(seen(&broker.mail).await, ["a"]);
}
