//! Look-ups of this process, by their texts and by numbers.
//!
//! A compiled model carries the text of each look-up ([`ModuleSpec`]). In a process of Python's, modules [`register`] theirs, and
//! whoever makes look-ups there is [`set_maker`]. In another process [`find`] opens the store that the text names, for reading, when
//! it is first asked for it, and keeps it open until [`close_all`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use warprow_gpu::{Gpu, GpuError, GpuExecutor};
use warprow_lookup::HostExecutor;
use warprow_store::{CreateDrive, Device, DriveAddress, OpenOptions, Store};

use crate::error::ModuleError;
use crate::lookup::{ModuleExecutor, ModuleLookup};
use crate::spec::{ExecutorSpec, ModuleSpec};

/// The longest wait for a drive of a store that is opened here.
const TIMEOUT: Duration = Duration::from_secs(5);

type Maker = fn(&str) -> Result<Arc<ModuleLookup>, ModuleError>;

#[derive(Default)]
struct Known {
    /// Kept by whoever registered them.
    by_text: HashMap<String, Weak<ModuleLookup>>,
    by_number: HashMap<i64, Weak<ModuleLookup>>,
    /// Of stores that were opened here.
    opened: HashMap<String, Arc<ModuleLookup>>,
    maker: Option<Maker>,
}

#[derive(Default)]
struct Opened {
    stores: HashMap<Vec<String>, Store>,
    executors: Vec<(Vec<String>, String, ExecutorSpec, ModuleExecutor)>,
    /// Addresses that models carry, and those that are opened in their place.
    renamed: HashMap<String, String>,
}

static KNOWN: LazyLock<RwLock<Known>> = LazyLock::new(Default::default);
/// Locked while a store is opened.
static OPENED: LazyLock<Mutex<Opened>> = LazyLock::new(Default::default);
static NUMBERS: AtomicI64 = AtomicI64::new(1);

/// Registers a look-up under its text, and under a number of its own.
pub fn register(text: &str, lookup: &Arc<ModuleLookup>) -> i64 {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.by_text.retain(|_, it| it.strong_count() > 0);
    known.by_number.retain(|_, it| it.strong_count() > 0);
    known.by_text.insert(text.to_owned(), Arc::downgrade(lookup));
    known.by_number.insert(number, Arc::downgrade(lookup));
    number
}

/// Has look-ups that nobody registered made by a function, instead of by opening their stores here.
pub fn set_maker(maker: fn(&str) -> Result<Arc<ModuleLookup>, ModuleError>) {
    KNOWN.write().unwrap_or_else(PoisonError::into_inner).maker = Some(maker);
}

/// The look-up of a number.
pub fn numbered(number: i64) -> Result<Arc<ModuleLookup>, ModuleError> {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    known.by_number.get(&number).and_then(Weak::upgrade).ok_or(ModuleError::Gone(number))
}

/// The look-up of a text. If there is none, its store is opened, which reads the rows that it keeps in memory.
pub fn find(text: &str) -> Result<Arc<ModuleLookup>, ModuleError> {
    let find = |known: &Known| {
        let found = known.by_text.get(text).and_then(Weak::upgrade);
        found.or_else(|| known.opened.get(text).cloned())
    };
    let maker = {
        let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = find(&known) {
            return Ok(found);
        }
        known.maker
    };
    if let Some(maker) = maker {
        return maker(text);
    }
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have been faster.
    if let Some(found) = find(&KNOWN.read().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(found);
    }
    let spec = ModuleSpec::parse(text)?;
    let executor = opened.executor(&spec)?;
    if spec.scales.is_some() {
        return Err(ModuleError::Text("scales in memory of the process that made it".to_owned()));
    }
    // SAFETY: it has no scales.
    let made = Arc::new(unsafe { ModuleLookup::new(spec, executor) }?);
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.opened.insert(text.to_owned(), made.clone());
    Ok(made)
}

/// Opens `to` wherever a model carries the address `from`. Stores that are open stay as they are.
pub fn rename_drive(from: &str, to: &str) {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    opened.renamed.insert(from.to_owned(), to.to_owned());
}

/// All look-ups that are not closed.
pub fn open() -> Vec<Arc<ModuleLookup>> {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    let all = known.opened.values().cloned().chain(known.by_text.values().filter_map(Weak::upgrade));
    all.filter(|lookup| lookup.is_open()).collect()
}

/// Closes all stores that were opened here: their drives are free for others when this returns.
pub fn close_all() {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let lookups = std::mem::take(&mut KNOWN.write().unwrap_or_else(PoisonError::into_inner).opened);
    lookups.values().for_each(|lookup| lookup.close());
    opened.executors.clear();
    opened.stores.clear();
}

impl Opened {
    fn store(&mut self, drives: &[String]) -> Result<Store, ModuleError> {
        if let Some(store) = self.stores.get(drives) {
            return Ok(store.clone());
        }
        let mut devices = Vec::new();
        for drive in drives {
            let address: DriveAddress = self.renamed.get(drive).unwrap_or(drive).parse()?;
            devices.push(Device::open_beside(&devices, &address.for_reading(), CreateDrive::Never)?);
        }
        let store = Store::open(&devices, &OpenOptions::default().with_timeout(TIMEOUT).with_read_only())?;
        self.stores.insert(drives.to_owned(), store.clone());
        Ok(store)
    }

    /// The executor that a spec asks for, over tables of the shapes that it names.
    fn executor(&mut self, spec: &ModuleSpec) -> Result<ModuleExecutor, ModuleError> {
        let store = self.store(&spec.drives)?;
        for (feature, &(rows, dim)) in spec.features.iter().zip(&spec.shapes) {
            let known = || store.tables().into_iter().map(|table| table.name).collect();
            let table = store.table(&feature.table).ok_or_else(|| warprow_store::StoreError::NoSuchTable {
                table: feature.table.clone(),
                known: known(),
            })?;
            if (table.rows, table.dim) != (rows, dim) {
                let text = format!(
                    "table {:?} has {} rows of {} elements, where the model was compiled over {rows} rows of {dim}: compile it anew",
                    table.name, table.rows, table.dim
                );
                return Err(ModuleError::invalid("model", text));
            }
        }
        let same = |it: &&(Vec<String>, String, ExecutorSpec, ModuleExecutor)| {
            it.0 == spec.drives && it.1 == spec.device && it.2 == spec.options
        };
        if let Some((.., executor)) = self.executors.iter().find(same) {
            return Ok(executor.clone());
        }
        let options = &spec.options;
        let executor = match spec.gpu()? {
            None => ModuleExecutor::Host(HostExecutor::attach(&store, options.on_host()?)?),
            Some(device) => ModuleExecutor::Gpu(GpuExecutor::attach(
                &store,
                Gpu::open(device).map_err(GpuError::from)?,
                options.on_gpu()?,
            )?),
        };
        self.executors.push((spec.drives.clone(), spec.device.clone(), options.clone(), executor.clone()));
        Ok(executor)
    }
}
