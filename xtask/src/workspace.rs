//! The packages of the repository, as cargo describes them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::Program;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    // `cargo run` sets it. Otherwise the directory in which this package was built is used.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map(Path::to_path_buf).unwrap_or(manifest)
}

/// One package: a member of the workspace, or one of its dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) directory: PathBuf,
    pub(crate) licence: Option<String>,
    /// Registry or repository of the package; `None` for a directory.
    pub(crate) source: Option<String>,
    pub(crate) targets: Vec<Target>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    kinds: Vec<String>,
    name: String,
}

impl Target {
    fn is(&self, kind: &str) -> bool {
        self.kinds.iter().any(|candidate| candidate == kind)
    }
}

/// The output of `cargo metadata`.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    pub(crate) target_directory: PathBuf,
    pub(crate) packages: Vec<Package>,
}

impl Workspace {
    /// Reads the members without their dependencies.
    pub(crate) fn members() -> Result<Self, String> {
        Workspace::ask(&["metadata", "--format-version", "1", "--no-deps"])
    }

    /// Reads the members and their dependencies on all platforms.
    pub(crate) fn with_dependencies() -> Result<Self, String> {
        Workspace::ask(&["metadata", "--format-version", "1"])
    }

    fn ask(arguments: &[&str]) -> Result<Self, String> {
        let output = Program::cargo(arguments).machine_readable().run(&mut |_| ())?;
        if !output.ending.is_success() {
            return Err(output.problem());
        }
        Workspace::parse(&output.stdout.concat())
    }

    fn parse(metadata: &str) -> Result<Self, String> {
        let metadata: Value = serde_json::from_str(metadata)
            .map_err(|error| format!("cannot read cargo's metadata: {error}"))?;
        let read = || {
            Some(Workspace {
                target_directory: PathBuf::from(metadata["target_directory"].as_str()?),
                packages: metadata["packages"].as_array()?.iter().map(package).collect::<Option<_>>()?,
            })
        };
        read().ok_or_else(|| {
            "cannot read cargo's metadata: a field is missing; is this cargo older than the repository asks for?"
                .to_owned()
        })
    }

    pub(crate) fn package(&self, id: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.id == id)
    }

    /// Returns an error that names the package or the target if it does not exist.
    pub(crate) fn require(&self, package: &str, kind: &str, target: &str) -> Result<(), String> {
        let Some(found) = self.named(package) else {
            return Err(format!(
                "the workspace has no package `{package}`, whose {kind} `{target}` belongs here"
            ));
        };
        match found.targets.iter().any(|candidate| candidate.name == target && candidate.is(kind)) {
            true => Ok(()),
            false => Err(format!(
                "package `{package}` has no {kind} target `{target}`; declare it in {}",
                found.directory.join("Cargo.toml").display()
            )),
        }
    }

    /// The names of all targets of one kind, in the order of the manifest. An empty list is an
    /// error.
    pub(crate) fn targets(&self, package: &str, kind: &str) -> Result<Vec<String>, String> {
        let found = self.named(package).ok_or_else(|| format!("the workspace has no package `{package}`"))?;
        let of_kind = found.targets.iter().filter(|target| target.is(kind));
        let names: Vec<_> = of_kind.map(|target| target.name.clone()).collect();
        if names.is_empty() {
            return Err(format!("package `{package}` has no {kind} targets"));
        }
        Ok(names)
    }

    fn named(&self, package: &str) -> Option<&Package> {
        self.packages.iter().find(|candidate| candidate.name == package)
    }
}

fn package(value: &Value) -> Option<Package> {
    let text = |field: &str| value[field].as_str().map(str::to_owned);
    Some(Package {
        id: text("id")?,
        name: text("name")?,
        version: text("version")?,
        directory: Path::new(value["manifest_path"].as_str()?).parent()?.to_path_buf(),
        licence: text("license"),
        source: text("source"),
        targets: value["targets"].as_array()?.iter().map(target).collect::<Option<_>>()?,
    })
}

fn target(value: &Value) -> Option<Target> {
    let kinds = value["kind"].as_array()?.iter().map(|kind| kind.as_str().map(str::to_owned));
    Some(Target { kinds: kinds.collect::<Option<_>>()?, name: value["name"].as_str()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{
        "target_directory": "/repository/target",
        "packages": [{
            "id": "path+file:///repository/crates/one#0.1.0", "name": "one", "version": "0.1.0",
            "manifest_path": "/repository/crates/one/Cargo.toml", "license": "MIT", "source": null,
            "targets": [{"kind": ["lib"], "name": "one"}, {"kind": ["test"], "name": "memory"}]
        }]
    }"#;

    #[test]
    fn packages_and_their_targets_are_read() {
        let workspace = Workspace::parse(METADATA).unwrap();
        assert_eq!(workspace.target_directory, Path::new("/repository/target"));
        let one = workspace.package("path+file:///repository/crates/one#0.1.0").unwrap();
        assert_eq!((one.name.as_str(), one.licence.as_deref(), &one.source), ("one", Some("MIT"), &None));
        assert_eq!(one.directory, Path::new("/repository/crates/one"));
    }

    #[test]
    fn a_missing_package_or_target_is_named() {
        let workspace = Workspace::parse(METADATA).unwrap();
        assert_eq!(workspace.require("one", "test", "memory"), Ok(()));
        let problem = workspace.require("one", "bench", "memory").unwrap_err();
        assert!(problem.starts_with("package `one` has no bench target `memory`"), "{problem}");
        let problem = workspace.require("two", "bin", "tour").unwrap_err();
        assert!(problem.starts_with("the workspace has no package `two`"), "{problem}");
    }

    #[test]
    fn targets_are_found_by_their_kind() {
        let workspace = Workspace::parse(METADATA).unwrap();
        assert_eq!(workspace.targets("one", "test"), Ok(vec!["memory".to_owned()]));
        let problem = workspace.targets("one", "example").unwrap_err();
        assert_eq!(problem, "package `one` has no example targets");
        assert_eq!(workspace.targets("two", "example").unwrap_err(), "the workspace has no package `two`");
    }

    #[test]
    fn metadata_without_the_needed_fields_is_refused() {
        assert!(Workspace::parse("{}").is_err());
        assert!(Workspace::parse("cargo says hello").is_err());
    }
}
