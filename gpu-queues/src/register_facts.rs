//! What a machine and a GPU must be like for the GPU to store to registers of drives: facts that are looked at before
//! anything is registered, because the harm where one of them is missing shows late. docs/gpu-rings.md has the reasons.

use std::path::Path;

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;

use crate::{Gpu, GpuQueueError, RegisterRefusal};

/// Why the GPU must not store to registers of drives on this machine, if anything speaks against it.
pub(crate) fn refusal(gpu: &Gpu) -> Result<Option<RegisterRefusal>, GpuQueueError> {
    let has = |attribute| gpu.attribute(attribute).map(|value| value != 0);
    if has(Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)?
        || !cfg!(target_arch = "x86_64")
    {
        return Ok(Some(RegisterRefusal::HostPageTables));
    }
    if has(Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED)? {
        return Ok(Some(RegisterRefusal::Mps));
    }
    Ok(of_machine(Path::new("/"), &gpu.pci_address()?))
}

/// What sysfs and procfs below `root` say of the GPU at this PCI address and of its kernel modules.
fn of_machine(root: &Path, address: &str) -> Option<RegisterRefusal> {
    let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let function = format!("sys/bus/pci/devices/{address}");
    match text(&format!("{function}/iommu_group/type")) {
        Some(kind) if kind.trim() == "identity" => {}
        Some(_) => return Some(RegisterRefusal::TranslatedGpu),
        // Without an IOMMU there is no group. Where sysfs does not show the GPU at all, nothing is known.
        None if root.join(&function).join("vendor").exists() && !root.join(&function).join("iommu_group").exists() => {}
        None => return Some(RegisterRefusal::UnknownDomain),
    }
    let parameters = text("proc/driver/nvidia/params").unwrap_or_default();
    let is_set = |line: &str| match line.split_once(':') {
        Some(("EnablePCIERelaxedOrderingMode", value)) => value.trim() != "0",
        Some(("RegistryDwords" | "RegistryDwordsPerDevice", value)) => value.contains("RmSetPCIERelaxedOrdering"),
        _ => false,
    };
    if parameters.lines().any(is_set) {
        return Some(RegisterRefusal::RelaxedOrdering);
    }
    let holds = text("sys/module/nvidia_uvm/parameters/uvm_enable_va_space_mm");
    holds.is_some_and(|value| ["0", "N"].contains(&value.trim())).then_some(RegisterRefusal::DyingProcess)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_fact_alone_refuses() {
        let folder = std::env::temp_dir().join(format!("warprow-facts-{}", std::process::id()));
        let gpu = "0000:41:00.0";
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let kind = format!("sys/bus/pci/devices/{gpu}/iommu_group/type");
        let look = || of_machine(&folder, gpu);
        assert_eq!(look(), Some(RegisterRefusal::UnknownDomain), "no sysfs");
        write(&format!("sys/bus/pci/devices/{gpu}/vendor"), "0x10de\n");
        assert_eq!(look(), None, "no IOMMU");
        for (text, refused) in
            [("identity\n", false), ("DMA-FQ\n", true), ("DMA\n", true), ("", true), ("identity\n", false)]
        {
            write(&kind, text);
            assert_eq!(look(), refused.then_some(RegisterRefusal::TranslatedGpu), "{text:?}");
        }
        let parameters = "proc/driver/nvidia/params";
        for (text, refused) in [
            ("EnablePCIERelaxedOrderingMode: 1\n", true),
            ("EnablePCIERelaxedOrderingMode: 0\nRegistryDwords: \"\"\n", false),
            ("RegistryDwords: \"PeerMappingOverride=1;RmSetPCIERelaxedOrdering=1\"\n", true),
            ("RegistryDwords: \"PeerMappingOverride=1\"\n", false),
        ] {
            write(parameters, text);
            assert_eq!(look(), refused.then_some(RegisterRefusal::RelaxedOrdering), "{text:?}");
        }
        for (text, refused) in [("1\n", false), ("0\n", true), ("N\n", true), ("Y\n", false)] {
            write("sys/module/nvidia_uvm/parameters/uvm_enable_va_space_mm", text);
            assert_eq!(look(), refused.then_some(RegisterRefusal::DyingProcess), "{text:?}");
        }
        fs::remove_file(folder.join(&kind)).unwrap();
        assert_eq!(look(), Some(RegisterRefusal::UnknownDomain), "a group whose type nobody tells");
        fs::remove_dir_all(&folder).unwrap();
    }
}
