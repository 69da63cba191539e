//! Selection of steps and columns by name.

use crate::columns::{self, COLUMNS, Column, FAULTS};

use super::servers;
use super::steps::{self, CONFORMANCE, KILLS};

/// The names given with `--only` and `--skip`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    only: Vec<String>,
    skip: Vec<String>,
}

/// Every name that `--only` and `--skip` accept, without repetition.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let only_killed =
        columns::names_of(FAULTS).filter(|name| columns::names_of(COLUMNS).all(|of| of != *name));
    steps::names().chain(columns::names_of(COLUMNS)).chain(only_killed)
}

/// The columns that belong to a step.
fn columns_of(step: &str) -> &'static [Column] {
    match step {
        CONFORMANCE => COLUMNS,
        KILLS => FAULTS,
        _ => &[],
    }
}

impl Selection {
    pub(crate) fn new(only: &[String], skip: &[String]) -> Self {
        Selection { only: only.to_vec(), skip: skip.to_vec() }
    }

    /// Whether the step runs. It also runs if one of its columns was requested.
    pub(crate) fn has_step(&self, step: &str) -> bool {
        let is_asked = self.only.is_empty()
            || self.asks_for(step)
            || columns::names_of(columns_of(step)).any(|column| self.asks_for(column));
        is_asked && !self.leaves_out(step)
    }

    /// The selected columns of a step, and the others.
    pub(crate) fn columns(&self, step: &str) -> (Vec<Column>, Vec<Column>) {
        columns_of(step).iter().partition(|column| {
            let is_asked = self.only.is_empty() || self.asks_for(step) || self.asks_for(column.name);
            let has_server = servers::of_column(column.name).is_none_or(|server| !self.leaves_out(server));
            is_asked && has_server && !self.leaves_out(column.name)
        })
    }

    /// Whether a selected step or column may use this server.
    pub(crate) fn has_server(&self, server: &str) -> bool {
        let is_on_it = |name: &String| servers::of_column(name).is_none_or(|of| of == server);
        (self.only.is_empty() || self.only.iter().any(is_on_it)) && !self.leaves_out(server)
    }

    fn asks_for(&self, name: &str) -> bool {
        self.only.iter().any(|only| only == name)
    }

    fn leaves_out(&self, name: &str) -> bool {
        self.skip.iter().any(|skip| skip == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(only: &[&str], skip: &[&str]) -> Selection {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Selection::new(&owned(only), &owned(skip))
    }

    fn chosen(selection: &Selection) -> (Vec<&'static str>, Vec<&'static str>) {
        let steps = steps::names().filter(|step| selection.has_step(step)).collect();
        let columns = selection.columns(CONFORMANCE).0.iter().map(|column| column.name).collect();
        (steps, columns)
    }

    #[test]
    fn everything_runs_unless_something_is_named() {
        assert_eq!(
            chosen(&selection(&[], &[])),
            (steps::names().collect(), columns::names_of(COLUMNS).collect())
        );
    }

    #[test]
    fn a_step_can_be_asked_for_or_left_out() {
        assert_eq!(chosen(&selection(&["unit", "doc"], &["doc"])).0, ["unit"]);
        let (steps, columns) = chosen(&selection(&[], &["format"]));
        assert!(!steps.contains(&"format") && steps.contains(&"unit"), "{steps:?}");
        assert_eq!(columns, columns::names_of(COLUMNS).collect::<Vec<_>>());
    }

    #[test]
    fn a_column_brings_the_conformance_step_along() {
        assert_eq!(chosen(&selection(&["log"], &[])), (vec![CONFORMANCE], vec!["log"]));
        let others = columns::names_of(COLUMNS).filter(|column| *column != "log").collect();
        assert_eq!(chosen(&selection(&[CONFORMANCE], &["log"])), (vec![CONFORMANCE], others));
        assert_eq!(
            selection(&[], &["log"]).columns(CONFORMANCE).1,
            columns::named(COLUMNS, &["log".to_owned()])
        );
    }

    #[test]
    fn a_transport_brings_the_kills_along_if_it_has_any() {
        let sqlite = selection(&["sqlite"], &[]);
        assert!(sqlite.has_step(KILLS) && !sqlite.has_step("unit"));
        assert_eq!(sqlite.columns(KILLS).0, [FAULTS[0]]);
        assert!(!selection(&["log"], &[]).has_step(KILLS));
        assert_eq!(selection(&[], &["sqlite"]).columns(KILLS), (FAULTS[1..].to_vec(), vec![FAULTS[0]]));
    }

    #[test]
    fn a_server_that_is_left_out_takes_all_its_columns_along() {
        let without = selection(&[], &["kafka"]);
        assert!(without.has_server("redis") && !without.has_server("kafka"));
        let left_out = without.columns(CONFORMANCE).1;
        assert_eq!(left_out.iter().map(|column| column.name).collect::<Vec<_>>(), ["kafka", "kafka+sqlite"]);
        let one = selection(&["kafka+sqlite"], &[]);
        assert!(one.has_server("kafka") && !one.has_server("redis"));
        assert!(selection(&["unit"], &[]).has_server("redis"));
    }

    #[test]
    fn no_step_has_the_name_of_a_column() {
        let mut all: Vec<_> = names().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
