//! No crate has a loop of more than three files that import each other, but for those which `docs/architecture.md` names
//! with a reason.
//!
//! A file imports another one of its crate by `use`, or by a path in its code. What is there in tests alone does not count,
//! nor do the files of binaries. A file that only declares and re-exports modules is no part of a loop: who imports from it
//! imports from the file where the item is defined.

mod rust_source;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use rust_source::tokens;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Most files of a loop that needs no reason.
const MOST: usize = 3;
/// Begins the part of `docs/architecture.md` that names loops.
const HEADING: &str = "\n## Loops that stay\n";

/// A module's path within its crate, or an item's: `["queue", "pair"]`. The crate's root is empty.
type ItemPath = Vec<String>;

/// Where the bracket that opens at `open` is closed.
fn closing(tokens: &[&str], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len() - 1
}

/// Where the item that begins at `begin` ends: behind its semicolon or block, or before what closes the block around it.
fn end_of_item(tokens: &[&str], begin: usize) -> usize {
    let mut at = begin;
    while let Some(token) = tokens.get(at) {
        at = match *token {
            ";" => return at + 1,
            "{" => {
                let end = closing(tokens, at) + 1;
                return end + usize::from(tokens.get(end) == Some(&";"));
            }
            "(" | "[" => closing(tokens, at) + 1,
            ")" | "]" | "}" => return at,
            _ => at + 1,
        };
    }
    at
}

/// The code of a file without attributes and what is there in tests alone, and the names of modules of their own files that are
/// there in tests alone.
fn without_tests<'a>(tokens: &[&'a str]) -> (Vec<&'a str>, Vec<String>) {
    let mut code = Vec::new();
    let mut test_modules = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let open = match tokens[at..] {
            ["#", "[", ..] => at + 1,
            ["#", "!", "[", ..] => at + 2,
            _ => {
                code.push(tokens[at]);
                at += 1;
                continue;
            }
        };
        let is_test =
            matches!(tokens[open + 1..], ["cfg", "(", "test", ")", ..] | ["cfg", "(", "all", "(", "test", ..]);
        at = closing(tokens, open) + 1;
        if is_test {
            while tokens[at..].starts_with(&["#", "["]) {
                at = closing(tokens, at + 1) + 1;
            }
            let end = end_of_item(tokens, at);
            if let [.., "mod", name, ";"] = tokens[at..end] {
                test_modules.push(name.to_owned());
            }
            at = end;
        }
    }
    (code, test_modules)
}

/// One name that a `use` brings in: what it is called here, `*` for all of a module, and its path.
#[derive(Debug, PartialEq)]
struct Imported {
    name: String,
    path: ItemPath,
    is_public: bool,
}

/// What a tree of a `use` brings in: from `tokens`, all paths begin with `before`.
fn tree(tokens: &[&str], before: &[String], is_public: bool, imported: &mut Vec<Imported>) {
    let mut path = before.to_vec();
    let mut name = None;
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            "{" => {
                let end = closing(tokens, at);
                let mut begin = at + 1;
                for comma in at + 1..=end {
                    let mut depth = 0;
                    let inner = &tokens[begin..comma];
                    inner.iter().for_each(|text| depth += i32::from(*text == "{") - i32::from(*text == "}"));
                    if depth == 0 && (comma == end || tokens[comma] == ",") {
                        if !inner.is_empty() {
                            tree(inner, &path, is_public, imported);
                        }
                        begin = comma + 1;
                    }
                }
                return;
            }
            "as" => {
                name = tokens.get(at + 1).map(|text| (*text).to_owned());
                break;
            }
            "*" => name = Some("*".to_owned()),
            "::" => {}
            // `a::{self}` is `a`.
            "self" if !before.is_empty() => {}
            part => path.push(part.to_owned()),
        }
        at += 1;
    }
    if let Some(last) = path.last() {
        imported.push(Imported { name: name.unwrap_or_else(|| last.clone()), path, is_public });
    }
}

