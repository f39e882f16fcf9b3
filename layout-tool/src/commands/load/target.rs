//! Where tables are loaded to: the store, the model's name, how, and which tables were there before.

use warprow_formats::{TableFile, refuse_special};
use warprow_store::{LoadOptions, OpenOptions, Store, StoreError, TableInfo};

use super::arguments::LoadArgs;
use super::ordering::followed;
use super::outline::{outline, with_index};
use super::sources::Sources;
use crate::failure::Failure;
use crate::keyed::RowNames;
use crate::{drives, file};

/// The store that is loaded to, and how.
pub(super) struct Target {
    pub(super) store: Store,
    /// The model that the tables belong to.
    pub(super) model: String,
    pub(super) options: LoadOptions,
    /// One entry per table: the stored table whose order of rows it may take over.
    pub(super) followed: Vec<Option<TableInfo>>,
}

impl Target {
    /// Opens the store, unless it has tables of these names that are not to be replaced.
    pub(super) fn open(args: &LoadArgs, files: &[TableFile], sources: &Sources<'_>) -> Result<Self, Failure> {
        let options = OpenOptions::default();
        let store = drives::open(&args.drives, &if args.dry_run { options.with_read_only() } else { options })?;
        refuse_existing(&store, &sources.names(), args.replace || args.beside)?;
        let named = args.model.as_deref().or_else(|| args.files.first()?.file_stem()?.to_str());
        let model = named.unwrap_or("tables").to_owned();
        let follows = (args.replace || args.beside) && !args.forget_order && sources.proposal.is_none();
        let followed: Vec<Option<TableInfo>> = match follows {
            true => sources.chosen.iter().map(|chosen| followed(chosen, &sources.hotness, &store)).collect(),
            false => sources.chosen.iter().map(|_| None).collect(),
        };
        let options = load_options(args, files, &followed)?;
        Ok(Self { store, model, options, followed })
    }

    /// Whether there is room for the tables; once their keys were read, for the indexes too.
    pub(super) fn check_room(
        &self,
        args: &LoadArgs,
        sources: &Sources<'_>,
        keys: Option<&[RowNames<'_>]>,
    ) -> Result<(), Failure> {
        let outlines = sources.chosen.iter().zip(&self.followed).enumerate().map(|(at, (chosen, followed))| {
            let outline = outline(args, chosen, sources.is_permuted(chosen, followed.as_ref()))?;
            Ok(match keys.and_then(|keys| keys.get(at)) {
                Some(whose) => with_index(args, whose, outline),
                None => outline,
            })
        });
        self.store.check_load(&self.model, outlines.collect::<Result<_, Failure>>()?, &self.options)?;
        Ok(())
    }
}

/// How to load. The journal of `--resume` is of this command line, these files, and these tables whose order is taken over.
fn load_options(args: &LoadArgs, files: &[TableFile], followed: &[Option<TableInfo>]) -> Result<LoadOptions, Failure> {
    let mut options = LoadOptions::default();
    options.span = args.span.into();
    let options = if args.replace { options.with_replace() } else { options };
    let options = if args.beside { options.with_standby() } else { options };
    let Some(path) = &args.resume else { return Ok(options) };
    refuse_special(path)?;
    file::refuse_in_use(path)?;
    let orders = followed.iter().flatten().map(|old| format!("{:?} as in generation {}", old.name, old.generation));
    let sources = files.iter().map(TableFile::identity).chain(orders).collect::<Vec<_>>().join("\n");
    Ok(options.with_journal(path, format!("{sources}\n{args:?}")))
}

/// Better now than after minutes of counting.
fn refuse_existing(store: &Store, names: &[&str], replace: bool) -> Result<(), Failure> {
    match names.iter().find(|name| !replace && store.table(name).is_some()) {
        Some(&name) => Err(StoreError::TableExists { table: name.to_owned() }.into()),
        None => Ok(()),
    }
}
