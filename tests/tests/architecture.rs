//! The page `docs/architecture.md` shows the packages there are, what each uses, and the floor on which each stands.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Uses = BTreeMap<String, BTreeSet<String>>;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn read(path: &str) -> String {
    let path = Path::new(ROOT).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every package with those it can reach.
fn closure(direct: &Uses) -> Uses {
    let reach = |package: &String| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<_> = direct[package].iter().collect();
        while let Some(used) = next.pop() {
            if seen.insert(used.clone()) {
                next.extend(direct.get(used).unwrap_or_else(|| panic!("{package} uses {used}, which is not there")));
            }
        }
        seen
    };
    direct.keys().map(|package| (package.clone(), reach(package))).collect()
}

/// The folders of the workspace's packages.
fn folders() -> Vec<String> {
    let root = read("Cargo.toml");
    let members = root.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).expect("a workspace").0;
    let folders = members.split(',').map(|member| member.trim().trim_matches('"').to_owned());
    folders.filter(|folder| !folder.is_empty()).collect()
}

/// Which uses of other packages count.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Dependencies of every build.
    Always,
    /// Dependencies of an optional feature.
    Optional,
}

/// As the manifests have it; what only a package's own tests use does not count.
fn in_the_code(kind: Kind) -> Uses {
    let package = |folder: &String| {
        let mut section = "";
        let mut name = None;
        let mut uses = BTreeSet::new();
        let manifest = read(&format!("{folder}/Cargo.toml"));
        for line in manifest.lines() {
            match line.split_once(['=', '.']).map(|(key, value)| (key.trim(), value)) {
                _ if line.starts_with('[') => section = line.trim(),
                Some(("name", value)) if section == "[package]" => {
                    name = Some(value.trim().trim_matches('"').to_owned())
                }
                Some((key, value)) if section == "[dependencies]" && key.starts_with("warprow") => {
                    let is_optional = value.contains("optional = true");
                    uses.extend((is_optional == (kind == Kind::Optional)).then(|| key.to_owned()));
                }
                _ => {}
            }
        }
        (name.unwrap_or_else(|| panic!("{folder} has no name")), uses)
    };
    folders().iter().map(package).collect()
}

/// As the picture has it: nodes are `id["<b>package</b>…"]`, arrows `id --> id`, those of optional features `id -.-> id`.
fn in_the_picture(kind: Kind) -> Uses {
    let page = read("docs/architecture.md");
    let picture = page.split_once("```mermaid").and_then(|(_, rest)| rest.split_once("```")).expect("a picture").0;
    let node = |line: &str| {
        let (id, label) = line.trim().split_once("[\"<b>")?;
        Some((id.to_owned(), label.split_once("</b>")?.0.to_owned()))
    };
    let names: BTreeMap<String, String> = picture.lines().filter_map(node).collect();
    let mut uses: Uses = names.values().map(|name| (name.clone(), BTreeSet::new())).collect();
    let arrow = match kind {
        Kind::Always => " --> ",
        Kind::Optional => " -.-> ",
    };
    for (from, to) in picture.lines().filter_map(|line| line.trim().split_once(arrow)) {
        uses.get_mut(&names[from]).expect("a node").insert(names[to].clone());
    }
    uses
}

#[test]
fn the_picture_matches_the_code() {
    let code = in_the_code(Kind::Always);
    assert!(code.len() > 10, "the manifests were not understood: {code:?}");
    assert_eq!(closure(&in_the_picture(Kind::Always)), closure(&code));
    assert_eq!(in_the_picture(Kind::Optional), in_the_code(Kind::Optional));
}

