//! What is looked up: ids, bags, weights, checked.

use std::ops::Range;
use std::path::Path;

use serde_json::Value;
use warprow_formats::refuse_special;
use warprow_lookup::Ids;
use warprow_workload::units;
use warprow_workload::{NpyHeader, RecordedKeys, TraceFile};

use super::arguments::{LookupArgs, Pooling};
use crate::failure::Failure;
use crate::hotness::read_numbers;

/// What is looked up, checked.
pub(super) struct Request {
    pub(super) ids: RecordedKeys,
    /// Where each bag begins, and the end of the last; `None`: not pooled.
    pub(super) bags: Option<Vec<usize>>,
    pub(super) weights: Option<Vec<f32>>,
}

impl Request {
    pub(super) fn read(args: &LookupArgs) -> Result<Self, Failure> {
        let ids = match (&args.ids, &args.ids_file) {
            (Some(list), _) => parse_ids(list)?,
            (_, Some(file)) => read_file(file)?,
            _ => return Err(Failure::usage("", "no ids").remedy("give --ids or --ids-file")),
        };
        if args.pooling == Pooling::None && args.offsets.is_some() {
            return Err(
                Failure::usage("--offsets", "bags are for pooling").remedy("add --pooling sum or --pooling mean")
            );
        }
        if args.pooling != Pooling::Sum && args.weights.is_some() {
            return Err(Failure::usage("--weights", "only sums are weighted").remedy("add --pooling sum"));
        }
        let bags = match (&args.offsets, args.pooling) {
            (_, Pooling::None) => None,
            (None, _) => Some(vec![0, ids.len()]),
            (Some(file), _) => Some(offsets(file, ids.len(), args.include_last_offset)?),
        };
        let weights = args.weights.as_deref().map(read_weights).transpose()?;
        if let Some(weights) = &weights
            && weights.len() != ids.len()
        {
            let what = format!(
                "{} for {}",
                units::plural(weights.len() as u64, "weight"),
                units::plural(ids.len() as u64, "id")
            );
            return Err(Failure::input("--weights", what).remedy("give one weight for each id"));
        }
        Ok(Self { ids, bags, weights })
    }

    /// Rows of the output: one for each bag, or for each id.
    pub(super) fn rows(&self) -> u64 {
        self.bags.as_ref().map_or(self.ids.len(), |bags| bags.len() - 1) as u64
    }

    /// Whole bags, or ids, that are looked up together: up to `most`, but for a single bag of more.
    pub(super) fn chunks(&self, most: usize) -> Vec<Chunk> {
        let ids = self.ids.len();
        let Some(bags) = &self.bags else {
            let starts = (0..ids).step_by(most);
            return starts
                .map(|start| start..ids.min(start + most))
                .map(|ids| Chunk { bags: ids.clone(), ids })
                .collect();
        };
        let mut chunks: Vec<Chunk> = Vec::new();
        for (bag, ends) in bags.windows(2).enumerate() {
            let &[begin, end] = ends else { continue };
            match chunks.last_mut() {
                Some(chunk) if end - chunk.ids.start <= most && chunk.bags.len() < most => {
                    (chunk.bags.end, chunk.ids.end) = (bag + 1, end);
                }
                _ => chunks.push(Chunk { bags: bag..bag + 1, ids: begin..end }),
            }
        }
        chunks
    }

    pub(super) fn ids_in(&self, range: &Range<usize>) -> Ids<'_> {
        match &self.ids {
            RecordedKeys::Signed(ids) => ids[range.clone()].into(),
            RecordedKeys::Unsigned(ids) => ids[range.clone()].into(),
        }
    }

    pub(super) fn id(&self, position: usize) -> Value {
        match &self.ids {
            RecordedKeys::Signed(ids) => ids.get(position).copied().into(),
            RecordedKeys::Unsigned(ids) => ids.get(position).copied().into(),
        }
    }
}

/// Bags, and the ids in them, that are looked up together.
pub(super) struct Chunk {
    pub(super) bags: Range<usize>,
    pub(super) ids: Range<usize>,
}

