//! The servers that tests need, so that tests can be left out by the name of a server.

/// The servers, by the names of their transports.
pub(crate) const SERVERS: [&str; 2] = ["redis", "kafka"];

/// Programs that need a server, in packages that do not: package, target, server.
const AMONG_OTHERS: [(&str, &str, &str); 6] = [
    ("dwell", "redis", "redis"),
    ("dwell", "kafka", "kafka"),
    ("dwell", "kafka_page", "kafka"),
    ("dwell-server", "promote", "redis"),
    ("dwell-server", "relay", "kafka"),
    ("dwell-bench", "redis-jobs", "redis"),
];

/// Returns the server that a program of tests or benchmarks requires.
pub(crate) fn of_program(package: &str, target: &str) -> Option<&'static str> {
    let its_own = SERVERS.into_iter().find(|server| package.strip_prefix("dwell-") == Some(server));
    let among_others = AMONG_OTHERS.iter().find(|(of, name, _)| (*of, *name) == (package, target));
    its_own.or(among_others.map(|(.., server)| *server))
}

/// The server that a column runs on.
pub(crate) fn of_column(name: &str) -> Option<&'static str> {
    SERVERS.into_iter().find(|server| name.split(['-', '+']).next() == Some(server))
}

/// Returns the arguments with which a program leaves out the tests that need these servers.
pub(crate) fn without(package: &str, target: &str, servers: &[&'static str]) -> Vec<&'static str> {
    let tells_stories_of_each = package == "dwell" && ["jobs", "jobs_axum"].contains(&target);
    let servers = servers.iter().filter(|_| tells_stories_of_each);
    servers.flat_map(|server| ["--skip", server]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_server_is_known_by_package_target_and_column() {
        assert_eq!(of_program("dwell-redis", "buckets"), Some("redis"));
        assert_eq!(of_program("dwell", "kafka_page"), Some("kafka"));
        assert_eq!(of_program("dwell", "outcomes"), None);
        assert_eq!(
            ["redis-cluster", "kafka+sqlite", "log+sqlite"].map(of_column),
            [Some("redis"), Some("kafka"), None]
        );
        assert_eq!(without("dwell", "jobs", &["redis"]), ["--skip", "redis"]);
        assert!(without("dwell", "outcomes", &["redis"]).is_empty());
    }
}
