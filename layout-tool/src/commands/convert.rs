//! `warprow convert`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;
use warprow_traces::KeyType;
use warprow_traces::data::{DataFormat, DataSpec, DataWriteOptions, convert};
use warprow_workload::units;

use super::{CommandOutput, Context};
use crate::failure::Failure;
use crate::file::{refuse_in_use, refuse_inputs};
use crate::report::table;
use crate::screen::Unit;

/// Write a data set of a model (labels, dense features, ids of sparse features) in another format
///
/// A data set is `[KIND:]PATH[:SETTINGS]`; KIND is norm, raw, parquet, csv or npz. PATH is a file; a file list of Norm; of Parquet also a
/// folder or its _metadata.json. SETTINGS, with commas between them:
///
/// labels= and dense= say how many, or the names of columns, with / between them; features= the names of sparse features; slots=N or hotness=1/3/..
/// how many ids each sample of Raw has of each; i64 that keys of Norm and Raw are so wide; integers that labels and dense features of Raw
/// are integers; log that dense features become log(x + 1); hex that ids of text are hexadecimal; rows=A/B/.. how many rows each
/// feature's table has, which ids are compared with; sizes=A/B/.. the same, and the sizes of the features before are added to ids.
///
/// The file appears under its name when it is whole, or not at all.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow convert raw:day_0.bin:labels=1,dense=13,slots=26 day_0.parquet
  warprow convert csv:avazu.csv:labels=click,hex avazu.norm --to norm --keys i64
  warprow convert norm:file_list.txt:i64 train.npz")]
pub struct ConvertArgs {
    /// The data set: [KIND:]PATH[:SETTINGS]
    #[arg(value_name = "DATA")]
    input: String,
    /// The file to write
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// The format to write [default: by its ending, .parquet, .csv, .tsv or .npz]
    #[arg(long, value_name = "FORMAT")]
    to: Option<To>,
    /// The type of its keys, if it is norm or raw
    #[arg(long, value_name = "TYPE", default_value = "u32")]
    keys: Width,
    /// Leave out the sums of samples in norm
    #[arg(long)]
    no_sums: bool,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

/// A format to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum To {
    /// HugeCTR's Norm
    Norm,
    /// HugeCTR's Raw; each sample has equally many ids of a feature
    Raw,
    /// Plain columns, as HugeCTR reads them
    Parquet,
    /// Text; lists of ids as 5|7|9
    Csv,
    /// An archive of NumPy's arrays
    Npz,
}

/// A type of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Width {
    U32,
    I64,
}

impl ConvertArgs {
    fn to(&self) -> Result<DataFormat, Failure> {
        let ending = self.out.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        Ok(match (self.to, &*ending) {
            (Some(To::Norm), _) => DataFormat::Norm,
            (Some(To::Raw), _) => DataFormat::Raw,
            (Some(To::Parquet), _) | (None, "parquet") => DataFormat::Parquet,
            (Some(To::Csv), _) | (None, "csv" | "tsv") => DataFormat::Csv,
            (Some(To::Npz), _) | (None, "npz") => DataFormat::Npz,
            (None, _) => {
                let subject = self.out.display().to_string();
                return Err(Failure::usage(subject, "its name does not tell the format")
                    .remedy("add --to norm, raw, parquet, csv or npz"));
            }
        })
    }
}

/// What the command reads: what is said, what lists name, and the folder that a `_metadata.json` speaks of. A list that cannot be read is
/// told by who reads it.
fn inputs(spec: &DataSpec) -> Vec<(&'static str, PathBuf)> {
    let listed = spec.files().unwrap_or_default();
    let metadata = spec.paths.iter().filter(|path| path.ends_with("_metadata.json"));
    let folders = metadata.filter_map(|path| path.parent()).map(|folder| match folder.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => folder.to_owned(),
    });
    spec.paths.iter().cloned().chain(listed).chain(folders).map(|path| ("DATA", path)).collect()
}

pub(crate) fn run(args: &ConvertArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let to = args.to()?;
    let spec: DataSpec = args.input.parse().map_err(|error: warprow_traces::TraceSpecError| {
        Failure::usage(&args.input, error.to_string()).remedy("look at `warprow convert --help`")
    })?;
    refuse_inputs("OUT", &args.out, &inputs(&spec))?;
    refuse_in_use(&args.out)?;
    let keys = match args.keys {
        Width::U32 => KeyType::U32,
        Width::I64 => KeyType::I64,
    };
    let options = DataWriteOptions { keys, sums: !args.no_sums, force: args.force };
    let bar = context.screen.bar("converting", 0, Unit::Things);
    let done = convert(&spec, &args.out, to, &options, &mut |samples, total| {
        bar.set_length(total.unwrap_or(samples));
        bar.set_position(samples);
        context.interrupt.flow()
    });
    bar.finish_and_clear();
    let Some(done) = done? else { return Err(context.interrupt.failure()) };
    let bytes = std::fs::metadata(&args.out).map_or(0, |file| file.len());
    let out = args.out.display().to_string();
    let shape = &done.shape;
    let mut text = format!(
        "Wrote {}, {}, to {out} as {}:\n",
        units::plural(done.samples, "sample"),
        units::bytes(bytes),
        to.name()
    );
    let ids = |hotness: Option<u32>| hotness.map_or("any number".to_owned(), |each| each.to_string());
    let columns = [("label", &shape.labels), ("dense feature", &shape.dense)];
    let floats = columns
        .iter()
        .flat_map(|(what, names)| names.iter().map(|name| [name.clone(), (*what).to_owned(), String::new()]));
    let features = shape.features.iter();
    let features = features.map(|it| [it.name.clone(), "sparse feature".to_owned(), ids(it.hotness)]);
    text += &table(["name", "what", ">ids a sample"], floats.chain(features));
    let features: Vec<_> =
        shape.features.iter().map(|feature| json!({ "name": feature.name, "hotness": feature.hotness })).collect();
    if !done.left_out.is_empty() {
        text += &format!("Left out, because no feature has such a type: {}\n", done.left_out.join(", "));
    }
    CommandOutput::new(
        text,
        json!({
            "out": out, "from": done.from.name(), "to": to.name(), "samples": done.samples, "bytes": bytes,
            "labels": shape.labels, "dense": shape.dense, "features": features, "left_out": done.left_out,
        }),
    )
}
