//! A store in memory with one table, and what it must have.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use warprow_keys::Options;
use warprow_layout::FormatOptions;
use warprow_soft_controller::{Namespace, Ram, SoftController};
use warprow_store::{
    DType, Device, KeyIndex, Keyed, LoadOptions, OpenOptions, Ranks, RowOrder, Store, TableLoad, TableSpec,
};

/// Rows by key, `i64`s by their bits.
pub(crate) type Model = BTreeMap<u64, Vec<u8>>;

/// How rows are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ids are ranks.
    Ids,
    /// Ids in a random order.
    Permuted,
    /// Sparse keys.
    U64,
    /// Sparse keys, some below zero.
    I64,
}

pub(crate) const KINDS: [Kind; 4] = [Kind::Ids, Kind::Permuted, Kind::U64, Kind::I64];

pub(crate) struct Rig {
    pub(crate) drives: Vec<Arc<SoftController>>,
    pub(crate) store: Store,
    pub(crate) kind: Kind,
    pub(crate) dim: u32,
    pub(crate) model: Model,
}

pub(crate) const NAME: &str = "items";

impl Rig {
    /// With `rows` rows of `dim` floats.
    pub(crate) fn new(kind: Kind, rows: u64, dim: u32, lba: u32, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let drive = |name: &str| {
            let namespace = Namespace::new(Ram::new(96 << 20).unwrap()).lba(lba);
            SoftController::builder().name(name).serial(name).namespace(namespace).permute().build().unwrap()
        };
        let drives = vec![drive("one"), drive("two")];
        let devices: Vec<Device> = drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect();
        let format = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
        let store = Store::create(&devices, &format, &OpenOptions::default()).unwrap();
        let row_bytes = dim as usize * 4;
        let mut bytes = vec![0; rows as usize * row_bytes];
        random.fill(&mut bytes);
        let mut keys: Vec<u64> = match kind {
            Kind::Ids | Kind::Permuted => (0..rows).collect(),
            Kind::U64 => (0..rows).map(|i| i << 40 | random.u64(..1 << 40)).collect(),
            Kind::I64 => (0..rows).map(|i| (i as i64 - rows as i64 / 2) as u64).collect(),
        };
        if matches!(kind, Kind::U64 | Kind::I64) {
            random.shuffle(&mut keys);
        }
        let mut spec = TableSpec::new(NAME, rows, dim, DType::F32);
        (spec.row_crc, spec.permuted) = (random.bool(), kind == Kind::Permuted);
        let load = |load: TableLoad<'_>| {
            store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        };
        let source = &bytes[..];
        let options = Options::default().with_threads(1);
        let go_on = &mut |_| ControlFlow::Continue(());
        match kind {
            Kind::Ids => load(TableLoad::new(&spec, &source)),
            Kind::Permuted => {
                let mut ranks: Vec<u32> = (0..rows as u32).collect();
                random.shuffle(&mut ranks);
                let ranks = Ranks::from_u32(ranks).unwrap();
                load(TableLoad::new(&spec, &source).with_ranks(&ranks));
            }
            Kind::U64 => {
                let index = Arc::new(KeyIndex::build(&keys[..], &options, go_on).unwrap());
                let source_keys = &keys[..];
                let keyed = Keyed::new(index, &source_keys, RowOrder::Slots, true).unwrap();
                load(TableLoad::new(&spec.clone().keyed(&keyed), &source).with_keys(&keyed));
            }
            Kind::I64 => {
                let signed: Vec<i64> = keys.iter().map(|&key| key as i64).collect();
                let index = Arc::new(KeyIndex::build(&signed[..], &options, go_on).unwrap());
                let source_keys = &signed[..];
                let keyed = Keyed::new(index, &source_keys, RowOrder::Given, true).unwrap();
                load(TableLoad::new(&spec.clone().keyed(&keyed), &source).with_keys(&keyed));
            }
        }
        let model = keys.iter().copied().zip(bytes.chunks_exact(row_bytes).map(<[u8]>::to_vec)).collect();
        Self { drives, store, kind, dim, model }
    }

    /// Opens the store anew, from what the drives have.
    pub(crate) fn reopen(self) -> Self {
        let Self { drives, store, kind, dim, model } = self;
        drop(store);
        let devices: Vec<Device> = drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect();
        let store = Store::open(&devices, &OpenOptions::default()).unwrap();
        Self { drives, store, kind, dim, model }
    }

    /// What the store has, by key.
    pub(crate) fn stored(&self) -> Model {
        let ids = self.store.ranks(NAME).unwrap().map(|ranks| ranks.inverse());
        let keys = self.store.keys(NAME).unwrap();
        let mut found = Model::new();
        self.store
            .scan(NAME, 0..u64::MAX, &mut |rank, row| {
                let key = match (&keys, &ids) {
                    (Some(keys), _) => keys[rank as usize],
                    (None, Some(ids)) => ids.get(rank).unwrap(),
                    (None, None) => rank,
                };
                assert!(found.insert(key, row.to_vec()).is_none());
                ControlFlow::Continue(())
            })
            .unwrap();
        found
    }

    /// Panics unless the store has what it must, and its checksums fit.
    pub(crate) fn check(&self, what: &str) {
        let found = self.stored();
        assert_eq!(found.len(), self.model.len(), "{what}");
        for (key, row) in &self.model {
            assert!(found.get(key) == Some(row), "{what}: the row of key {key} differs");
        }
        let verified = self.store.verify(NAME, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(verified.damaged == 0 && verified.bad.is_empty(), "{what}: {verified:?}");
    }

    pub(crate) fn keyset(&self, keys: Vec<u64>) -> warprow_passes::Keyset {
        match self.kind {
            Kind::I64 => warprow_passes::Keyset::signed(keys.into_iter().map(|key| key as i64).collect()),
            _ => warprow_passes::Keyset::new(keys),
        }
    }
}
