//! A drive asked by our own driver: what it is, how it fares, and what about it wants attention.

use std::sync::Arc;

use serde_json::{Value, json};
use warprow_dma::{Function, SystemClock};
use warprow_driver::{Controller, ControllerOptions, DriverError};
use warprow_spec::identify::IdentifyNamespace;
use warprow_spec::log::SmartLog;
use warprow_workload::units;

/// What a drive says of itself.
#[derive(Debug)]
pub struct Probe {
    /// Model number.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// Version of the specification.
    pub version: String,
    /// The active namespaces.
    pub namespaces: Vec<ProbedNamespace>,
    /// SMART / Health Information.
    pub health: Option<Health>,
    /// What wants attention.
    pub notes: Vec<Note>,
}

/// An active namespace.
#[derive(Debug)]
pub struct ProbedNamespace {
    /// Namespace identifier.
    pub nsid: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Data and metadata bytes of a logical block.
    pub lba: (u64, u16),
    /// Data and metadata bytes of every format offered, in the drive's order.
    pub formats: Vec<(u64, u16)>,
}

/// How a drive fares.
#[derive(Debug)]
pub struct Health {
    /// Degrees Celsius; `None` where it does not say.
    pub temperature: Option<i64>,
    /// Percent of the rated life; may pass 100.
    pub percentage_used: u8,
    /// Errors of media and data integrity.
    pub media_errors: u128,
    /// Available spare, percent.
    pub spare: u8,
    /// Critical Warning is not 0.
    pub critical: bool,
}

/// Something about a drive that people should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// What it is about; stays the same from version to version.
    pub feature: &'static str,
    /// What was found.
    pub found: String,
    /// What to do; empty where nothing has to be done.
    pub remedy: String,
}

impl Note {
    /// With what to do, which may be nothing.
    pub fn new(feature: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { feature, found: found.into(), remedy: remedy.into() }
    }

    /// What was found, as JSON.
    pub fn json(&self) -> Value {
        json!({"feature": self.feature, "found": self.found, "remedy": self.remedy})
    }
}

/// Brings the controller up, asks, and shuts it down again: it is reset, and nothing on it changes.
pub fn probe(function: Arc<dyn Function>) -> Result<Probe, DriverError> {
    // Not for so short a time.
    let options = ControllerOptions {
        queue_pairs: 1,
        host_memory_limit: 0,
        autonomous_power_states: true,
        ..ControllerOptions::default()
    };
    let controller = Controller::open(function, Arc::new(SystemClock::new()), options)?;
    let probed = ask(&controller);
    // It was asked and nothing else: what a failed shutdown could lose was lost before.
    let _ = controller.shutdown();
    probed
}

fn ask(controller: &Controller) -> Result<Probe, DriverError> {
    let info = controller.info();
    let mut namespaces = Vec::new();
    let mut notes = Vec::new();
    for nsid in controller.active_namespaces()? {
        let data = controller.identify_namespace(nsid)?;
        let (namespace, about) = namespace(nsid, &data);
        namespaces.push(namespace);
        notes.extend(about);
    }
    if namespaces.is_empty() {
        let remedy = "make one with nvme-cli (nvme create-ns, nvme attach-ns), under Linux's own driver";
        notes.push(Note::new("namespaces", "it has no active namespace", remedy));
    }
    // Optional where the drive is young, odd, or says that it failed.
    let health = controller.smart_log().ok().map(|log| Health::of(&log));
    if health.as_ref().is_some_and(|health| health.critical) {
        let remedy = "replace it soon; `nvme smart-log` under Linux's own driver says which limit was passed";
        notes.push(Note::new("health", "it reports a critical warning", remedy));
    }
    if let Some(locking) = controller.locking()?.filter(|locking| locking.enabled) {
        notes.push(match locking.locked {
            true => Note::new(
                "opal",
                "it is locked: reads and writes fail",
                "unlock it under Linux's own driver: sedutil-cli --setLockingRange 0 RW PASSWORD /dev/nvmeXn1",
            ),
            false => Note::new("opal", "its lock is enabled, and open now: it may lock when it loses power", ""),
        });
    }
    if info.hmpre > 0 {
        let [preferred, least] = [info.hmpre, info.hmmin].map(|pages| units::bytes(u64::from(pages) * 4096));
        let given = ControllerOptions::default().host_memory_limit;
        let found = format!("it asks for {preferred} of host memory, {least} at least");
        let remedy = match u64::from(info.hmmin) * 4096 > given {
            true => format!("it gets none: the limit is {}; it works, slower", units::bytes(given)),
            false => String::new(),
        };
        notes.push(Note::new("host-memory", found, remedy));
    }
    if let Some(on) = controller.volatile_write_cache()? {
        let found = if on { "it has a volatile write cache, which is on" } else { "its volatile write cache is off" };
        notes.push(Note::new("write-cache", found, ""));
    }
    if let Some(on) = controller.power_transitions()? {
        let found = match on {
            true => "it changes its power state by itself when idle; that is off while Warprow drives it",
            false => "it could change its power state by itself when idle; that is off",
        };
        notes.push(Note::new("power-states", found, ""));
    }
    Ok(Probe {
        model: info.model().to_string(),
        serial: info.serial().to_string(),
        firmware: info.firmware().to_string(),
        version: controller.version().to_string(),
        namespaces,
        health,
        notes,
    })
}

fn namespace(nsid: u32, data: &IdentifyNamespace) -> (ProbedNamespace, Vec<Note>) {
    let one = |format: warprow_spec::identify::LbaFormat| (format.lba_bytes().map_or(0, u64::from), format.ms());
    let lba = data.format().map(one).unwrap_or_default();
    let formats: Vec<_> = data.formats().map(|(_, format)| one(format)).filter(|(bytes, _)| *bytes > 0).collect();
    let mut notes = Vec::new();
    if lba.1 > 0 {
        let protected = if data.dps.pit() > 0 { ", with protection information" } else { "" };
        let found = format!("namespace {nsid} has {} B of metadata in each block{protected}: refused", lba.1);
        let remedy = match formats.iter().any(|format| format.1 == 0) {
            true => "warprow format with --lba 512 or 4096 puts it in a format without",
            false => "it offers no format without metadata: use another drive",
        };
        notes.push(Note::new("metadata", found, remedy));
    }
    if data.nsattr.write_protected() {
        let remedy = "nvme set-feature -f 0x84 -v 0 under Linux's own driver";
        notes.push(Note::new("write-protection", format!("namespace {nsid} is write-protected"), remedy));
    }
    (ProbedNamespace { nsid, bytes: data.size_bytes().unwrap_or(0), lba, formats }, notes)
}

impl Health {
    fn of(log: &SmartLog) -> Self {
        let kelvin = i64::from(log.composite_temperature.get());
        Self {
            temperature: (kelvin > 0).then_some(kelvin - 273),
            percentage_used: log.percentage_used,
            media_errors: log.media_errors.get(),
            spare: log.available_spare,
            critical: log.critical_warning.into_bits() != 0,
        }
    }
}
