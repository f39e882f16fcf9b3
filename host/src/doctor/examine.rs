//! All checks, in their order.

use super::finding::Finding;
use super::{drives, gpu, iommu, memory, system};
use crate::machine::Machine;

impl Machine {
    /// Checks everything that sysfs and procfs tell. What only CUDA knows is not among it.
    pub fn examine(&self) -> Vec<Finding> {
        let drives = self.drives();
        let functions = self.functions();
        let mut findings = vec![system::processor(self), system::kernel(self)];
        findings.extend(system::lockdown(self));
        findings.extend(system::container(self));
        findings.extend(iommu::check(self));
        findings.extend(iommu::vfio(self, &drives));
        findings.extend(memory::huge_pages(self));
        findings.push(memory::lockable(self, &drives));
        findings.extend(drives::hidden(&functions));
        findings.extend(drives::check(&drives));
        findings.extend(drives::topology(self, &drives));
        findings.extend(gpu::doorbells(self));
        findings
    }
}