pub(in crate::commands) fn parse_ids(list: &str) -> Result<RecordedKeys, Failure> {
    let parse = |text: &str| {
        text.trim().parse::<i128>().map_err(|_| {
            Failure::usage(text, format!("{text:?} is no id"))
                .remedy("give whole numbers separated by commas: --ids 7,42,-1")
        })
    };
    let list = list.trim();
    let ids = match list.strip_suffix(',').unwrap_or(list) {
        "" => Vec::new(),
        list => list.split(',').map(parse).collect::<Result<Vec<_>, _>>()?,
    };
    if let Ok(signed) = ids.iter().map(|&id| i64::try_from(id)).collect() {
        return Ok(RecordedKeys::Signed(signed));
    }
    let unsigned: Result<Vec<u64>, _> = ids.iter().map(|&id| u64::try_from(id)).collect();
    unsigned.map(RecordedKeys::Unsigned).map_err(|_| {
        Failure::usage("--ids", "the ids do not fit one 64-bit type")
            .remedy("look negative ids and those from 2⁶³ on up separately")
    })
}

pub(in crate::commands) fn read_file(argument: &str) -> Result<RecordedKeys, Failure> {
    let Ok(file) = argument.parse::<TraceFile>();
    read_numbers(&file)
}

fn there_are(ids: usize) -> String {
    format!("there {} {}", if ids == 1 { "is" } else { "are" }, units::plural(ids as u64, "id"))
}

/// Where bags begin, with the end of the last.
fn offsets(argument: &str, ids: usize, include_last: bool) -> Result<Vec<usize>, Failure> {
    let given: Vec<i128> = match read_file(argument)? {
        RecordedKeys::Signed(offsets) => offsets.into_iter().map(i128::from).collect(),
        RecordedKeys::Unsigned(offsets) => offsets.into_iter().map(i128::from).collect(),
    };
    let mut bags: Vec<usize> = Vec::with_capacity(given.len() + 1);
    for (index, offset) in given.into_iter().enumerate() {
        let before = bags.last().copied();
        let rule = match usize::try_from(offset) {
            Ok(offset) if offset <= ids => match before {
                None if offset != 0 => "the first must be 0",
                Some(before) if offset < before => "none may be smaller than the one before",
                _ => {
                    bags.push(offset);
                    continue;
                }
            },
            _ => "it must not be negative nor pass the number of ids",
        };
        let what = format!("offsets[{index}] is {offset}: {rule}");
        return Err(Failure::input(argument, what).remedy(there_are(ids)));
    }
    let refuse = |what: String, remedy| Err(Failure::input(argument, what).remedy(remedy));
    match bags.last() {
        None if include_last || ids > 0 => refuse("it holds no offsets".to_owned(), "the first bag begins at 0"),
        Some(&last) if include_last && last != ids => refuse(
            format!("the last offset is {last}, {}", there_are(ids)),
            "give the number of ids at the end, or leave --include-last-offset out",
        ),
        _ => {
            if !include_last {
                bags.push(ids);
            }
            Ok(bags)
        }
    }
}

