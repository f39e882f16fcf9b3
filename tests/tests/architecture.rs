//! The picture in `docs/architecture.md` shows the packages there are, and what each uses.

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
    folders.filter(|it| !it.is_empty()).collect()
}

/// As the manifests have it; what only a package's own tests use does not count.
fn in_the_code() -> Uses {
    let package = |folder: &String| {
        let (mut section, mut name, mut uses) = ("", None, BTreeSet::new());
        let manifest = read(&format!("{folder}/Cargo.toml"));
        for line in manifest.lines() {
            match line.split_once(['=', '.']).map(|(key, value)| (key.trim(), value)) {
                _ if line.starts_with('[') => section = line.trim(),
                Some(("name", value)) if section == "[package]" => {
                    name = Some(value.trim().trim_matches('"').to_owned())
                }
                Some((key, _)) if section == "[dependencies]" && key.starts_with("warprow") => {
                    uses.insert(key.to_owned());
                }
                _ => {}
            }
        }
        (name.unwrap_or_else(|| panic!("{folder} has no name")), uses)
    };
    folders().iter().map(package).collect()
}

/// As the picture has it: nodes are `id["<b>package</b>…"]`, arrows `id --> id`.
fn in_the_picture() -> Uses {
    let page = read("docs/architecture.md");
    let picture = page.split_once("```mermaid").and_then(|(_, rest)| rest.split_once("```")).expect("a picture").0;
    let node = |line: &str| {
        let (id, label) = line.trim().split_once("[\"<b>")?;
        Some((id.to_owned(), label.split_once("</b>")?.0.to_owned()))
    };
    let names: BTreeMap<String, String> = picture.lines().filter_map(node).collect();
    let mut uses: Uses = names.values().map(|name| (name.clone(), BTreeSet::new())).collect();
    for (from, to) in picture.lines().filter_map(|line| line.trim().split_once(" --> ")) {
        uses.get_mut(&names[from]).expect("a node").insert(names[to].clone());
    }
    uses
}

#[test]
fn the_picture_matches_the_code() {
    let code = in_the_code();
    assert!(code.len() > 10, "the manifests were not understood: {code:?}");
    assert_eq!(closure(&in_the_picture()), closure(&code));
}

/// A program that opens, loads and verifies builds no CUDA.
#[test]
fn the_store_and_the_host_executor_reach_no_cuda() {
    let reached = closure(&in_the_code());
    for package in ["warprow-store", "warprow-lookup"] {
        for cuda in ["warprow-gpu", "warprow-gpu-queues", "warprow-kernels"] {
            assert!(!reached[package].contains(cuda), "{package} reaches {cuda}");
        }
    }
    for package in ["warprow-store", "warprow-lookup"] {
        let folder = package.trim_start_matches("warprow-");
        assert!(!read(&format!("{folder}/Cargo.toml")).contains("cudarc"), "{package} names cudarc");
    }
}

/// The benchmarks stand above everything: no other package uses them, not even in its tests.
#[test]
fn no_package_reaches_the_benchmarks() {
    let reached = closure(&in_the_code());
    assert!(reached.contains_key("warprow-bench"), "the manifests were not understood: {reached:?}");
    for (package, reached) in &reached {
        assert!(!reached.contains("warprow-bench"), "{package} reaches warprow-bench");
    }
    for folder in folders().iter().filter(|it| *it != "bench") {
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
            } else if path.extension().is_some_and(|it| it == "rs") {
                code += &std::fs::read_to_string(&path).expect("a source file");
            }
        }
    }
    let page = read("docs/glossary.md");
    let quoted = page.split('`').skip(1).step_by(2);
    let types = quoted.map(|it| it.rsplit("::").find(|part| part.starts_with(char::is_uppercase)).unwrap_or(""));
    let types: BTreeSet<&str> = types.filter(|it| it.len() > 1 && it.chars().all(char::is_alphanumeric)).collect();
    assert!(types.len() > 40, "the glossary was not understood: {types:?}");
    let defined = |name: &&str| {
        ["struct", "enum", "trait", "type", "use"].iter().any(|kind| code.contains(&format!("{kind} {name}")))
            || code.contains(&format!("    {name}")) // a variant, or in a macro
    };
    let missing: Vec<_> = types.iter().filter(|it| !defined(it)).collect();
    assert!(missing.is_empty(), "the code has no {missing:?}");
}
