//! Checkpoints of language models, attached: shards, scales, what is refused.

use std::fs;

use serde_json::json;

use crate::fixture::CliFixture;

/// A safetensors file of tensors: name, type, shape, bytes.
fn safetensors(tensors: &[(&str, &str, &[u64], &[u8])]) -> Vec<u8> {
    let mut end = 0;
    let entry = |&(name, dtype, shape, bytes): &(&str, &str, &[u64], &[u8])| {
        let begin = end;
        end += bytes.len();
        (name.to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}))
    };
    let header = serde_json::Value::Object(tensors.iter().map(entry).collect()).to_string();
    let data = tensors.iter().flat_map(|(.., bytes)| bytes.iter().copied());
    (header.len() as u64).to_le_bytes().into_iter().chain(header.bytes()).chain(data).collect()
}

#[test]
fn a_checkpoint_is_inspected_and_looked_up_where_it_lies() {
    let fixture = CliFixture::new();
    fs::create_dir(fixture.path("m")).unwrap();
    // 1.0 times a power of two for each row and block.
    let codes = [0x38u8; 4 * 32];
    let powers: Vec<u8> = (125..129).collect();
    let shards: Vec<Vec<u8>> = (0..3u8).map(|shard| (0..20).map(|at| shard * 20 + at).collect()).collect();
    let one = safetensors(&[
        ("l.1.embed.weight", "F8_E4M3", &[4, 32], &codes),
        ("t.shard_2.weight", "U8", &[5, 4], &shards[2]),
    ]);
    let two = safetensors(&[
        ("l.1.embed.scale", "F8_E8M0", &[4, 1], &powers),
        ("t.shard_0.weight", "U8", &[5, 4], &shards[0]),
        ("t.shard_1.weight", "U8", &[5, 4], &shards[1]),
    ]);
    fs::write(fixture.path("m/1.safetensors"), one).unwrap();
    fs::write(fixture.path("m/2.safetensors"), two).unwrap();
    let map = json!({"weight_map": {
        "l.1.embed.weight": "1.safetensors", "t.shard_2.weight": "1.safetensors", "l.1.embed.scale": "2.safetensors",
        "t.shard_0.weight": "2.safetensors", "t.shard_1.weight": "2.safetensors"
    }});
    fs::write(fixture.path("m/model.safetensors.index.json"), map.to_string()).unwrap();
    let seen = fixture.ok(&["inspect", "-d", "attached:m"]);
    let tables = seen["store"]["generations"][0]["tables"].as_array().unwrap();
    let said: Vec<_> =
        tables.iter().map(|table| (table["name"].clone(), table["rows"].clone(), table["dtype"].clone())).collect();
    assert_eq!(
        said,
        [(json!("l.1.embed.weight"), json!(4), json!("mxfp8")), (json!("t.weight"), json!(15), json!("u8"))],
        "{seen}"
    );
    let rows =
        fixture.ok(&["lookup", "-d", "attached:m", "--table", "l.1.embed.weight", "--ids", "3,0,-1"])["rows"].clone();
    assert_eq!((&rows[0][31], &rows[1][0], &rows[2][7]), (&json!(2.0), &json!(0.25), &json!(0.0)));
    let drive = "attached:m,tensor=ple=t.shard_{3}.weight,workers=2";
    let rows = fixture.ok(&["lookup", "-d", drive, "--table", "ple", "--ids", "14,5"]);
    assert_eq!(rows["rows"], json!([[56.0, 57.0, 58.0, 59.0], [20.0, 21.0, 22.0, 23.0]]));
    for (address, says) in [
        ("m,tensor=t.shard_{4}.weight", "shard 3 of"),
        ("m,tensor=l.1.embed.weight,scales=t.shard_0.weight", "F8_E8M0 [4, 1]"),
        ("m,tensor=absent", "no tensor of m matches"),
    ] {
        let refused = fixture.fails(&["inspect", "-d", &format!("attached:{address}")], 3);
        assert!(refused["message"].as_str().unwrap().contains(says), "{address}: {refused}");
        assert!(!refused["remedy"].as_str().unwrap().is_empty());
    }
    fs::remove_file(fixture.path("m/2.safetensors")).unwrap();
    let refused = fixture.fails(&["inspect", "-d", "attached:m"], 3);
    assert!(refused.to_string().contains("2.safetensors") && refused.to_string().contains("missing"), "{refused}");
}
