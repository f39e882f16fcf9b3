//! Whether GPUs could store to drives' doorbell registers themselves (placement B of docs/gpu-rings.md). Where they
//! cannot, a host thread does it for them.

use super::finding::{Finding, Verdict};
use crate::Machine;

/// The check's name.
const CHECK: &str = "gpu-doorbells";

/// What stands between the machine's GPUs and the registers of drives, as findings; none where there is no GPU.
pub(super) fn doorbells(machine: &Machine) -> Vec<Finding> {
    if machine.gpus().is_empty() {
        return Vec::new();
    }
    let facts = machine.gpu_ring_facts(None, None);
    let in_the_way = |fact: &Finding| fact.verdict == Verdict::Warn;
    let against = |fact: &Finding| {
        let found = format!("{}: a host thread rings drives' doorbells for the GPU", fact.found);
        Finding { check: CHECK, found, ..fact.clone() }
    };
    let mut findings: Vec<_> = facts.iter().filter(|fact| in_the_way(fact)).map(against).collect();
    if findings.is_empty() {
        let module = facts.first().map(|fact| fact.found.clone()).unwrap_or_default();
        let found =
            format!("{module}, and GPUs could ring their doorbells themselves; no GPU has rung a physical drive's yet");
        let finding = Finding::new(CHECK, Verdict::Unproven, found);
        findings.push(finding.command("warprow gpu-rings ADDRESS"));
    }
    findings.extend(facts.into_iter().filter(|fact| fact.check == "gpu-memory"));
    findings
}