/// A file's code, understood. Paths are the crate's, from its root.
#[derive(Debug, Default)]
struct File {
    uses: Vec<Imported>,
    /// In the code, apart from `use`.
    paths: Vec<ItemPath>,
    /// What the code defines.
    defined: BTreeSet<String>,
    /// Whether it only declares and re-exports modules.
    is_index: bool,
}

impl File {
    /// The code of the file of `module`. `is_file` says whether a module has a file.
    fn of(code: &[&str], module: &[String], is_file: impl Fn(&[String]) -> bool) -> Self {
        let mut file = Self { is_index: true, ..Self::default() };
        // Modules that are written out within the file, each with the depth of its block.
        let mut inline: Vec<(String, usize)> = Vec::new();
        let mut depth = 0;
        let mut at = 0;
        let mut is_public = false;
        while at < code.len() {
            let here: ItemPath = module.iter().chain(inline.iter().map(|(name, _)| name)).cloned().collect();
            let is_first = at == 0 || code[at - 1] != "::";
            let was_public = std::mem::take(&mut is_public);
            at = match code[at..] {
                ["pub", "(", ..] => {
                    is_public = true;
                    closing(code, at + 1) + 1
                }
                ["pub", ..] => {
                    is_public = true;
                    at + 1
                }
                ["mod", _, ";", ..] => at + 3,
                ["mod", name, "{", ..] => {
                    file.is_index = false;
                    depth += 1;
                    inline.push((name.to_owned(), depth));
                    at + 3
                }
                // `use<>` says what a type captures.
                ["use", next, ..] if next != "<" => {
                    let end = (at..code.len()).find(|&index| code[index] == ";").unwrap_or(code.len());
                    let mut imported = Vec::new();
                    // What begins with `::` is of another crate.
                    if next != "::" {
                        tree(&code[at + 1..end], &[], was_public, &mut imported);
                    }
                    let own = |imported: Imported| {
                        Some(Imported { path: absolute(&imported.path, &here, &is_file)?, ..imported })
                    };
                    file.uses.extend(imported.into_iter().filter_map(own));
                    end + 1
                }
                [first, "::", ..] if is_first => {
                    file.is_index = false;
                    let end =
                        (at..code.len()).step_by(2).find(|&index| code.get(index + 1) != Some(&"::")).unwrap_or(at);
                    let parts = code[at..=end].iter().step_by(2).map(|text| (*text).to_owned());
                    let path: ItemPath =
                        parts.filter(|part| part.starts_with(|c: char| c.is_alphabetic() || c == '_')).collect();
                    if path.first().is_some_and(|path| path == first) {
                        file.paths.extend(absolute(&path, &here, &is_file));
                    }
                    at + 1
                }
                ["struct" | "enum" | "union" | "trait" | "fn" | "type" | "const" | "static", name, ..] => {
                    file.is_index = false;
                    file.defined.insert(name.to_owned());
                    at + 1
                }
                [token, ..] => {
                    file.is_index = false;
                    match token {
                        "{" => depth += 1,
                        "}" => {
                            inline.pop_if(|(_, begun)| *begun == depth);
                            depth = depth.saturating_sub(1);
                        }
                        _ => {}
                    }
                    at + 1
                }
                [] => break,
            };
        }
        file
    }
}

/// A path as it is written in module `here`, from the crate's root; `None`: it leads to another crate.
fn absolute(path: &[String], here: &[String], is_file: impl Fn(&[String]) -> bool) -> Option<ItemPath> {
    let (first, rest) = path.split_first()?;
    let mut from = here.to_vec();
    match first.as_str() {
        "crate" => from.clear(),
        "self" => {}
        "super" => drop(from.pop()),
        child => {
            from.push(child.to_owned());
            is_file(&from).then_some(())?;
        }
    }
    for part in rest {
        match part.as_str() {
            "super" => drop(from.pop()),
            part => from.push(part.to_owned()),
        }
    }
    Some(from)
}

/// The files of a crate, by module, and which imports which.
#[derive(Debug)]
struct Graph {
    files: BTreeMap<ItemPath, File>,
    imports: BTreeMap<ItemPath, BTreeSet<ItemPath>>,
}

