//! Tier proposals in files, for loading by them.
//!
//! A safetensors file: the proposal as JSON in its metadata under `warprow.plan`, and for each table a tensor of its name that lists
//! ids in the order of their ranks, as far as the trace spoke of them; the others follow in the order of their ids.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use warprow_formats::open_regular;
use warprow_layout::Ranks;

use crate::error::ProposalError;
use crate::order::{HotnessOrder, ranks_of};
use crate::tier_proposal::{OrderedProposal, TableProposal, TierProposal};

/// The name under which the proposal stands in the metadata.
const KEY: &str = "warprow.plan";

/// A tier proposal, as it stands in a file.
#[derive(Debug, Clone)]
pub struct ProposalFile {
    /// What goes to which tier.
    pub tiers: TierProposal,
    path: String,
    bytes: Vec<u8>,
}

impl ProposalFile {
    /// The bytes of a file for `proposal`.
    pub fn encode(proposal: &OrderedProposal) -> Result<Vec<u8>, ProposalError> {
        let fail = |reason: String| ProposalError::File { path: "to be written".to_owned(), reason };
        let json = serde_json::to_string(&proposal.tiers).map_err(|error| fail(error.to_string()))?;
        let data: Vec<(Dtype, Vec<u8>)> = proposal.orders.iter().map(list).collect();
        let views = proposal.tiers.tables.iter().zip(&data).map(|(table, (dtype, bytes))| {
            let width = if *dtype == Dtype::U32 { 4 } else { 8 };
            Ok((&*table.name, TensorView::new(*dtype, vec![bytes.len() / width], bytes)?))
        });
        let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>();
        let metadata = HashMap::from([(KEY.to_owned(), json)]);
        let encoded = views.and_then(|views| safetensors::serialize(views, Some(metadata)));
        encoded.map_err(|error| fail(error.to_string()))
    }

    /// Reads a file, and checks it as far as that is possible without its tables.
    pub fn read(path: &Path) -> Result<Self, ProposalError> {
        let name = path.display().to_string();
        let fail = |reason: String| ProposalError::File { path: name.clone(), reason };
        // A pipe would have it wait.
        let mut file = open_regular(path).map_err(|error| match error.io_error() {
            Some(error) => fail(format!("cannot be read: {error}")),
            None => fail(error.what),
        })?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| fail(format!("cannot be read: {error}")))?;
        Self::decode(&name, bytes)
    }

    /// The proposal in the bytes of a file; `name` is what errors call it.
    pub fn decode(name: &str, bytes: Vec<u8>) -> Result<Self, ProposalError> {
        let fail = |reason: String| ProposalError::File { path: name.to_owned(), reason };
        let damaged = |error: &dyn std::fmt::Display| fail(format!("it is no plan, or is damaged or cut off: {error}"));
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| damaged(&error))?;
        let json = metadata.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
        let json = json.ok_or_else(|| fail(format!("it is a safetensors file without {KEY:?} in its metadata")))?;
        let tiers: TierProposal = serde_json::from_str(json).map_err(|error| damaged(&error))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| damaged(&error))?;
        for table in &tiers.tables {
            let tensor = tensors.tensor(&table.name).map_err(|error| damaged(&error))?;
            if !matches!(tensor.dtype(), Dtype::U32 | Dtype::U64) || tensor.shape().len() != 1 {
                return Err(fail(format!("its list of table {:?} is none of ids", table.name)));
            }
            let hot = table.hbm_rows.checked_add(table.dram_rows);
            if hot.is_none_or(|hot| hot > table.rows) {
                return Err(fail(format!("it keeps more rows of table {:?} in memory than there are", table.name)));
            }
        }
        Ok(Self { tiers, path: name.to_owned(), bytes })
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it says of a table of that name.
    pub fn table(&self, name: &str) -> Option<&TableProposal> {
        self.tiers.tables.iter().find(|table| table.name == name)
    }

    /// Whether it is for a table that is looked up by keys.
    pub fn is_keyed(&self, name: &str) -> bool {
        self.table(name).is_some_and(|table| table.index_bytes.is_some())
    }

    /// The keys of a table that has `rows` rows, as far as the trace spoke of them, in the order of their ranks, an `i64` by its bits; and how
    /// many of the first ranks belong in memory.
    pub fn keys(&self, name: &str, rows: u64) -> Result<(Vec<u64>, u64), ProposalError> {
        let fail = |reason: String| ProposalError::File { path: self.path.clone(), reason };
        match self.is_keyed(name) {
            true => self.list(name, rows),
            false => Err(fail(format!("it is for a table {name:?} that is looked up by ids, this one is by keys"))),
        }
    }

    /// The permutation id → rank of a table that has `rows` rows, and how many of the first ranks belong in memory.
    pub fn ranks(&self, name: &str, rows: u64) -> Result<(Ranks, u64), ProposalError> {
        let fail = |reason: String| ProposalError::File { path: self.path.clone(), reason };
        if self.is_keyed(name) {
            return Err(fail(format!("it is for a table {name:?} that is looked up by keys, this one is by ids")));
        }
        let (ids, hot) = self.list(name, rows)?;
        let ranks = ranks_of(rows, ids.into_iter());
        let ranks = ranks.map_err(|error| fail(format!("its list of table {name:?} is damaged: {error}")))?;
        Ok((ranks, hot))
    }

    /// The ids of a table that has `rows` rows, as far as the trace spoke of them, or its keys if it is `keyed` (an `i64` by its bits), in
    /// the order of their ranks; and how many of the first belong in memory.
    pub fn listed(&self, name: &str, rows: u64, keyed: bool) -> Result<(Vec<u64>, u64), ProposalError> {
        match keyed {
            true => self.keys(name, rows),
            // Checks that each id comes once.
            false => self.ranks(name, rows).and_then(|_| self.list(name, rows)),
        }
    }

    /// What it lists of a table that has `rows` rows, and how many of the first ranks belong in memory.
    fn list(&self, name: &str, rows: u64) -> Result<(Vec<u64>, u64), ProposalError> {
        let fail = |reason: String| ProposalError::File { path: self.path.clone(), reason };
        let known = || self.tiers.tables.iter().map(|table| &*table.name).collect::<Vec<_>>().join(", ");
        let table =
            self.table(name).ok_or_else(|| fail(format!("it has no table {name:?}; its tables: {}", known())))?;
        if table.rows != rows {
            let reason = format!("it is for a table {name:?} of {} rows, this one has {rows}", table.rows);
            return Err(fail(reason));
        }
        let tensors = SafeTensors::deserialize(&self.bytes).map_err(|error| fail(error.to_string()))?;
        let tensor = tensors.tensor(name).map_err(|error| fail(error.to_string()))?;
        let ids: Vec<u64> = match tensor.dtype() {
            Dtype::U32 => tensor.data().as_chunks().0.iter().map(|&id| u32::from_le_bytes(id).into()).collect(),
            _ => tensor.data().as_chunks().0.iter().map(|&id| u64::from_le_bytes(id)).collect(),
        };
        Ok((ids, table.hbm_rows + table.dram_rows))
    }
}

fn list(order: &HotnessOrder) -> (Dtype, Vec<u8>) {
    match order.rows() <= 1 << 32 && !order.is_keyed() {
        true => (Dtype::U32, order.ids().flat_map(|id| (id as u32).to_le_bytes()).collect()),
        false => (Dtype::U64, order.ids().flat_map(u64::to_le_bytes).collect()),
    }
}
