//! NumPy's `.npz` archives: each member an array.

use std::io::BufReader;
use std::path::Path;

use crate::deflated::{Deflated, inflate};
use crate::error::{FileError, FileErrorKind};
use crate::extent::Extent;
use crate::file_table::FileTable;
use crate::found::Found;
use crate::input::Input;
use crate::input_reader::InputReader;
use crate::key_array::KeyArray;
use crate::npy::{self, array};
use crate::place::{KeyPlace, Place};
use crate::zip::{self, ZipPacking};

pub(crate) fn open(path: &Path) -> Result<Found, FileError> {
    let input = Input::open(path)?;
    let mut found = Found::default();
    for member in zip::read(&input)? {
        let Some(name) = member.name.strip_suffix(".npy").filter(|name| !name.is_empty()) else {
            found.skipped.push((member.name, "no array".into()));
            continue;
        };
        let table = match member.packing {
            ZipPacking::Stored => {
                let reader = BufReader::with_capacity(4096, InputReader { input: &input, at: member.at });
                array(&input, reader, member.bytes)
            }
            ZipPacking::Deflated => array(&input, inflate(&input, &member), member.bytes),
        };
        let list = match member.packing {
            ZipPacking::Stored => {
                npy::list(BufReader::with_capacity(4096, InputReader { input: &input, at: member.at }), member.bytes)
            }
            ZipPacking::Deflated => npy::list(inflate(&input, &member), member.bytes),
        };
        if let Some((rows, keys, head)) = list {
            let place = match member.packing {
                ZipPacking::Stored => {
                    let extent = Extent { input: 0, at: member.at.saturating_add(head), first: 0, rows };
                    KeyPlace::Flat(vec![extent])
                }
                ZipPacking::Deflated => KeyPlace::Deflated(Deflated { member: member.clone(), head }),
            };
            let stored = (member.packing == ZipPacking::Stored).then(|| member.clone());
            found.key_arrays.push(KeyArray { name: name.to_owned(), rows, keys, place, stored });
        }
        match table {
            Ok((rows, dim, dtype, head)) => {
                let mut table = FileTable::flat(name, rows, dim, dtype, member.at.saturating_add(head));
                table.place = match member.packing {
                    ZipPacking::Deflated => Place::Deflated(Deflated { member, head }),
                    ZipPacking::Stored => {
                        let at = member.at.saturating_add(head);
                        Place::Stored(Extent { input: 0, at, first: 0, rows }, member)
                    }
                };
                found.tables.push(table);
            }
            Err(error) if error.kind == FileErrorKind::Unsupported => {
                found.skipped.push((name.to_owned(), error.message()));
            }
            Err(error) => {
                let what = format!("in {}: {}", member.name, error.what);
                return Err(error.saying(what).at(member.at));
            }
        }
    }
    found.inputs.push(input);
    Ok(found)
}