impl Graph {
    /// Of the sources of a crate, by module.
    fn new(sources: &BTreeMap<ItemPath, String>) -> Self {
        let mut codes = BTreeMap::new();
        let mut tests = BTreeSet::new();
        for (module, source) in sources {
            let (code, test_modules) = without_tests(&tokens(source));
            tests.extend(test_modules.into_iter().map(|name| [module.as_slice(), &[name]].concat()));
            codes.insert(module.clone(), code);
        }
        codes.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        let is_file = |module: &[String]| codes.contains_key(module);
        let files = codes.iter().map(|(module, code)| (module.clone(), File::of(code, module, is_file))).collect();
        let mut graph = Self { files, imports: BTreeMap::new() };
        for (module, file) in &graph.files {
            let paths = file.uses.iter().map(|imported| &imported.path).chain(&file.paths);
            let imported =
                paths.map(|path| graph.file_of(path)).filter(|other| other != module && !file.is_index).collect();
            graph.imports.insert(module.clone(), imported);
        }
        graph
    }

    /// The module of the file where what `path` names is defined.
    fn file_of(&self, path: &[String]) -> ItemPath {
        let mut at: ItemPath = Vec::new();
        let mut rest: VecDeque<String> = path.iter().cloned().collect();
        // Re-exports of re-exports end, unless they name each other.
        let mut left = 32;
        while let Some(name) = rest.pop_front() {
            at.push(name);
            if self.files.contains_key(&at) {
                continue;
            }
            let name = at.pop().unwrap_or_default();
            match self.re_exported(&at, &name).filter(|_| left > 0) {
                Some(target) => {
                    target.into_iter().rev().for_each(|part| rest.push_front(part));
                    (at, left) = (Vec::new(), left - 1);
                }
                None => break,
            }
        }
        at
    }

    /// The path that module `at` re-exports under `name`. All that a file without code of its own imports counts.
    fn re_exported(&self, at: &[String], name: &str) -> Option<ItemPath> {
        let file = self.files.get(at)?;
        let mut shown = file.uses.iter().filter(|imported| imported.is_public || file.is_index);
        let all = shown.clone().filter(|imported| imported.name == "*" && self.files.contains_key(&imported.path));
        let defines = |imported: &&Imported| self.files[&imported.path].defined.contains(name);
        let one = shown.find(|imported| imported.name == name).map(|imported| imported.path.clone());
        one.or_else(|| Some([all.clone().find(defines)?.path.as_slice(), &[name.to_owned()]].concat()))
    }

    /// All that a file imports, directly or through others.
    fn reached<'a>(&'a self, from: &'a ItemPath) -> BTreeSet<&'a ItemPath> {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            next.extend(
                self.imports[module]
                    .iter()
                    .filter(|imported| self.files.contains_key(*imported) && reached.insert(*imported)),
            );
        }
        reached
    }

    /// Largest sets of more than `most` files each of which reaches all others.
    fn loops(&self, most: usize) -> Vec<BTreeSet<&ItemPath>> {
        let reached: BTreeMap<_, _> = self.files.keys().map(|module| (module, self.reached(module))).collect();
        let mut loops = BTreeSet::new();
        for (module, others) in &reached {
            let around = others.iter().copied().filter(|other| reached[other].contains(module));
            loops.insert(around.collect::<BTreeSet<_>>());
        }
        loops.into_iter().filter(|files| files.len() > most).collect()
    }
}

/// A crate of the workspace.
struct Crate {
    name: String,
    /// By module, from the repository's root.
    paths: BTreeMap<ItemPath, PathBuf>,
    graph: Graph,
}

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files below `folder`, without those of binaries, by module.
fn modules(folder: &Path) -> BTreeMap<ItemPath, PathBuf> {
    let mut modules = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(Path::new(ROOT).join(&next)).into_iter().flatten().flatten() {
            let path = next.join(entry.file_name());
            if entry.path().is_dir() {
                folders.extend((path != folder.join("bin")).then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "rs") && path != folder.join("main.rs") {
                let within = path.with_extension("");
                let within = within.strip_prefix(folder).expect("a file of the folder");
                let mut module: ItemPath = within.iter().map(|text| text.to_string_lossy().into_owned()).collect();
                module.pop_if(|last| last == "mod");
                modules.insert(if module == ["lib"] { Vec::new() } else { module }, path);
            }
        }
    }
    modules
}

