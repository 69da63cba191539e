//! Where a setting stands, as it is named in errors.

use std::fmt;

/// In which layer a setting was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    File,
    Environment,
}

/// One step down from a table or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// The steps from the root to one setting: `subscription[0].retry.jitter`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Path(pub(super) Vec<Step>);

impl Path {
    pub(super) fn key(&self, key: &str) -> Self {
        self.step(Step::Key(key.to_owned()))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        self.step(Step::Index(index))
    }

    fn step(&self, step: Step) -> Self {
        Self(self.0.iter().cloned().chain([step]).collect())
    }

    /// As whoever wrote it knows it.
    pub(super) fn named(&self, layer: Layer) -> String {
        match layer {
            Layer::File => format!("`{self}`"),
            Layer::Environment => format!("the environment variable `{}`", self.variable()),
        }
    }

    /// The environment variable that sets it.
    pub(super) fn variable(&self) -> String {
        let keys = self.0.iter().map(|step| match step {
            Step::Key(key) => key.to_uppercase().escape_debug().to_string(),
            Step::Index(index) => index.to_string(),
        });
        format!("DWELL_{}", keys.collect::<Vec<_>>().join("__"))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    write!(f, "{}{}", if position == 0 { "" } else { "." }, shown(key))?;
                }
            }
        }
        Ok(())
    }
}

/// A key as TOML writes it: bare if it can be, else in quotes with everything invisible escaped.
fn shown(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    if bare { key.to_owned() } else { format!("{key:?}") }
}
