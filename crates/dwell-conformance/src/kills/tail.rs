//! Reads journals while they grow. A line that a kill has truncated is ignored.

use super::{journal::Line, worker::Name};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

/// The journals of a directory, up to the positions that were read.
pub(super) struct Tail {
    directory: PathBuf,
    read: BTreeMap<Name, u64>,
}

impl Tail {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), read: BTreeMap::new() }
    }

    /// Returns the new lines of the selected journals.
    pub(super) fn read(
        &mut self,
        is_wanted: impl Fn(&Name) -> bool,
        mut see: impl FnMut(&Name, Line),
    ) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let Some(name) = Name::of_journal(&path).filter(|name| is_wanted(name)) else { continue };
            let read = self.read.entry(name.clone()).or_default();
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(*read))?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            *read += whole as u64;
            for line in text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                see(&name, serde_json::from_slice(line)?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kills::{
        journal::{Entry, Journal},
        worker::Role,
    };
    use dwell_core::VirtualClock;
    use std::{io::Write as _, sync::Arc};

    #[test]
    fn a_journal_is_read_incrementally_and_a_truncated_line_is_ignored() {
        let directory = std::env::temp_dir().join(format!("dwell-tail-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let name = Name { role: Role::Canceller, slot: 0, incarnation: 1 };
        let path = name.journal(&directory);
        let journal = Journal::create(&path, Arc::new(VirtualClock::new())).unwrap();
        let asked = |id: &str| Entry::CancelAsked { id: id.into() };
        let mut tail = Tail::new(&directory);
        let mut read = || {
            let mut seen = vec![];
            tail.read(|_| true, |of, Line(_, entry)| seen.push((of.clone(), entry))).unwrap();
            seen
        };
        journal.write([asked("a"), asked("b")]);
        assert_eq!(read(), [(name.clone(), asked("a")), (name.clone(), asked("b"))]);
        journal.write([asked("c")]);
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"[5,{\"what\":\"can").unwrap();
        assert_eq!(read(), [(name, asked("c"))]);
        assert_eq!(read(), []);
        fs::remove_dir_all(&directory).unwrap();
    }
}
