//! What to run, by name: steps and columns.

use crate::columns::{self, Column};

use super::steps::{self, CONFORMANCE};

/// The names given with `--only` and `--skip`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    only: Vec<String>,
    skip: Vec<String>,
}

/// Every name that `--only` and `--skip` take.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    steps::names().chain(columns::names())
}

impl Selection {
    pub(crate) fn new(only: &[String], skip: &[String]) -> Self {
        Selection { only: only.to_vec(), skip: skip.to_vec() }
    }

    /// Whether the step runs. The conformance step does so too where one of its columns is asked for.
    pub(crate) fn has_step(&self, step: &str) -> bool {
        let is_asked = self.only.is_empty()
            || self.asks_for(step)
            || step == CONFORMANCE && columns::names().any(|column| self.asks_for(column));
        is_asked && !self.leaves_out(step)
    }

    /// The columns that run, and those left out.
    pub(crate) fn columns(&self) -> (Vec<Column>, Vec<Column>) {
        columns::COLUMNS.iter().partition(|column| {
            let is_asked = self.only.is_empty() || self.asks_for(CONFORMANCE) || self.asks_for(column.name);
            is_asked && !self.leaves_out(column.name)
        })
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
        let columns = selection.columns().0.iter().map(|column| column.name).collect();
        (steps, columns)
    }

    #[test]
    fn everything_runs_unless_something_is_named() {
        assert_eq!(chosen(&selection(&[], &[])), (steps::names().collect(), columns::names().collect()));
    }

    #[test]
    fn a_step_can_be_asked_for_or_left_out() {
        assert_eq!(chosen(&selection(&["unit", "doc"], &["doc"])).0, ["unit"]);
        let (steps, columns) = chosen(&selection(&[], &["format"]));
        assert!(!steps.contains(&"format") && steps.contains(&"unit"), "{steps:?}");
        assert_eq!(columns, columns::names().collect::<Vec<_>>());
    }

    #[test]
    fn a_column_brings_the_conformance_step_along() {
        assert_eq!(chosen(&selection(&["log"], &[])), (vec![CONFORMANCE], vec!["log"]));
        let others = columns::names().filter(|name| *name != "log").collect();
        assert_eq!(chosen(&selection(&[CONFORMANCE], &["log"])), (vec![CONFORMANCE], others));
        assert_eq!(selection(&[], &["log"]).columns().1, [columns::COLUMNS[1]]);
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