fn read_weights(path: &Path) -> Result<Vec<f32>, Failure> {
    let subject = path.display().to_string();
    refuse_special(path)?;
    let bytes = std::fs::read(path).map_err(|error| Failure::io(&subject, "cannot be read", &error))?;
    let header = NpyHeader::read(&mut &bytes[..]).map_err(|error| Failure::input(&subject, error.to_string()))?;
    let data = bytes.get(header.data_at as usize..).unwrap_or_default();
    if header.descr != "<f4" || !header.is_c_order() {
        return Err(Failure::input(&subject, format!("its elements are {}; weights are <f4", header.descr))
            .remedy("save weights.astype(numpy.float32)"));
    }
    if header.elements().saturating_mul(4) != data.len() as u128 {
        return Err(Failure::input(&subject, "it is cut off or damaged").remedy("write it again, with numpy.save"));
    }
    Ok(data.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::lookup::limits::CHUNK;
    use crate::failure::Class;

    fn request(ids: usize, bags: Option<Vec<usize>>) -> Request {
        Request { ids: RecordedKeys::Signed(vec![0; ids]), bags, weights: None }
    }

    #[test]
    fn chunks_cover_every_id_and_bag_once() {
        let sizes = [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7];
        for ids in sizes {
            for most in [CHUNK, 1000] {
                let chunks = request(ids, None).chunks(most);
                assert_eq!(chunks.iter().map(|chunk| chunk.ids.len()).sum::<usize>(), ids);
                assert!(chunks.iter().all(|chunk| chunk.ids == chunk.bags && chunk.ids.len() <= most));
            }
        }
        let bags = vec![0, 0, 5, CHUNK, CHUNK, 2 * CHUNK + 9, 2 * CHUNK + 9];
        let chunks = request(2 * CHUNK + 9, Some(bags.clone())).chunks(CHUNK);
        let mut bag = 0;
        let mut id = 0;
        for chunk in &chunks {
            assert_eq!((chunk.bags.start, chunk.ids.start), (bag, id));
            assert_eq!((bags[chunk.bags.start], bags[chunk.bags.end]), (chunk.ids.start, chunk.ids.end));
            (bag, id) = (chunk.bags.end, chunk.ids.end);
        }
        assert_eq!((bag, id), (6, 2 * CHUNK + 9));
    }

    #[test]
    fn ids_are_taken_as_they_fit() {
        assert_eq!(parse_ids("7, -1,").unwrap(), RecordedKeys::Signed(vec![7, -1]));
        assert_eq!(parse_ids("").unwrap(), RecordedKeys::Signed(vec![]));
        assert_eq!(parse_ids("18446744073709551615,0").unwrap(), RecordedKeys::Unsigned(vec![u64::MAX, 0]));
        for bad in ["x", "1.5", "1,,2", ",1", "-1,18446744073709551615", "18446744073709551616"] {
            assert_eq!(parse_ids(bad).unwrap_err().class, Class::Usage, "{bad}");
        }
    }

    #[test]
    fn offsets_are_those_of_torch() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o.i64");
        let read_with = |given: &[i64], ids, include_last| {
            std::fs::write(&path, given.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
            offsets(path.to_str().unwrap(), ids, include_last).map_err(|failure| failure.message)
        };
        let read = |given: &[i64], ids| read_with(given, ids, false);
        assert_eq!(read(&[0, 2, 2], 5), Ok(vec![0, 2, 2, 5]));
        assert_eq!(read(&[0, 2, 2, 5], 5), Ok(vec![0, 2, 2, 5, 5]), "an empty bag at the end");
        assert_eq!(read(&[0, 0, 0], 0), Ok(vec![0, 0, 0, 0]));
        assert_eq!(read(&[], 0), Ok(vec![0]), "no bag");
        assert!(read(&[], 5).unwrap_err().contains("no offsets"));
        assert_eq!(read_with(&[0, 2, 2, 5], 5, true), Ok(vec![0, 2, 2, 5]));
        assert_eq!(read_with(&[0], 0, true), Ok(vec![0]));
        assert!(read_with(&[0, 2], 5, true).unwrap_err().contains("the last offset is 2, there are 5 ids"));
        assert!(read_with(&[0, 0], 1, true).unwrap_err().contains("the last offset is 0, there is 1 id"));
        assert!(read_with(&[], 0, true).unwrap_err().contains("no offsets"));
        assert_eq!(read(&[1, 2], 5), Err("offsets[0] is 1: the first must be 0".into()));
        assert!(read(&[0, 3, 2], 5).unwrap_err().starts_with("offsets[2] is 2: none may be smaller"));
        assert!(read(&[0, 6], 5).unwrap_err().starts_with("offsets[1] is 6: it must not be negative nor pass"));
        assert!(read(&[0, -1], 5).unwrap_err().starts_with("offsets[1] is -1"));
    }
}
