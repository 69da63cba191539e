//! The columns of the conformance matrix: transports with their stores, and the test targets that
//! run the suite or kill workers on them.

/// One column. Its test target takes `--json` and then prints one result per line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    pub(crate) target: &'static str,
}

/// All columns, in the order of the matrix.
pub(crate) const COLUMNS: &[Column] = &[
    Column { name: "memory", package: "dwell-conformance", target: "memory" },
    Column { name: "memory+memory", package: "dwell-conformance", target: "memory_memory" },
    Column { name: "memory+memory-native", package: "dwell-conformance", target: "memory_native" },
    Column { name: "log", package: "dwell-conformance", target: "log" },
    Column { name: "sqlite", package: "dwell-sqlite", target: "conformance" },
    Column { name: "sqlite+sqlite", package: "dwell-sqlite", target: "sqlite_sqlite" },
    Column { name: "log+sqlite", package: "dwell-sqlite", target: "log" },
    Column { name: "redis", package: "dwell-redis", target: "conformance" },
    Column { name: "redis+sqlite", package: "dwell-redis", target: "redis_sqlite" },
    Column { name: "redis-cluster", package: "dwell-redis", target: "cluster" },
    Column { name: "kafka", package: "dwell-kafka", target: "conformance" },
    Column { name: "kafka+sqlite", package: "dwell-kafka", target: "sqlite" },
];

/// The transports on which workers are killed. Their test targets also take `--kills N` and `--seed
/// S`.
pub(crate) const FAULTS: &[Column] = &[
    Column { name: "sqlite", package: "dwell-sqlite", target: "faults" },
    Column { name: "redis", package: "dwell-redis", target: "faults" },
    Column { name: "redis", package: "dwell-redis", target: "promoters" },
    Column { name: "kafka", package: "dwell-kafka", target: "faults" },
    Column { name: "kafka", package: "dwell-kafka", target: "transactions" },
];

/// The transports whose broker is suspended under load. Their test targets take `--hangs=N` and
/// `--seed=S`.
pub(crate) const HANGS: &[Column] = &[Column { name: "kafka", package: "dwell-kafka", target: "hangs" }];

/// The names of the columns. One name may denote several consecutive columns.
pub(crate) fn names_of(columns: &'static [Column]) -> impl Iterator<Item = &'static str> {
    let is_first = |index: usize| index == 0 || columns[index - 1].name != columns[index].name;
    columns.iter().enumerate().filter(move |(index, _)| is_first(*index)).map(|(_, column)| column.name)
}

/// The named columns in their order, or all columns if none is named.
pub(crate) fn named(columns: &[Column], names: &[String]) -> Vec<Column> {
    let is_named = |column: &&Column| names.is_empty() || names.iter().any(|name| name == column.name);
    columns.iter().filter(is_named).copied().collect()
}
