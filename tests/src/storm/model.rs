//! What a store may hold: for each row the values that it may have, narrowed by what is read.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use warprow_store::DType;

/// Which of a row's contents: given once in a storm, so that a row that is read tells which write it is of.
pub(crate) type Version = u64;

/// What never changes of a table.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dim: u32,
    /// Looked up by keys, rather than by ids from 0 on.
    pub(crate) keyed: bool,
    /// Rows have checksums.
    pub(crate) checked: bool,
}

impl Shape {
    pub(crate) fn row_bytes(&self) -> usize {
        (self.dim * self.dtype.size()) as usize
    }

    /// The row of that key and version. It is never all zeros, as the row of a missing key is.
    pub(crate) fn row(&self, key: i64, version: Version) -> Vec<u8> {
        let mut row = vec![0; self.row_bytes()];
        Rng::with_seed(version.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key as u64).fill(&mut row);
        row[0] |= 1;
        row
    }
}

/// An update of which the first so many records are in the table: at least `least`, at most `most`.
#[derive(Clone, Debug)]
struct Pending {
    records: Rc<Vec<(i64, Version)>>,
    /// Where each key stands in `records`.
    places: Rc<HashMap<i64, Vec<usize>>>,
    least: usize,
    most: usize,
}

/// A table: what is known of its rows, and the updates of which it is not known how much is there.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) shape: Rc<Shape>,
    known: Rc<BTreeMap<i64, Version>>,
    pending: Vec<Pending>,
    /// Keys were created since its generation was last written anew, or may have been.
    pub(crate) created: bool,
}

impl Table {
    pub(crate) fn new(shape: Shape, rows: BTreeMap<i64, Version>) -> Self {
        Self { shape: Rc::new(shape), known: Rc::new(rows), pending: Vec::new(), created: false }
    }

    /// The rows that it begins with, in the order of keys.
    pub(crate) fn first_rows(&self) -> Vec<(i64, Vec<u8>)> {
        self.known.iter().map(|(&key, &version)| (key, self.shape.row(key, version))).collect()
    }

    /// Keys that are there for sure.
    pub(crate) fn keys(&self) -> impl Iterator<Item = i64> {
        self.known.keys().copied()
    }

