//! Files of numbers: ids, or counts of rows.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use warprow_formats::refuse_special;
use warprow_workload::{NpyHeader, RecordedKeys, TraceFile};

use crate::failure::{Class, Failure};

/// The ids in a file, at least one.
pub fn read_keys(file: &TraceFile) -> Result<RecordedKeys, Failure> {
    let keys = read_numbers(file)?;
    match keys.is_empty() {
        false => Ok(keys),
        true => Err(Failure::input(file.path.display().to_string(), "it holds no ids").remedy("look at the file")),
    }
}

/// The whole numbers in a file, if any.
pub fn read_numbers(file: &TraceFile) -> Result<RecordedKeys, Failure> {
    refuse_column(file)?;
    file.read().map_err(|error| {
        let failure = Failure::from(error);
        // What a list lacks is a matter of the file, not of the command line.
        let class = if failure.class == Class::Usage { Class::Input } else { failure.class };
        Failure { class, ..failure }
    })
}

/// A column or a type where the file's name says that there is none, or another.
fn refuse_column(file: &TraceFile) -> Result<(), Failure> {
    let Some(column) = &file.column else { return Ok(()) };
    let ending =
        file.path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    let what = match &*ending {
        "npy" => "a .npy file has no columns".to_owned(),
        "i32" | "i64" | "u32" | "u64" if ending != *column => format!("its name says that it holds {ending}"),
        _ => return Ok(()),
    };
    let subject = format!("{}:{column}", file.path.display());
    Err(Failure::usage(subject, what).remedy(format!("leave :{column} out")))
}

/// One count a row: whole numbers, or floating-point ones, of which only the order counts.
pub(super) fn read_counts(file: &TraceFile) -> Result<Vec<u64>, Failure> {
    refuse_special(&file.path)?;
    let subject = file.path.display().to_string();
    let negative = |row: usize, value: &str| {
        Failure::input(&subject, format!("the count of row {row} is {value}")).remedy("give counts of 0 and more")
    };
    if let Some(floats) = read_floats(&file.path) {
        let floats = floats.map_err(|error| Failure::io(&subject, "cannot be read", &error))?;
        let order = |(row, value): (usize, f64)| match value >= 0.0 {
            // The bits of non-negative floats are in their order.
            true => Ok((value + 0.0).to_bits()),
            false => Err(negative(row, &value.to_string())),
        };
        return floats.into_iter().enumerate().map(order).collect();
    }
    match read_numbers(file)? {
        RecordedKeys::Unsigned(counts) => Ok(counts),
        RecordedKeys::Signed(counts) => {
            let count =
                |(row, value): (usize, i64)| u64::try_from(value).map_err(|_| negative(row, &value.to_string()));
            counts.into_iter().enumerate().map(count).collect()
        }
    }
}

/// The numbers of a `.npy` file of `<f4` or `<f8` whose size is as its header says; `None` for anything else.
fn read_floats(path: &Path) -> Option<std::io::Result<Vec<f64>>> {
    let mut reader = BufReader::new(File::open(path).ok()?);
    let len = reader.get_ref().metadata().ok()?.len();
    let header = NpyHeader::read(&mut reader).ok()?;
    let width = match &*header.descr {
        "<f4" => 4,
        "<f8" => 8,
        _ => return None,
    };
    let whole = header.elements().checked_mul(width) == len.checked_sub(header.data_at).map(u128::from);
    if !whole || !header.is_c_order() {
        return None;
    }
    let mut bytes = Vec::new();
    Some(reader.read_to_end(&mut bytes).map(|_| match width {
        4 => bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word).into()).collect(),
        _ => bytes.as_chunks().0.iter().map(|&word| f64::from_le_bytes(word)).collect(),
    }))
}
