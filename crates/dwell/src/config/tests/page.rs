//! The page of the documentation says what is so.

use super::{super::*, read};
use crate::config::unknown::value_of;
use dwell_engine::SubscriptionSettings;

const PAGE: &str = include_str!("../../../../../docs/configuration.md");

fn examples() -> Vec<&'static str> {
    let blocks = PAGE.split("```toml\n").skip(1);
    blocks.map(|block| block.split_once("```").expect("the block should end").0).collect()
}

#[test]
fn the_first_example_is_the_defaults_all_of_them() {
    let first = examples()[0];
    assert_eq!(read(first), Config::default());
    let written: toml::Table = toml::from_str(first).unwrap();
    let defaults: toml::Table = toml::from_str(&Config::default().to_string()).unwrap();
    assert_eq!(written, defaults);
}

#[test]
fn every_example_is_valid() {
    let examples = examples();
    assert!(examples.len() > 1);
    for example in examples {
        read(example).validate().unwrap();
    }
}

#[test]
fn the_table_lists_every_setting_of_a_subscription_with_its_default() {
    let rows: Vec<Vec<&str>> = PAGE
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let settings = value_of(&SubscriptionSettings::default());
    let mut expected: Vec<(String, String)> = Vec::new();
    for (key, value) in settings.as_object().unwrap() {
        let default = match (key.as_str(), value) {
            ("topic" | "name", _) => continue,
            ("retry", Value::Object(fields)) => {
                let fields =
                    fields.keys().map(|field| (format!("`retry.{field}`"), "as `[retry]`".to_owned()));
                expected.extend(fields);
                continue;
            }
            ("quarantine_after", Value::Null) => "10, where it can be counted".to_owned(),
            (_, Value::Null | Value::Object(_)) => "none".to_owned(),
            _ => format!("`{value}`"),
        };
        expected.push((format!("`{key}`"), default));
    }
    for (key, default) in &expected {
        let row =
            rows.iter().find(|row| row[1] == key).unwrap_or_else(|| panic!("{key} should be in the table"));
        assert_eq!(row[2], default, "{key}");
    }
    let listed = rows.iter().filter(|row| row.len() == 5).count();
    assert_eq!(listed, expected.len(), "the table should list nothing else");
}

#[test]
fn every_variable_on_the_page_sets_something() {
    let variables = PAGE
        .split(|c: char| !c.is_ascii_uppercase() && c != '_')
        .filter(|word| word.starts_with("DWELL_") && word.contains("__"))
        .filter(|word| *word != "DWELL_SECTION__KEY");
    let mut count = 0;
    for variable in variables {
        let result = Config::default().with_env([(variable.to_owned(), "0".to_owned())]);
        if let Err(error) = result {
            assert!(!error.to_string().contains("sets nothing"), "{error}");
        }
        count += 1;
    }
    assert!(count > 0);
}