fn crates() -> Vec<Crate> {
    let root = read("Cargo.toml");
    let members = root.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).expect("a workspace").0;
    let folders = members.split(',').map(|member| member.trim().trim_matches('"')).filter(|text| !text.is_empty());
    let understood = |folder: &str| {
        let manifest = read(format!("{folder}/Cargo.toml"));
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).expect("a package has a name");
        let paths = modules(&Path::new(folder).join("src"));
        let sources = paths.iter().map(|(module, path)| (module.clone(), read(path))).collect();
        Crate { name: name.trim_matches('"').to_owned(), paths, graph: Graph::new(&sources) }
    };
    folders.map(understood).collect()
}

/// A line of the page: a loop that stays.
struct Stays {
    line: String,
    package: String,
    file: PathBuf,
}

/// The lines of the page's part on loops: "- `crate`, `file`: reason", which may go on in further lines.
fn that_stay(page: &str) -> Vec<Stays> {
    let part = page.split_once(HEADING).expect("the page has a part on loops").1;
    let part = part.split("\n## ").next().unwrap_or(part);
    let understood = |line: &str| {
        let line = line.split("\n\n").next().unwrap_or(line).split_whitespace().collect::<Vec<_>>().join(" ");
        let pieces: Vec<&str> = line.splitn(5, '`').collect();
        match pieces[..] {
            ["", package, ", ", file, reason] if reason.strip_prefix(": ").is_some_and(|text| text.len() > 10) => {
                let package = package.to_owned();
                let file = file.into();
                Stays { line, package, file }
            }
            _ => panic!("{line:?} does not read \"- `crate`, `file`: reason\""),
        }
    };
    part.split("\n- ").skip(1).map(understood).collect()
}

#[test]
fn no_loop_has_more_than_three_files() {
    let stays = that_stay(&read("docs/architecture.md"));
    let mut needed = vec![false; stays.len()];
    let mut wrong = String::new();
    let mut edges = 0;
    for Crate { name, paths, graph } in crates() {
        edges += graph.imports.values().map(BTreeSet::len).sum::<usize>();
        for files in graph.loops(MOST) {
            let of_loop =
                |stays: &Stays| stays.package == name && files.iter().any(|module| paths[*module] == stays.file);
            let line = stays.iter().position(of_loop);
            let mut text = format!("{name}: a loop of {} files\n", files.len());
            for module in &files {
                let imported = graph.imports[*module].iter().filter(|other| files.contains(other));
                let imported: Vec<_> = imported.map(|imported| paths[imported].display().to_string()).collect();
                writeln!(text, "    {} -> {}", paths[*module].display(), imported.join(", ")).expect("room");
            }
            match line {
                Some(line) => {
                    needed[line] = true;
                    println!("{text}    stays: {}", stays[line].line);
                }
                None => wrong += &text,
            }
        }
    }
    for (line, _) in stays.iter().zip(needed).filter(|(_, needed)| !needed) {
        wrong += &format!("docs/architecture.md names a loop that is not there, or is named before: {}\n", line.line);
    }
    assert!(edges > 500, "the sources were not understood: {edges} imports");
    assert!(
        wrong.is_empty(),
        "{wrong}Cut these loops (what several files need goes into a file of its own below them), or name each in \
         docs/architecture.md under \"Loops that stay\", with a reason."
    );
}

