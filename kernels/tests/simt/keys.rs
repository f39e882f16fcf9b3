//! `cuda/keys.cuh` gives the slots that the index gives here, from the same bytes, for its own keys and for foreign ones.

use std::fs;
use std::ops::ControlFlow;
use std::process::Command;

use libloading::Library;
use warprow_kernels::abi::KeyIndex as KeyIndexOnGpu;
use warprow_keys::{FingerprintWidth, IndexOptions, KeyIndex};

use crate::shim::{OPTIONS, compiler, sources};
use crate::sparse::on_gpu;

const SOURCE: &str = r#"
#include "simt.h"
#include "keys.cuh"
extern "C" void slots_of(const KeyIndex* index, const u64* keys, u64* slots, u64 count) {
    for (u64 i = 0; i < count; ++i) slots[i] = slot_of(*index, keys[i]);
}
"#;

type SlotsOf = unsafe extern "C" fn(*const KeyIndexOnGpu, *const u64, *mut u64, u64);

fn build() -> Option<Library> {
    let Some(compiler) = compiler() else {
        eprintln!("skipped: running device code on the CPU needs a C++ compiler (c++, g++, clang++ or $CXX)");
        return None;
    };
    let here = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (name, text) in sources(&[]) {
        fs::write(here.path().join(name), text).unwrap();
    }
    fs::write(here.path().join("keys.cpp"), SOURCE).unwrap();
    let output = Command::new(compiler)
        .current_dir(here.path())
        .args(OPTIONS)
        .args(["-Wall", "-Wno-unused-function", "-shared", "keys.cpp", "-o", "keys.so"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{compiler} refuses keys.cuh:\n{}", String::from_utf8_lossy(&output.stderr));
    // SAFETY: it was built from our sources and runs nothing when it is loaded.
    Some(unsafe { Library::new(here.path().join("keys.so")) }.unwrap())
}

#[test]
fn device_code_finds_the_slots_that_the_index_has() {
    let Some(library) = build() else { return };
    // SAFETY: `SOURCE` declares it so.
    let slots_of = unsafe { library.get::<SlotsOf>(b"slots_of\0") }.unwrap();
    let mut random = fastrand::Rng::with_seed(11);
    let widths = [FingerprintWidth::Bits8, FingerprintWidth::Bits16, FingerprintWidth::Bits32];
    for (round, count) in [1, 2, 7, 1000, 300_000].into_iter().enumerate() {
        for width in widths {
            let mut keys: Vec<u64> = (0..count).map(|_| random.u64(..) >> random.u32(..20)).collect();
            keys.extend([0, u64::MAX, 1 << 63, i64::MAX as u64]);
            keys.sort_unstable();
            keys.dedup();
            let options = IndexOptions::default().with_fingerprint(width).with_seed(round as u64);
            let index = KeyIndex::build(&keys[..], &options, &mut |_| ControlFlow::Continue(())).unwrap();
            // As aligned as the GPU's memory is.
            let mut bytes = vec![0u128; index.as_bytes().len().div_ceil(16)];
            for (word, bytes) in bytes.iter_mut().zip(index.as_bytes().chunks(16)) {
                let mut whole = [0; 16];
                whole[..bytes.len()].copy_from_slice(bytes);
                *word = u128::from_le_bytes(whole);
            }
            let device = on_gpu(&index, bytes.as_ptr() as u64);
            let own = keys.len();
            keys.extend((0..own).map(|_| random.u64(..)));
            let mut want = vec![0; keys.len()];
            let mut got = vec![7; keys.len()];
            index.positions(&keys, &mut want);
            // SAFETY: the addresses are those of the index's bytes, and both arrays have that many words.
            unsafe { slots_of(&device, keys.as_ptr(), got.as_mut_ptr(), keys.len() as u64) };
            assert_eq!(got, want, "{count} keys, {width:?}");
            assert!(got[..own].iter().all(|&slot| slot < own as u64));
            assert!(own < 100 || got[own..].contains(&KeyIndex::ABSENT));
        }
    }
}
