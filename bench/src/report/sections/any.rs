//! Results of whichever benchmark.

use serde_json::Value;

use super::section::Section;
use super::{
    dedupe, dram, elements, hbm, load, lookup, lookup_gpu, passes, plan, resident, ring, ring_gpu, ssd, switch,
};
use crate::results::{BenchmarkResult, Record};

/// Reads the result of whichever benchmark printed it. An error says what is not understood.
pub fn read(value: &Value) -> Result<Section, String> {
    let Record { result, machine, .. } = Record::read(value)?;
    let mut section = match result {
        BenchmarkResult::Ring(it) => ring::ring(it),
        BenchmarkResult::RingOn(it) => ring::ring_on(it),
        BenchmarkResult::RingGpu(it) => ring_gpu::ring_gpu(it),
        BenchmarkResult::RingResident(it) => resident::resident(it),
        BenchmarkResult::Lookup(it) => lookup::lookup(*it),
        BenchmarkResult::LookupGpu(it) => lookup_gpu::lookup_gpu(it),
        BenchmarkResult::Load(it) => load::load(it),
        BenchmarkResult::PlanRate(it) => plan::plan_rate(it),
        BenchmarkResult::PlanSpeed(it) => plan::plan_speed(it),
        BenchmarkResult::Switch(it) => switch::switch(it),
        BenchmarkResult::Passes(it) => passes::passes(it),
        BenchmarkResult::Ssd(it) => ssd::ssd(it),
        BenchmarkResult::Dram(it) => dram::dram(it),
        BenchmarkResult::Dedupe(it) => dedupe::dedupe(it),
        BenchmarkResult::Hbm(it) => hbm::hbm(it),
        BenchmarkResult::Elements(it) => elements::elements(it),
    };
    if machine.is_busy() {
        section.warnings.push(format!(
            "The machine was busy: {:.1} threads running or waiting on {} cores when it began.",
            machine.load, machine.cores
        ));
    }
    Ok(section)
}