/// The floor of each package by the page's table, whose lines begin "| `package` | floor |".
fn floors_in_the_table(page: &str) -> BTreeMap<String, u32> {
    let floor = |line: &str| {
        let (package, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        let (floor, _) = rest.split_once(" | ").unwrap_or_else(|| panic!("no floor: {line}"));
        let floor = floor.parse().unwrap_or_else(|_| panic!("{package} has no floor: {line}"));
        package.starts_with("warprow").then(|| (package.to_owned(), floor))
    };
    page.lines().filter_map(floor).collect()
}

/// The floor of each package by the page's drawing, whose lines are "floor, number, what the floor is, packages".
fn floors_in_the_drawing(page: &str) -> BTreeMap<String, u32> {
    let drawing = page.split_once("```text").and_then(|(_, rest)| rest.split_once("```")).expect("a drawing").0;
    let mut floors = BTreeMap::new();
    for line in drawing.lines().filter(|line| !line.trim().is_empty()) {
        let (number, rest) = line.trim().strip_prefix("floor ").and_then(|text| text.split_once(' ')).expect("a floor");
        let number = number.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        for package in rest.split_whitespace().filter(|text| text.starts_with("warprow")) {
            let before = floors.insert(package.to_owned(), number);
            assert_eq!(before, None, "{package} is drawn on two floors");
        }
    }
    floors
}

/// Dependencies that do not lead to a lower floor, in words. Panics if a package has no floor.
fn not_downwards(uses: &Uses, floors: &BTreeMap<String, u32>) -> Vec<String> {
    let floor = |package: &String| *floors.get(package).unwrap_or_else(|| panic!("{package} has no floor"));
    let arrows = uses.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    let wrong = arrows.filter(|&(from, to)| floor(to) >= floor(from));
    wrong.map(|(from, to)| format!("{from} (floor {}) uses {to} (floor {})", floor(from), floor(to))).collect()
}

/// A package uses packages of lower floors alone, by the floors that the page gives them.
#[test]
fn packages_use_lower_floors_alone() {
    let page = read("docs/architecture.md");
    let code = in_the_code(Kind::Always);
    let floors = floors_in_the_table(&page);
    assert_eq!(floors.keys().collect::<Vec<_>>(), code.keys().collect::<Vec<_>>(), "the table's packages");
    assert_eq!(floors_in_the_drawing(&page), floors, "the drawing and the table");
    let wrong = not_downwards(&code, &floors);
    assert!(wrong.is_empty(), "a package uses one that is not below it: {wrong:#?}");
    for (package, &floor) in floors.iter().filter(|(_, floor)| **floor > 0) {
        let below = code[package].iter().map(|used| floors[used]).max();
        let is_top = floor == floors.values().copied().max().expect("packages");
        assert!(
            is_top || below == Some(floor - 1),
            "{package} uses nothing of floor {}: it may stand lower",
            floor - 1
        );
    }
}

/// A wrong floor is found, whichever way it is wrong.
#[test]
fn wrong_floors_are_found() {
    let page = "```text\n floor 1  above  warprow-b\n floor 0  below  warprow-a\n```\n| `warprow-a` | 0 | `a` |\n| `warprow-b` | 1 | `b` |\n";
    let uses = Uses::from([
        ("warprow-a".to_owned(), BTreeSet::new()),
        ("warprow-b".to_owned(), BTreeSet::from(["warprow-a".to_owned()])),
    ]);
    let floors = floors_in_the_table(page);
    assert_eq!(floors, floors_in_the_drawing(page));
    assert!(not_downwards(&uses, &floors).is_empty());
    for (a, b) in [(1, 1), (2, 1)] {
        let wrong = page.replace("-a` | 0 |", &format!("-a` | {a} |")).replace("-b` | 1 |", &format!("-b` | {b} |"));
        assert_eq!(not_downwards(&uses, &floors_in_the_table(&wrong)).len(), 1, "{wrong}");
        assert_ne!(floors_in_the_table(&wrong), floors_in_the_drawing(&wrong));
    }
}

/// A program that opens, loads, verifies and trains on the host builds no CUDA.
#[test]
fn the_store_the_host_executor_and_passes_reach_no_cuda() {
    let reached = closure(&in_the_code(Kind::Always));
    for package in ["warprow-store", "warprow-lookup", "warprow-passes"] {
        for cuda in ["warprow-gpu", "warprow-gpu-queues", "warprow-kernels"] {
            assert!(!reached[package].contains(cuda), "{package} reaches {cuda}");
        }
        let folder = package.trim_start_matches("warprow-");
        assert!(!read(&format!("{folder}/Cargo.toml")).contains("cudarc"), "{package} names cudarc");
    }
}

/// The benchmarks stand above everything: no other package uses them, not even in its tests.
#[test]
fn no_package_reaches_the_benchmarks() {
    let reached = closure(&in_the_code(Kind::Always));
    assert!(reached.contains_key("warprow-bench"), "the manifests were not understood: {reached:?}");
    for (package, reached) in &reached {
        assert!(!reached.contains("warprow-bench"), "{package} reaches warprow-bench");
    }
    for folder in folders().iter().filter(|folder| *folder != "bench") {
        assert!(!read(&format!("{folder}/Cargo.toml")).contains("warprow-bench"), "{folder} names warprow-bench");
    }
}

/// Every type that the glossary names is in the code.
#[test]
fn the_glossary_names_what_there_is() {
    let mut code = String::new();
    let mut folders = vec![Path::new(ROOT).to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && name != ".git" {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
                code += &std::fs::read_to_string(&path).expect("a source file");
            }
        }
    }
    let page = read("docs/glossary.md");
    let quoted = page.split('`').skip(1).step_by(2);
    let types =
        quoted.map(|quoted| quoted.rsplit("::").find(|part| part.starts_with(char::is_uppercase)).unwrap_or(""));
    let types: BTreeSet<&str> =
        types.filter(|text| text.len() > 1 && text.chars().all(char::is_alphanumeric)).collect();
    assert!(types.len() > 40, "the glossary was not understood: {types:?}");
    let defined = |name: &&str| {
        ["struct", "enum", "trait", "type", "use", "class"].iter().any(|kind| code.contains(&format!("{kind} {name}")))
            || code.contains(&format!("    {name}")) // a variant, or in a macro
    };
    let missing: Vec<_> = types.iter().filter(|text| !defined(text)).collect();
    assert!(missing.is_empty(), "the code has no {missing:?}");
}
