//! Which format a trace is in.

use warprow_formats::{FileError, FileErrorKind};

use crate::spec::{TraceFormat, TraceSpec};
use crate::stream::Stream;
use crate::{list, norm};

impl TraceFormat {
    /// The format of the trace that `spec` names: as the name says, or as the path's ending or the first bytes do.
    pub fn of(spec: &TraceSpec) -> Result<Self, FileError> {
        if let Some(format) = spec.format {
            return Ok(format);
        }
        if spec.path.is_dir() {
            return Ok(Self::Parquet);
        }
        Ok(match &*spec.ending() {
            "u32" | "u64" | "i32" | "i64" => Self::Ids,
            "npy" => Self::Npy,
            "csv" | "tsv" => Self::Csv,
            "parquet" => Self::Parquet,
            "npz" => Self::Npz,
            "txt" => match list::of(&spec.path)? {
                Some(files)
                    if files.iter().all(|file| file.extension().is_some_and(|extension| extension == "parquet")) =>
                {
                    Self::Parquet
                }
                Some(_) => Self::Norm,
                None => Self::Csv,
            },
            "json" if spec.path.ends_with("_metadata.json") => Self::Parquet,
            _ if Stream::open(&spec.path).is_ok_and(|mut stream| norm::is(&mut stream)) => Self::Norm,
            _ if spec.keys.is_some() => Self::Ids,
            _ => {
                let what = "its name does not tell what kind of trace it is";
                let remedy = "end it in .csv, .npy, .npz, .parquet, .u32 or .i64; or say norm:PATH, raw:PATH:labels=1,dense=13,slots=26 \
                              or PATH:u64 for bare integers";
                // That it is not there is told first.
                drop(Stream::open(&spec.path)?);
                return Err(FileError::new(FileErrorKind::Name, &spec.path, what, remedy));
            }
        })
    }
}
