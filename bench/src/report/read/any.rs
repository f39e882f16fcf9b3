//! Results of whichever program.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::section::Section;
use super::{dedupe, elements, experiments, gpu, hbm, host, passes, resident, ssd, switch};

/// Reads the result of whichever program printed it. An error says what is not understood.
pub fn read(value: &Value) -> Result<Section, String> {
    let has = |key: &str| value.get(key).is_some();
    let is_submitter = |who: &str| value.get("submitter").and_then(Value::as_str) == Some(who);
    let benchmark = value.get("benchmark").and_then(Value::as_str);
    let mut section = if benchmark == Some("ssd") {
        ssd::ssd(typed(value)?)
    } else if benchmark == Some("hbm") {
        hbm::hbm(typed(value)?)
    } else if benchmark == Some("dedupe") {
        dedupe::dedupe(typed(value)?)
    } else if benchmark == Some("elements") {
        elements::elements(typed(value)?)
    } else if benchmark == Some("dram-experiments") {
        experiments::experiments(typed(value)?)
    } else if is_submitter("gpu") && (has("controller") || has("emulated")) {
        resident::resident(typed(value)?)
    } else if is_submitter("gpu") {
        gpu::ring(typed(value)?)
    } else if is_submitter("host") && has("on") {
        host::ring_on(typed(value)?)
    } else if is_submitter("host") {
        host::ring(typed(value)?)
    } else if has("growth") {
        host::lookup(typed(value)?)
    } else if has("pairs") {
        host::load(typed(value)?)
    } else if has("cases") {
        host::plan_rate(typed(value)?)
    } else if has("setup") {
        host::plan_speed(typed(value)?)
    } else if has("sweeps") {
        gpu::dram(typed(value)?)
    } else if has("split") {
        gpu::lookup(typed(value)?)
    } else if has("calm") {
        switch::switch(typed(value)?)
    } else if value.pointer("/result/ways").is_some() {
        passes::passes(typed(value)?)
    } else {
        return Err("no program of this version prints such a result".to_owned());
    };
    busy(value, &mut section);
    Ok(section)
}

fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| format!("not as this version's programs print it: {error}"))
}

/// Above half of the cores' load, a measurement is not to be trusted.
fn busy(value: &Value, section: &mut Section) {
    let machine = value.get("machine");
    let number = |key: &str| machine?.get(key)?.as_f64();
    let number = |key: &str| machine.and_then(|_| number(key));
    if let (Some(load), Some(cores)) = (number("load"), number("cores"))
        && load > cores / 2.0
    {
        let words =
            format!("The machine was busy: {load:.1} threads running or waiting on {cores} cores when it began.");
        section.warnings.push(words);
    }
}
