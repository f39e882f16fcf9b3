//! `verify --against` with several files and tables.

use std::fs;

use serde_json::{Value, json};

use crate::fixture::CliFixture;

fn of<'a>(value: &'a Value, name: &str) -> &'a Value {
    value["tables"]
        .as_array()
        .unwrap()
        .iter()
        .find(|value| value["name"] == name)
        .unwrap_or_else(|| panic!("{name}: {value}"))
}

/// A safetensors file of f32 tables, each with rows, dimension and a number that is added to each element.
fn safetensors(fixture: &CliFixture, name: &str, tables: &[(&str, usize, usize, f32)]) -> String {
    let data: Vec<Vec<u8>> = tables
        .iter()
        .map(|&(_, rows, dim, plus)| (0..rows * dim).flat_map(|at| (at as f32 + plus).to_le_bytes()).collect())
        .collect();
    let views = tables.iter().zip(&data).map(|(&(name, rows, dim, _), data)| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![rows, dim], data).unwrap())
    });
    fs::write(fixture.path(name), safetensors::serialize(views, None).unwrap()).unwrap();
    name.to_owned()
}

#[test]
fn tables_are_compared_each_with_its_own_file() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let model =
        safetensors(&fixture, "m.safetensors", &[("e.user.weight", 300, 4, 0.0), ("e.item.weight", 300, 4, 0.5)]);
    fixture.ok(&["load", "-d", &drive, &model, "--tensor", "user=e.user.*", "--tensor", "item=e.item.*"]);
    let other = fixture.npy("page.npy", 200, 2, |r, c| (r * 2 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &other]);
    let user = fixture.npy("u.npy", 300, 4, |r, c| (r * 4 + c) as f32);
    let wrong = fixture.npy("wrong.npy", 300, 4, |r, c| (r * 4 + c) as f32 + if r == 7 { 1.0 } else { 0.0 });
    let against = |args: &[&str]| {
        let all: Vec<&str> =
            ["verify", "-d", &drive].into_iter().chain(args.iter().flat_map(|&arg| ["--against", arg])).collect();
        fixture.json(&all)
    };
    // A file each, of which one is for the rest; tensors are found by what they are called but for what is around that.
    let user_is = format!("user={user}");
    let page_is = format!("page={other}");
    let (all, exit) = against(&[&user_is, &page_is, &model]);
    assert_eq!((exit, all["tables"].as_array().unwrap().len(), &all["differing"]), (0, 3, &json!(0)), "{all}");
    assert_eq!((&of(&all, "user")["against"], &of(&all, "item")["against"]), (&json!(user), &json!(model)));
    // Only those that are named.
    let (some, exit) = against(&[&user_is, &page_is]);
    assert_eq!((exit, some["tables"].as_array().unwrap().len()), (0, 2), "{some}");
    let (differs, exit) = against(&[&format!("user={wrong}"), &page_is]);
    assert_eq!((exit, &of(&differs, "user")["first_differing"]), (5, &json!([7])), "{differs}");
    assert_eq!(&of(&differs, "page")["differing"], &json!(0));
    // Several tables of one file by their tensors.
    let tensors = ["--tensor", "user=e.user.*", "--tensor", "item=e.item.*"];
    let both = ["verify", "-d", &drive, "--table", "user", "--table", "item", "--against", &model];
    assert_eq!(fixture.ok(&[&both[..], &tensors].concat())["differing"], 0);
    let crossed = ["--tensor", "user=e.item.*", "--tensor", "item=e.user.*"];
    assert_eq!(fixture.fails(&[&both[..], &crossed].concat(), 5)["class"], "mismatch");

    let (refused, exit) = against(&["nobody=u.npy"]);
    assert!(exit == 3 && refused.to_string().contains("the store has no table \\\"nobody\\\""), "{refused}");
    let (refused, exit) = against(&[&user_is, &format!("user={wrong}")]);
    assert_eq!((exit, refused["error"]["candidates"].as_array().map(Vec::len)), (2, Some(2)), "{refused}");
    let (refused, exit) = against(&[&model]);
    assert!(exit == 3 && refused.to_string().contains("called like table \\\"page\\\""), "{refused}");
    fixture.fails(&["verify", "-d", &drive, "--table", "item", "--against", &user_is], 3);
}
