//! The files of the repository.

use std::path::{Path, PathBuf};

/// All files below the root, relative to it and sorted, without the directories of git and cargo.
pub(crate) fn all(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        let fail = |error| format!("cannot list {}: {error}", directory.display());
        for entry in std::fs::read_dir(&directory).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let path = entry.path();
            let kind = entry.file_type().map_err(fail)?;
            if kind.is_dir() && entry.file_name() != ".git" && !path.join("CACHEDIR.TAG").exists() {
                waiting.push(path);
            } else if kind.is_file() && entry.file_name() != ".git" {
                // Every path is below the root.
                found.extend(path.strip_prefix(root).map(Path::to_path_buf));
            }
        }
    }
    found.sort();
    Ok(found)
}
