//! `docs/api.md` lists what the crate exports: all of it, and nothing else.
//!
//! The page has one block of text. There, `# dwell::jobs: …` begins a module, and `Name: member member` is an item. Several
//! stand in one line with `;` between them, or with `,` if they have the same members; a line that begins with spaces goes on
//! with the members of the one before; and what follows `//` is a remark. Sources are read as rustfmt leaves them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

type Names = BTreeSet<String>;

/// Members that macros make, of which the sources have no line of their own.
const GENERATED: [(&str, &str, &str); 8] = [
    ("dwell::steps", "DeferOnError", "number"),
    ("dwell::steps", "CircuitBreaker", "number"),
    ("dwell::steps", "Inbox", "number"),
    ("dwell::steps", "RateLimit", "number"),
    ("dwell::steps", "Retry", "number"),
    ("dwell::steps", "RetryInline", "number"),
    ("dwell::raw", "ContentType", "constant"),
    ("dwell::raw", "TypeName", "constant"),
];

/// The longest line, and the most lines: two screens.
const WIDTH: usize = 110;
const HEIGHT: usize = 115;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates are in a folder").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text of all sources below a folder.
fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let texts = entries.map(|entry| entry.unwrap().path()).map(|path| match path.is_dir() {
        true => sources(&path),
        false => read(&path),
    });
    texts.collect()
}

/// What the page says: the members of each item, by module and name.
fn page() -> BTreeMap<(String, String), Names> {
    let text = read(&crates().join("../docs/api.md"));
    let block = text.split("```").nth(1).expect("the page has a block of text");
    let mut page = BTreeMap::new();
    let (mut module, mut items) = ("", vec![]);
    for line in block.lines().skip(1) {
        let line = line.split("//").next().unwrap_or_default();
        if let Some(heading) = line.strip_prefix("# ") {
            module = heading.rsplit_once(": ").map_or(heading, |(path, _)| path);
            continue;
        }
        for part in line.split(';').filter(|part| !part.trim().is_empty()) {
            let (names, members) = match part.split_once(':') {
                Some((names, members)) => (names, members),
                None if part.starts_with("    ") && part == line => ("", part),
                None => (part, ""),
            };
            if !names.is_empty() {
                let bare = |name: &str| name.trim().trim_matches(['#', '[', ']']).to_owned();
                items = names.split(',').map(bare).filter(|name| !name.is_empty()).collect();
            }
            for item in &items {
                let known: &mut Names = page.entry((module.to_owned(), item.clone())).or_default();
                known.extend(members.split_whitespace().map(str::to_owned));
            }
        }
    }
    page
}

/// The names in `pub use a::{B, C as _, d};`, each with the path before it.
fn used(text: &str, indent: &str) -> Vec<(String, String)> {
    let start = format!("\n{indent}pub use ");
    let uses = text.split(&start).skip(1).map(|rest| rest.split(';').next().unwrap_or_default());
    let one = |one: &str| {
        let (path, names) =
            one.rsplit_once("::{").or_else(|| one.rsplit_once("::")).expect("a path and a name");
        let names = names.trim_end_matches('}').split(',').map(str::trim).filter(|name| !name.is_empty());
        let bare = |name: &str| name.strip_suffix(" as _").unwrap_or(name).to_owned();
        names.map(|name| (path.to_owned(), bare(name))).collect::<Vec<_>>()
    };
    uses.flat_map(one).collect()
}

