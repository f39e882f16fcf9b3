//! Headers of safetensors files: what is accepted lies in the file, and is as long as its shape.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warprow_formats::safetensors::parse;
use warprow_fuzz::edit;

const RIGHT: &[u8] = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[100,16],"data_offsets":[0,6400]},"b":{"dtype":"BF16","shape":[7,3],"data_offsets":[6400,6442]},"c":{"dtype":"I64","shape":[],"data_offsets":[6442,6450]}}"#;

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let mut header = RIGHT.to_vec();
    match how & 1 {
        0 => edit(&mut header, data),
        _ => header = data.to_vec(),
    }
    let begin = 8 + header.len() as u64;
    let file_len = begin + 6450 - u64::from(how >> 4);
    let Ok(tensors) = parse(&header, file_len) else { return };
    for tensor in &tensors {
        let end = tensor.at.checked_add(tensor.bytes);
        assert!(tensor.at >= begin && end.is_some_and(|end| end <= file_len), "{tensor:?} of a file of {file_len}");
        let size = match tensor.dtype.as_str() {
            "I64" => 8,
            "F32" => 4,
            "F16" | "BF16" => 2,
            "I8" | "U8" => 1,
            // Types that this version does not know cannot be loaded.
            _ => continue,
        };
        let elements = tensor.shape.iter().try_fold(1u64, |all, &n| all.checked_mul(n));
        assert_eq!(elements.and_then(|elements| elements.checked_mul(size)), Some(tensor.bytes), "{tensor:?}");
    }
});
