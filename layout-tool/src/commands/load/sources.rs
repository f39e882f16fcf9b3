//! What is loaded: the tables of the files that were chosen, and what tells the order of their rows.

use warprow_formats::{FileError, TableFile};
use warprow_layout::MAX_NAME;
use warprow_plan::ProposalFile;
use warprow_store::TableInfo;

use super::arguments::LoadArgs;
use super::keys::name_keys;
use super::ordering::{refuse_strangers, refuse_two};
use super::outline::outline;
use crate::failure::Failure;
use crate::hotness::{Hot, HotnessFile};
use crate::select::{Chosen, Selection};

/// The tables that are loaded, and what tells the order of their rows.
pub(super) struct Sources<'a> {
    pub(super) chosen: Vec<Chosen<'a>>,
    /// `--hotness`
    pub(super) hotness: Vec<Hot>,
    /// `--plan`
    pub(super) proposal: Option<ProposalFile>,
}

/// Opens the files, whose tables then have their keys.
pub(super) fn open(args: &LoadArgs) -> Result<Vec<TableFile>, Failure> {
    let reading = args.reading.options();
    let files = args.files.iter().map(|path| TableFile::open_with(path, &reading));
    let mut files = files.collect::<Result<Vec<_>, FileError>>()?;
    args.keys.iter().try_for_each(|argument| name_keys(&mut files, argument))?;
    Ok(files)
}

impl<'a> Sources<'a> {
    /// Chooses tables of `files`, and refuses what does not fit them.
    pub(super) fn choose(args: &LoadArgs, files: &'a [TableFile]) -> Result<Self, Failure> {
        let selection =
            Selection { tensors: args.tensor.clone(), all: args.all, strip_prefix: args.strip_prefix.clone() };
        let command = format!("warprow load {}", args.drives.pasteable());
        let chosen = selection.choose(files, &command)?;
        let names: Vec<&str> = chosen.iter().map(|chosen| &*chosen.name).collect();
        if let Some(name) = names.iter().find(|name| name.len() > MAX_NAME) {
            let what = format!("its name has {} bytes, the most are {MAX_NAME}", name.len());
            return Err(Failure::input(*name, what).remedy("give it another: --tensor NAME=GLOB"));
        }
        let hotness = args.hotness.iter().map(|argument| HotnessFile::parse(argument, &names));
        let hotness = hotness.collect::<Result<Vec<_>, _>>()?;
        refuse_strangers(&hotness, &names)?;
        let hotness = hotness.into_iter().map(|file| file.bind(&names)).collect::<Result<Vec<_>, _>>()?;
        refuse_two(&hotness)?;
        let proposal = args.plan.as_deref().map(ProposalFile::read).transpose()?;
        if let Some(proposal) = &proposal {
            chosen.iter().try_for_each(|chosen| refuse_foreign(proposal, args, chosen))?;
        }
        Ok(Self { chosen, hotness, proposal })
    }

    /// The names under which tables are loaded.
    pub(super) fn names(&self) -> Vec<&str> {
        self.chosen.iter().map(|chosen| &*chosen.name).collect()
    }

    /// Whether the table's rows are put in another order than the file's. `followed` is the table whose order it may take over.
    pub(super) fn is_permuted(&self, chosen: &Chosen<'_>, followed: Option<&TableInfo>) -> bool {
        self.proposal.is_some() || followed.is_some() || self.hotness.iter().any(|hot| hot.is_of(&chosen.name))
    }
}

/// A tier proposal is for rows of certain sizes: with others, other rows belong in memory.
fn refuse_foreign(proposal: &ProposalFile, args: &LoadArgs, chosen: &Chosen<'_>) -> Result<(), Failure> {
    let refuse = |what: String| {
        let subject = args.plan.as_ref().map_or_else(String::new, |path| path.display().to_string());
        Err(Failure::input(subject, what).remedy("make a plan for all tables that are loaded, as they are"))
    };
    let Some(table) = proposal.table(&chosen.name) else {
        let known = proposal.tiers.tables.iter().map(|table| &*table.name).collect::<Vec<_>>().join(", ");
        return refuse(format!("it has no table {:?}; its tables are {known}", chosen.name));
    };
    let spec = outline(args, chosen, true)?;
    let shape = format!("{} × {} {}", spec.rows, spec.dim, spec.dtype);
    let planned = format!("{} × {} {}", table.rows, table.dim, table.dtype);
    match shape == planned {
        true => Ok(()),
        false => refuse(format!("it is for a table {:?} of {planned}; this one is {shape}", chosen.name)),
    }
}