/// What the crate exports, and where the source of each is.
fn exports() -> BTreeMap<(String, String), PathBuf> {
    let source = crates().join("dwell/src");
    let root = read(&source.join("lib.rs"));
    let folder = |path: &str| match path.split("::").next() {
        Some("dwell_core") => crates().join("dwell-core/src"),
        Some("dwell_engine") => crates().join("dwell-engine/src"),
        Some("dwell_macros") => crates().join("dwell-macros/src"),
        Some("serde") => PathBuf::new(),
        _ => source.clone(),
    };
    let mut exports = BTreeMap::new();
    let mut export = |module: &str, name: &str, from: PathBuf| {
        // A trait and its derive have one name; the derive has no members.
        let is_derive = from.ends_with("dwell-macros/src");
        let place = exports.entry((module.to_owned(), name.to_owned())).or_insert(from.clone());
        if !is_derive {
            *place = from;
        }
    };
    for (path, name) in used(&root, "").into_iter().filter(|(_, name)| name != "steps") {
        export("dwell", &name, folder(&path));
    }
    let mut files = vec![("dwell::steps".to_owned(), source.join("pipeline/steps"))];
    for rest in root.split("\npub mod ").skip(1) {
        let name = rest.split([' ', ';']).next().expect("a module has a name");
        let module = format!("dwell::{name}");
        if rest[name.len()..].starts_with(';') {
            files.push((module, source.join(name)));
            continue;
        }
        for (path, name) in used(rest.split("\n}").next().expect("a module ends"), "    ") {
            export(&module, &name, folder(&path));
        }
    }
    for (module, folder) in files {
        let text = format!("\n{}", read(&folder.join("mod.rs")));
        for (_, name) in used(&text, "") {
            export(&module, &name, folder.clone());
        }
        for kind in ["struct", "enum", "trait", "fn", "async fn"] {
            for rest in text.split(&format!("\npub {kind} ")).skip(1) {
                export(
                    &module,
                    rest.split(|c: char| !is_word(c)).next().expect("it has a name"),
                    folder.clone(),
                );
            }
        }
    }
    exports
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Methods, variants and members of traits of a type, which the page must have; and its public fields, which it may have.
fn members(text: &str, name: &str) -> (Names, Names) {
    let (mut must, mut may) = (Names::new(), Names::new());
    // What the line that opens a block says this block is.
    let (mut block, mut is_setters, mut is_hidden) = ("", false, false);
    for line in text.lines() {
        let first = |text: &str| text.split(|c: char| !is_word(c)).next().unwrap_or_default().to_owned();
        if !line.starts_with([' ', '}', ')', '/', '#']) && !line.is_empty() {
            block = ["impl", "pub enum", "pub struct", "pub trait"]
                .into_iter()
                .find(|kind| line.starts_with(kind) && opened(line, kind) == name)
                .unwrap_or_default();
        }
        let Some(inner) = line.strip_prefix("    ") else { continue };
        is_setters = (is_setters || inner == "setters! {") && inner != "}";
        let plain = ["const fn ", "async fn ", "fn ", "const "];
        let declared = |text: &str| plain.into_iter().find_map(|word| text.strip_prefix(word)).map(first);
        match block {
            "impl" if is_setters => {
                let setter = inner.strip_prefix("    ").and_then(|setter| setter.split_once(": "));
                must.extend(
                    setter.filter(|(name, _)| name.chars().all(is_word)).map(|(name, _)| name.to_owned()),
                );
            }
            "impl" => must.extend(inner.strip_prefix("pub ").and_then(declared)),
            "pub enum" if inner.starts_with(char::is_uppercase) => drop(must.insert(first(inner))),
            "pub struct" => may.extend(inner.strip_prefix("pub ").map(first)),
            "pub trait" if !is_hidden => {
                must.extend(declared(inner).or_else(|| inner.strip_prefix("type ").map(first)));
            }
            _ => {}
        }
        is_hidden = inner == "#[doc(hidden)]";
    }
    (must, may)
}

/// Whom a block is about: `X` in `impl<T> X<T> {`, `pub enum X {`; nobody for the implementation of a trait.
fn opened<'a>(line: &'a str, kind: &str) -> &'a str {
    if kind == "impl" && line.contains(" for ") {
        return "";
    }
    let rest = line[kind.len()..].trim_start();
    let rest = match (kind, rest.starts_with('<')) {
        ("impl", true) => rest.split_once("> ").map_or("", |(_, rest)| rest),
        _ => rest,
    };
    rest.split(|c: char| !is_word(c)).next().unwrap_or_default()
}

#[test]
fn the_page_names_all_that_is_exported_and_nothing_else() {
    let on_page: BTreeSet<_> = page().into_keys().collect();
    let exported: BTreeSet<_> = exports().into_keys().collect();
    assert!(exported.len() > 100, "the sources are read: {exported:?}");
    let missing: Vec<_> = exported.difference(&on_page).collect();
    let gone: Vec<_> = on_page.difference(&exported).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "docs/api.md lacks {missing:?}, and names what is not exported: {gone:?}"
    );
}

#[test]
fn the_page_names_all_members_and_no_others() {
    let (exports, page) = (exports(), page());
    let mut texts = BTreeMap::new();
    for from in exports.values() {
        let is_foreign = from.as_os_str().is_empty();
        texts.entry(from).or_insert_with(|| if is_foreign { String::new() } else { sources(from) });
    }
    for ((module, name), on_page) in &page {
        let Some(from) = exports.get(&(module.clone(), name.clone())) else { continue };
        let (must, may) = members(&texts[from], name);
        let is_generated = |member: &String| GENERATED.contains(&(&**module, &**name, &**member));
        let others: Vec<_> = on_page
            .iter()
            .filter(|one| !must.contains(*one) && !may.contains(*one) && !is_generated(one))
            .collect();
        assert!(others.is_empty(), "docs/api.md: `{module}::{name}` has no {others:?}");
        let missing: Vec<_> = must.difference(on_page).collect();
        // Some stand in two modules, and their members at one of them.
        let is_elsewhere =
            on_page.is_empty() && page.iter().any(|((_, other), all)| other == name && !all.is_empty());
        assert!(missing.is_empty() || is_elsewhere, "docs/api.md: `{module}::{name}` lacks {missing:?}");
    }
}

#[test]
fn the_page_fits_on_two_screens() {
    let text = read(&crates().join("../docs/api.md"));
    assert!(text.lines().count() <= HEIGHT, "docs/api.md has {} lines", text.lines().count());
    let wide: Vec<_> = text.lines().filter(|line| line.chars().count() > WIDTH).collect();
    assert!(wide.is_empty(), "docs/api.md has lines of more than {WIDTH} columns: {wide:#?}");
}

#[test]
fn every_function_and_type_that_is_documented_has_an_example_of_its_own() {
    // What the compiler tells kinds of handlers apart by: nobody writes their names.
    let unnamed = ["pub struct Async;", "pub struct Attributed;", "pub struct Blocking;"];
    let begins =
        ["pub fn ", "pub async fn ", "pub const fn ", "pub struct ", "pub enum ", "pub trait ", "pub type "];
    let text = sources(&crates().join("dwell/src"));
    let (mut docs, mut without) = (String::new(), vec![]);
    for line in text.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            docs += doc;
        } else if begins.iter().any(|begin| line.starts_with(begin)) && !unnamed.contains(&line) {
            let is_documented = !docs.is_empty() && !docs.contains("```");
            without.extend(is_documented.then_some(line));
            docs.clear();
        } else if ["#[", ")]", "message = ", "note = ", "label = "].iter().all(|part| !line.starts_with(part))
        {
            docs.clear();
        }
    }
    assert!(without.is_empty(), "no example: {without:#?}");
}
