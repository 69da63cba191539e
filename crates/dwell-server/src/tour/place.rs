//! The broker of the tour.

use dwell_core::{Error, ErrorKind, Result, Seams, Transport, TransportUrl};
use dwell_engine::memory;
use std::{env, fmt, fs, path::PathBuf, process, sync::Arc};

/// A given URL, or a temporary file.
pub(crate) enum Place {
    Given(String),
    /// A SQLite file in this directory, which is removed at the end.
    Own(PathBuf),
}

impl Place {
    pub(crate) fn of(url: Option<String>) -> Self {
        let own = || env::temp_dir().join(format!("dwell-tour-{}", process::id()));
        url.map_or_else(|| Self::Own(own()), Self::Given)
    }

    pub(crate) fn scheme(&self) -> &str {
        match self {
            Self::Given(url) => url.split_once("://").map_or(url, |(scheme, _)| scheme),
            Self::Own(_) => "sqlite",
        }
    }

    pub(crate) fn connect(&self, seams: &Seams) -> Result<Arc<dyn Transport>> {
        if let Self::Own(directory) = self {
            fs::create_dir_all(directory).map_err(|error| {
                let text = format!(
                    "the directory `{}` cannot be created: choose another broker with `--url`, such as memory://",
                    directory.display()
                );
                Error::new(ErrorKind::Denied, text).with_source(error)
            })?;
        }
        let url = TransportUrl::parse(&self.to_string())?;
        match url.scheme() {
            "memory" => Ok(Arc::new(memory::connect(&url, seams.clone())?)),
            "sqlite" => Ok(Arc::new(dwell_sqlite::connect(&url, seams.clone())?)),
            other => {
                let text = format!("the tour supports memory:// and sqlite://, not `{other}://`");
                Err(Error::new(ErrorKind::Config, text))
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(url) => f.write_str(url),
            Self::Own(directory) => write!(f, "sqlite://{}", directory.join("shop.db").display()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Own(directory) = self {
            let _ = fs::remove_dir_all(directory);
        }
    }
}
