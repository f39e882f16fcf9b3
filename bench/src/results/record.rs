//! A benchmark's result with what all results have in common.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use warprow_workload::MachineInfo;

use super::{
    Dedupes, DramLookups, DriveRing, ElementsAndChecksums, GpuLookups, GpuRing, HbmLookups, HostLookups, HostRing,
    Loads, PlanRates, PlanSpeed, ResidentRing, SsdLookups, Switches, TrainingPasses,
};

/// One JSON object, as a benchmark prints it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The version of the benchmark's fields.
    pub schema: u32,
    /// What was found; its name stands in `benchmark`.
    #[serde(flatten)]
    pub result: BenchmarkResult,
    /// The machine that it was found on.
    pub machine: MachineInfo,
}

/// The result of any benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "benchmark", rename_all = "kebab-case")]
pub enum BenchmarkResult {
    /// `bench-ring --host`
    Ring(HostRing),
    /// `bench-ring --on`
    RingOn(DriveRing),
    /// `bench-ring --gpu`
    RingGpu(GpuRing),
    /// `bench-ring --gpu --controller gpu`, or `peer`
    RingResident(ResidentRing),
    /// `bench-lookup`
    Lookup(Box<HostLookups>),
    /// `bench-lookup --gpu`
    LookupGpu(GpuLookups),
    /// `bench-load`
    Load(Loads),
    /// `bench-plan rate`
    PlanRate(PlanRates),
    /// `bench-plan speed`
    PlanSpeed(PlanSpeed),
    /// `bench-switch`
    Switch(Switches),
    /// `bench-passes`
    Passes(TrainingPasses),
    /// `bench-ssd`
    Ssd(SsdLookups),
    /// `bench-dram`
    Dram(DramLookups),
    /// `bench-dedupe`
    Dedupe(Dedupes),
    /// `bench-hbm`
    Hbm(HbmLookups),
    /// `bench-elements`
    Elements(ElementsAndChecksums),
}

impl BenchmarkResult {
    /// The version of the fields that this version prints.
    const fn schema(&self) -> u32 {
        match self {
            Self::RingGpu(_) => 3,
            Self::LookupGpu(_) | Self::Dram(_) => 2,
            _ => 1,
        }
    }
}

/// The name of a result that an earlier version printed, which named few of them: by the fields that nothing else has.
fn earlier_name(value: &Value) -> Option<&'static str> {
    let has = |key: &str| value.get(key).is_some();
    let submitter = value.get("submitter").and_then(Value::as_str);
    Some(match submitter {
        Some("gpu") if has("controller") || has("emulated") => "ring-resident",
        Some("gpu") => "ring-gpu",
        Some("host") if has("on") => "ring-on",
        Some("host") => "ring",
        _ if has("growth") => "lookup",
        _ if has("pairs") => "load",
        _ if has("cases") => "plan-rate",
        _ if has("setup") => "plan-speed",
        _ if has("sweeps") => "dram",
        _ if has("split") => "lookup-gpu",
        _ if has("calm") => "switch",
        _ if value.pointer("/result/ways").is_some() => "passes",
        _ => return None,
    })
}

impl Record {
    /// A result of this version.
    pub fn new(result: BenchmarkResult, machine: MachineInfo) -> Self {
        Self { schema: result.schema(), result, machine }
    }

    /// One line of JSON.
    pub fn line(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// Reads what a benchmark of this version printed, or one of an earlier version that printed as much. An error says what is not
    /// understood.
    pub fn read(value: &Value) -> Result<Self, String> {
        let read = match (value.get("benchmark"), earlier_name(value)) {
            (None, Some(name)) => {
                let mut named = value.clone();
                named["benchmark"] = name.into();
                Self::deserialize(&named)
            }
            (None, None) => return Err("no program of this version prints such a result".to_owned()),
            (Some(_), _) => Self::deserialize(value),
        };
        read.map_err(|error| format!("not as this version's programs print it: {error}"))
    }
}

/// The machine that a result names, whatever the result is.
pub fn machine_of(value: &Value) -> Option<MachineInfo> {
    MachineInfo::deserialize(value.get("machine")?).ok()
}