    /// All keys that may be there.
    pub(crate) fn possible_keys(&self) -> Vec<i64> {
        let pending = self.pending.iter().flat_map(|pending| pending.places.keys().copied());
        let mut keys: Vec<i64> = self.keys().chain(pending).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Rows that may have more than one value.
    #[cfg(test)]
    fn doubtful(&self) -> usize {
        self.pending.iter().map(|pending| pending.most - pending.least).sum()
    }

    /// An update of which the first `least` to `most` records are there.
    pub(crate) fn update(&mut self, records: Vec<(i64, Version)>, least: usize, most: usize) {
        let mut places: HashMap<i64, Vec<usize>> = HashMap::new();
        for (place, (key, _)) in records.iter().enumerate() {
            places.entry(*key).or_default().push(place);
        }
        let most = most.min(records.len());
        self.created |= records.iter().any(|(key, _)| !self.known.contains_key(key));
        self.pending.push(Pending { records: Rc::new(records), places: Rc::new(places), least: least.min(most), most });
        self.settle();
    }

    /// Rows that have one value by now.
    fn settle(&mut self) {
        while let Some(first) = self.pending.first().filter(|pending| pending.least == pending.most) {
            let known = Rc::make_mut(&mut self.known);
            known.extend(first.records[..first.most].iter().copied());
            self.pending.remove(0);
        }
    }

    /// All rows that the key may have, the last first. `None`: it may be missing.
    fn possible(&self, key: i64) -> Vec<Option<Version>> {
        let mut possible = Vec::new();
        for update in self.pending.iter().rev() {
            let places = update.places.get(&key).map_or(&[][..], |places| places);
            let sure = places.iter().rposition(|&place| place < update.least);
            for &place in places[sure.unwrap_or(0)..].iter().rev().filter(|&&place| place < update.most) {
                possible.push(Some(update.records[place].1));
            }
            if sure.is_some() {
                return possible;
            }
        }
        possible.push(self.known.get(&key).copied());
        possible
    }

    /// `row` was read as that of `key`; `None`: it was missing. An error if that cannot be; else the model knows more.
    pub(crate) fn read(&mut self, key: i64, row: Option<&[u8]>) -> Result<()> {
        let possible = self.possible(key);
        let is = |version: &Option<Version>| version.map(|version| self.shape.row(key, version)).as_deref() == row;
        let Some(&found) = possible.iter().find(|version| is(version)) else {
            let name = &self.shape.name;
            let of = |row: &[u8]| row.iter().take(12).map(|byte| format!("{byte:02x}")).collect::<String>();
            let may = possible
                .iter()
                .map(|version| version.map_or("none".into(), |version| of(&self.shape.row(key, version))));
            let may = may.take(4).collect::<Vec<_>>().join(" or ");
            let got = row.map_or("none".into(), of);
            bail!("table {name}, key {key}: the row is {got}; it may be {may}");
        };
        self.narrow(key, found).with_context(|| {
            format!("table {}, key {key}: its row is one that updates in their order cannot leave", self.shape.name)
        })
    }

    /// The key's row is of that version: what follows for the updates that are in doubt.
    fn narrow(&mut self, key: i64, found: Option<Version>) -> Result<()> {
        for update in self.pending.iter_mut().rev() {
            let places = update.places.get(&key).map_or(&[][..], |places| places);
            let place = places.iter().position(|&place| Some(update.records[place].1) == found);
            // Those behind the one that was found are not there.
            let behind = places.get(place.map_or(0, |place| place + 1));
            update.most = update.most.min(behind.copied().unwrap_or(usize::MAX));
            if let Some(place) = place {
                update.least = update.least.max(places[place] + 1);
            }
            ensure!(update.least <= update.most, "{} records are there, and not {}", update.least, update.most + 1);
            if place.is_some() {
                break;
            }
        }
        self.settle();
        Ok(())
    }

    /// Whether `row` is one that the key may have but for one bit.
    pub(crate) fn is_one_bit_off(&self, key: i64, row: &[u8]) -> bool {
        let off = |version: Version| -> u32 {
            self.shape.row(key, version).iter().zip(row).map(|(one, other)| (one ^ other).count_ones()).sum()
        };
        self.possible(key).into_iter().flatten().any(|version| off(version) == 1)
    }
}

/// What a load brought.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) model: String,
    /// When it was last shown; 0: it stands by.
    pub(crate) shown: u64,
    pub(crate) tables: BTreeMap<String, Table>,
    /// A command that may have written its log was killed, and none has ended well since.
    pub(crate) left_open: bool,
}

/// Generations as they are listed: model, tables, those that are found by name, whether it stands by.
pub(crate) type Listing = BTreeMap<u64, (String, Vec<String>, Vec<String>, bool)>;

/// All that a store has.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) generations: BTreeMap<u64, Generation>,
    /// Counts what is shown.
    clock: u64,
}

impl State {
    /// The generation in which a table is found by its name.
    pub(crate) fn found(&self) -> BTreeMap<String, u64> {
        let mut found: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (&id, generation) in self.generations.iter().filter(|(_, generation)| generation.shown > 0) {
            for table in generation.tables.keys() {
                let entry = found.entry(table.clone()).or_insert((generation.shown, id));
                *entry = (*entry).max((generation.shown, id));
            }
        }
        found.into_iter().map(|(table, (_, id))| (table, id)).collect()
    }

    /// What `warprow generations` should list.
    pub(crate) fn listing(&self) -> Listing {
        let found = self.found();
        let listed = |(&id, generation): (&u64, &Generation)| {
            let tables: Vec<String> = generation.tables.keys().cloned().collect();
            let here = tables.iter().filter(|&table| found.get(table) == Some(&id)).cloned().collect();
            (id, (generation.model.clone(), tables, here, generation.shown == 0))
        };
        self.generations.iter().map(listed).collect()
    }

    /// A load: beside what is there, or shown at once, and then what it hides wholly goes.
    pub(crate) fn load(&mut self, id: u64, model: &str, tables: Vec<Table>, beside: bool) {
        let before = self.found();
        let shown = if beside { 0 } else { self.tick() };
        let tables: BTreeMap<_, _> = tables.into_iter().map(|table| (table.shape.name.clone(), table)).collect();
        self.generations.insert(id, Generation { model: model.to_owned(), shown, tables, left_open: false });
        let after = self.found();
        let found_in = |found: &BTreeMap<String, u64>, id: u64| found.values().any(|&number| number == id);
        self.generations.retain(|&id, _| !found_in(&before, id) || found_in(&after, id));
    }

