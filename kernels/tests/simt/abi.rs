//! `cuda/abi.h` and `src/abi.rs` are the same, name by name. That sizes and offsets follow from that is asserted in both: in C++ by
//! size, in Rust by the absence of padding.

use std::collections::BTreeMap;

const C: &str = include_str!("../../cuda/abi.h");
const RUST: &str = include_str!("../../src/abi.rs");

/// Fields in order: name, and bytes of an element and how many.
type Structures = BTreeMap<String, Vec<(String, String, String)>>;

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn in_c(text: &str) -> Structures {
    let mut structures = Structures::new();
    for structure in text.split("struct ").skip(1) {
        let (name, rest) = structure.split_once('{').unwrap();
        let body = rest.split_once("};").unwrap().0;
        let mut fields = Vec::new();
        for declaration in body.split(';').map(str::trim).filter(|text| !text.is_empty()) {
            let (kind, names) = declaration.split_once(' ').unwrap();
            for field in names.split(',') {
                let (field, count) = field.trim().trim_end_matches(']').split_once('[').unwrap_or((field.trim(), "1"));
                fields.push((field.to_owned(), kind.to_owned(), count.to_owned()));
            }
        }
        structures.insert(name.trim().to_owned(), fields);
    }
    structures
}

/// Fields of `Size` stand in the place of one. (`Counters` is a structure on both sides.)
fn without_inner(mut structures: Structures) -> Structures {
    let size = structures.remove("Size").unwrap();
    for fields in structures.values_mut() {
        let inner = |field: (String, String, String)| if field.1 == "Size" { size.clone() } else { vec![field] };
        *fields = std::mem::take(fields).into_iter().flat_map(inner).collect();
    }
    structures
}

fn in_rust(text: &str) -> Structures {
    let mut structures = Structures::new();
    for structure in text.split("plain!(").skip(1) {
        let (head, rest) = structure.split_once('{').unwrap();
        let name = head.split_once(',').unwrap().0.trim();
        let mut fields = Vec::new();
        for line in rest.split_once('}').unwrap().0.lines().map(str::trim).filter(|text| !text.is_empty()) {
            let (field, kind) = line.trim_end_matches(',').split_once(": ").unwrap();
            let (kind, count) = kind.trim_matches(['[', ']']).split_once("; ").unwrap_or((kind, "1"));
            fields.push((field.to_owned(), kind.to_owned(), count.to_owned()));
        }
        structures.insert(name.to_owned(), fields);
    }
    structures
}

/// The constants of each enumeration, in order: PREFIX_NAME = value there, NAME in a module of the same name here.
fn constants_in_c(text: &str) -> BTreeMap<String, u32> {
    let mut constants = BTreeMap::new();
    for enumeration in text.split("enum ").skip(1) {
        let body = enumeration.split_once('{').unwrap().1.split_once('}').unwrap().0;
        let mut next = 0;
        for entry in body.split(',').map(str::trim) {
            let (name, value) = entry.split_once(" = ").unwrap_or((entry, ""));
            next = value.parse().unwrap_or(next);
            constants.insert(name.to_owned(), next);
            next += 1;
        }
    }
    constants
}

fn constants_in_rust(text: &str) -> BTreeMap<String, u32> {
    let mut constants = BTreeMap::new();
    for module in text.split("pub mod ").skip(1) {
        let (prefix, rest) = module.split_once('{').unwrap();
        for line in rest.split_once('}').unwrap().0.lines().filter_map(|line| line.trim().strip_prefix("pub const ")) {
            let (name, value) = line.trim_end_matches(';').split_once(": u32 = ").unwrap();
            constants.insert(format!("{}_{name}", prefix.trim().to_uppercase()), value.parse().unwrap());
        }
    }
    constants
}

#[test]
fn structures_match() {
    let c = without_inner(in_c(&without_comments(C)));
    let rust = in_rust(&without_comments(RUST));
    assert!(c.len() >= 7, "{c:?}");
    for (name, fields) in &c {
        let ours = rust.get(name).unwrap_or_else(|| panic!("{name} is not in src/abi.rs"));
        assert_eq!(fields, ours, "{name}");
    }
    assert_eq!(c.len(), rust.len());
}

#[test]
fn constants_match() {
    let rust = constants_in_rust(&without_comments(RUST));
    assert_eq!(constants_in_c(&without_comments(C)), rust);
    assert!(rust.len() > 20);
}

/// Bytes of a type: of a structure, those of its fields.
fn bytes_of(structures: &Structures, kind: &str) -> usize {
    match kind {
        "u32" => 4,
        "u64" => 8,
        name => {
            let fields = structures.get(name).unwrap_or_else(|| panic!("{name} is no structure"));
            fields.iter().map(|(_, kind, count)| bytes_of(structures, kind) * count.parse::<usize>().unwrap()).sum()
        }
    }
}

#[test]
fn sizes_are_asserted_by_both() {
    let c: String = C.split_once("static_assert").unwrap().1.into();
    let structures = in_rust(&without_comments(RUST));
    for name in structures.keys() {
        let size = bytes_of(&structures, name);
        assert!(c.contains(&format!("sizeof({name}) == {size}")), "{name} has {size} bytes here");
        assert!(RUST.contains(&format!("{name}, {size} {{")), "{name}");
    }
}