/// The imports of a made-up crate, as `file -> file`.
fn imports(sources: &[(&str, &str)]) -> (Graph, Vec<String>) {
    let module = |path: &str| path.split('/').filter(|text| !text.is_empty()).map(str::to_owned).collect::<ItemPath>();
    let sources = sources.iter().map(|(path, source)| (module(path), (*source).to_owned())).collect();
    let graph = Graph::new(&sources);
    let each = |(from, to): (&ItemPath, &BTreeSet<ItemPath>)| {
        to.iter().map(|to| format!("{} -> {}", from.join("/"), to.join("/"))).collect::<Vec<_>>()
    };
    let all = graph.imports.iter().flat_map(each).collect();
    (graph, all)
}

#[test]
fn imports_are_found_however_they_are_written() {
    let (_, found) = imports(&[
        ("", "mod a; mod b; mod c; mod d; pub use a::{A, b::{self as inner, B}}; pub use d::*;"),
        ("a", "pub mod b; use crate::{c::C, d}; pub struct A(b::B);"),
        ("a/b", "use std::fmt; use super::super::c; pub struct B; mod own { use super::super::A; }"),
        ("c", "pub struct C; fn f() -> crate::inner::B { self::g(); Some::<crate::D>(1); 'x: loop {} }"),
        (
            "d",
            "pub(crate) struct D; impl crate::A {} pub(in crate::a) fn f() { let _ = (b'\"', \"crate::c::C\", 'c'); }",
        ),
    ]);
    assert_eq!(found, ["a -> a/b", "a -> c", "a -> d", "a/b -> a", "a/b -> c", "c -> a/b", "c -> d", "d -> a"]);
}

#[test]
fn comments_text_tests_and_other_crates_are_no_imports() {
    let (_, found) = imports(&[
        ("", "mod a; mod b; #[cfg(test)] mod checks; use std::a::A; use ::b::B; fn f() { ::a::g(); std::b::g() }"),
        (
            "a",
            "//! [`crate::b`]\n/* /* crate::b */ crate::b */ const A: &str = r#\"\"crate::b::B\"#; const Q: char = '\\'';
             #[cfg(test)] #[allow(unused)] mod tests { use crate::b::B; } #[cfg(all(test, unix))] fn f() { crate::b::g() }
             #[cfg(test)] use crate::b; impl Trait for X { fn g() -> impl Sized + use<> {} }",
        ),
        ("b", "pub struct B;"),
        ("checks", "use crate::b::B;"),
    ]);
    assert_eq!(found, [""; 0]);
}

#[test]
fn loops_are_found_and_files_without_code_are_no_part_of_them() {
    let around = |first: &str| {
        let (graph, _) = imports(&[
            ("", first),
            ("a", "use crate::B; struct A;"),
            ("b", "use crate::c::C; struct B;"),
            ("c", "fn c() { super::d::d() } struct C;"),
            ("d", "use crate::first; fn d() {}"),
            ("e", "use crate::a::A;"),
        ]);
        let sizes = |most| graph.loops(most).iter().map(BTreeSet::len).collect::<Vec<_>>();
        (sizes(3), sizes(4))
    };
    let index = "mod a; mod b; mod c; mod d; mod e; pub use b::B;";
    assert_eq!(around(index), (vec![], vec![]));
    assert_eq!(around(&format!("{index} pub(crate) use a::A as first;")), (vec![4], vec![]));
    // Here the root has code, which imports one of the files.
    assert_eq!(around(&format!("{index} fn first() {{ a::f() }}")), (vec![5], vec![5]));
}

#[test]
fn the_page_names_crates_files_and_reasons() {
    let page = format!(
        "# A\n\n- `x`, `y`: before it\n{HEADING}\nText.\n\n- `c`, `c/src/a.rs`: because it\n  is `so`\n\n## B\n- z\n"
    );
    let lines = that_stay(&page);
    assert_eq!(lines.len(), 1);
    assert_eq!((lines[0].package.as_str(), lines[0].file.as_path()), ("c", Path::new("c/src/a.rs")));
    assert!(lines[0].line.ends_with(": because it is `so`"), "{}", lines[0].line);
    let without_reason = page.replace("because it", "").replace("is `so`", "");
    assert!(std::panic::catch_unwind(|| that_stay(&without_reason)).is_err());
}
