use super::*;
use dwell_core::VirtualClock;
use std::io;

const REFUSED: &str = "one:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: Connection refused";

/// Returns the lines that `act` logs above `debug`.
fn logged(act: impl FnOnce()) -> Vec<String> {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, said: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend(said);
            Ok(said.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let log = Log::default();
    let written = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone()).finish();
    tracing::subscriber::with_default(subscriber, act);
    let text = String::from_utf8(lock(&written.0).clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn transport() -> KafkaError {
    KafkaError::Global(Code::BrokerTransportFailure)
}

fn explained(reason: &str) -> String {
    let trouble = Trouble::new(Arc::new(VirtualClock::new()));
    trouble.error(transport(), reason);
    trouble.explain("connect to one:9092", Error::new(ErrorKind::Timeout, "time is up")).to_string()
}

#[tokio::test]
async fn a_repeated_error_is_logged_once_per_interval() {
    let clock = VirtualClock::new();
    let trouble = Trouble::new(Arc::new(clock.clone()));
    let hear = || {
        for millis in 0..100 {
            let reason = format!("{REFUSED} (after {millis}ms in state CONNECT)");
            trouble.log(Level::Error, "FAIL", &format!("[thrd:one:9092/bootstrap]: {reason}"));
            trouble.error(transport(), &reason);
            trouble.error(KafkaError::Global(Code::AllBrokersDown), "1/1 brokers are down");
        }
    };
    let said = logged(hear);
    assert!(said.len() == 1 && said[0].contains(REFUSED), "{said:#?}");
    clock.advance(QUIET - Duration::from_millis(1)).await;
    assert_eq!(logged(hear), Vec::<String>::new());
    clock.advance(Duration::from_millis(1)).await;
    assert_eq!(logged(hear).len(), 1);
    let another = logged(|| trouble.error(transport(), "two:9092/bootstrap: Disconnected"));
    assert_eq!(another.len(), 1, "another error is logged at once");
}

#[test]
fn harmless_reports_are_not_logged() {
    let trouble = Trouble::new(Arc::new(VirtualClock::new()));
    let said = logged(|| {
        trouble.error(KafkaError::Global(Code::PartitionEOF), "");
        let load =
            "Failed to acquire idempotence PID from broker one:9092/1: Broker: Coordinator load in progress";
        trouble.log(Level::Warning, "GETPID", &format!("[thrd:main]: {load}: retrying"));
    });
    assert_eq!(said, Vec::<String>::new());
    let said = logged(|| trouble.log(Level::Warning, "REQTMOUT", "Timed out 1 in-flight request"));
    assert_eq!(said.len(), 1);
    let error = trouble.explain("connect", Error::new(ErrorKind::Timeout, "time is up"));
    assert_eq!(error.to_string(), "time is up", "the log line is not the reason of the error");
}

#[test]
fn a_tls_mismatch_in_either_direction_is_reported_as_such() {
    let said = explained("ssl://one:9092/bootstrap: Disconnected: SSL connection closed by peer (after 1ms)");
    assert!(said.ends_with("(check `tls`: the broker may not speak TLS at this port)"), "{said}");
    let said = explained(
        "one:9093/bootstrap: Disconnected: requesting ApiVersion: might be caused by incorrect security.protocol \
         configuration (connecting to a SSL listener?) or broker version is < 0.10",
    );
    assert!(said.ends_with("(check `tls`: the broker may require TLS at this port)"), "{said}");
    assert!(explained(REFUSED).ends_with("(check the address, and that a broker runs there)"));
}