    /// Names mean that generation's tables, and no other of its model is shown.
    pub(crate) fn switch(&mut self, id: u64) {
        let Some(model) = self.generations.get(&id).map(|generation| generation.model.clone()) else { return };
        let now = self.tick();
        for (&other, generation) in self.generations.iter_mut().filter(|(_, it)| it.model == model) {
            generation.shown = if other == id { now } else { 0 };
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The table that a name means.
    pub(crate) fn table(&mut self, name: &str) -> Option<&mut Table> {
        let id = *self.found().get(name)?;
        self.generations.get_mut(&id)?.tables.get_mut(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let shape = Shape { name: "t".into(), dtype: DType::U8, dim: 16, keyed: true, checked: true };
        Table::new(shape, (0..10).map(|key| (key, 100)).collect())
    }

    fn read(table: &mut Table, key: i64, version: Option<Version>) -> Result<()> {
        let row = version.map(|version| table.shape.row(key, version));
        table.read(key, row.as_deref())
    }

    #[test]
    fn an_acknowledged_row_has_one_value() {
        let mut table = table();
        table.update(vec![(1, 200), (2, 201), (1, 202), (77, 203)], 4, 4);
        for (key, version) in [(1, Some(202)), (2, Some(201)), (3, Some(100)), (77, Some(203)), (78, None)] {
            read(&mut table, key, version).unwrap();
        }
        let lost = read(&mut table, 2, Some(100)).unwrap_err();
        assert!(lost.to_string().contains("it may be"), "{lost}");
        assert!(read(&mut table, 1, Some(200)).is_err() && read(&mut table, 3, None).is_err());
        assert_eq!(table.keys().count(), 11);
    }

    #[test]
    fn of_a_killed_update_the_first_so_many_rows_are_there() {
        let mut table = table();
        table.update(vec![(1, 200), (2, 201), (1, 202), (3, 203), (50, 204)], 1, 5);
        assert_eq!(table.doubtful(), 4);
        assert!(read(&mut table.clone(), 1, Some(100)).is_err(), "the first was acknowledged");
        // The second is there, the fourth is not: so the third may be, and the fifth is not.
        read(&mut table, 2, Some(201)).unwrap();
        read(&mut table, 3, Some(100)).unwrap();
        assert!(read(&mut table.clone(), 50, Some(204)).is_err());
        assert!(read(&mut table.clone(), 2, Some(100)).is_err());
        read(&mut table.clone(), 1, Some(200)).unwrap();
        read(&mut table, 1, Some(202)).unwrap();
        assert!(read(&mut table.clone(), 1, Some(200)).is_err(), "what was read once stays");
        assert_eq!(table.doubtful(), 0);
    }

    #[test]
    fn a_later_update_tells_nothing_of_one_in_doubt_but_for_its_rows() {
        let mut table = table();
        table.update(vec![(1, 200), (2, 201), (3, 202)], 0, 3);
        table.update(vec![(2, 300)], 1, 1);
        read(&mut table, 2, Some(300)).unwrap();
        assert_eq!(table.doubtful(), 3);
        read(&mut table, 3, Some(202)).unwrap();
        assert_eq!(table.doubtful(), 0);
        assert!(read(&mut table, 1, Some(100)).is_err());
        read(&mut table, 2, Some(300)).unwrap();
    }

    #[test]
    fn names_mean_what_was_shown_last() {
        let mut state = State::default();
        let load = |state: &mut State, id, beside| state.load(id, "m", vec![table()], beside);
        load(&mut state, 0, false);
        load(&mut state, 1, true);
        assert_eq!(state.found()["t"], 0);
        state.switch(1);
        assert_eq!(state.found()["t"], 1);
        assert!(state.listing()[&0].3 && !state.listing()[&1].3);
        load(&mut state, 2, false);
        assert_eq!(state.generations.keys().copied().collect::<Vec<_>>(), [0, 2], "what it hid is gone");
        assert!(state.table("t").is_some() && state.table("u").is_none());
    }
}
