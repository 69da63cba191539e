//! The columns of the conformance matrix: a transport with its store each, and the test target that runs the suite on it.

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
    Column { name: "log", package: "dwell-conformance", target: "log" },
    Column { name: "sqlite", package: "dwell-sqlite", target: "conformance" },
    Column { name: "log+sqlite", package: "dwell-sqlite", target: "log" },
];

/// The names a person may give.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    COLUMNS.iter().map(|column| column.name)
}

/// The named columns in the order of the matrix, or all where none is named.
pub(crate) fn named(names: &[String]) -> Vec<Column> {
    let is_named = |column: &&Column| names.is_empty() || names.iter().any(|name| name == column.name);
    COLUMNS.iter().filter(is_named).copied().collect()
}
