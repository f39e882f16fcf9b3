//! What a machine and a GPU must be like for the GPU to store to registers of drives: facts that are looked at before
//! anything is registered, because the harm where one of them is missing shows late. docs/gpu-rings.md has the reasons.

use std::path::Path;

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUresult};

use crate::{Gpu, GpuQueueError, RegisterRefusal};

/// Why the GPU must not store to registers of drives on this machine, if anything speaks against it.
pub(crate) fn refusal(gpu: &Gpu) -> Result<Option<RegisterRefusal>, GpuQueueError> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Some(RegisterRefusal::HostPageTables));
    }
    match of_driver(|attribute| gpu.attribute(attribute))? {
        None => Ok(of_machine(Path::new("/"), &gpu.pci_address()?)),
        refused => Ok(refused),
    }
}

/// What the driver says of the GPU. `attribute` asks it.
fn of_driver(
    attribute: impl Fn(Attribute) -> Result<u32, GpuQueueError>,
) -> Result<Option<RegisterRefusal>, GpuQueueError> {
    use Attribute::{
        CU_DEVICE_ATTRIBUTE_MPS_ENABLED as MPS,
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES as HOST_PAGE_TABLES,
    };
    for (name, refusal) in [(HOST_PAGE_TABLES, RegisterRefusal::HostPageTables), (MPS, RegisterRefusal::Mps)] {
        match attribute(name) {
            Ok(0) => {}
            Ok(_) => return Ok(Some(refusal)),
            // So answers a driver that does not know the attribute.
            Err(GpuQueueError::Cuda { code: CUresult::CUDA_ERROR_INVALID_VALUE, .. }) => {
                return Ok(Some(RegisterRefusal::UnknownAttribute(name)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
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
    fn each_attribute_alone_refuses() {
        use Attribute::{
            CU_DEVICE_ATTRIBUTE_MPS_ENABLED as MPS,
            CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES as HOST_PAGE_TABLES,
        };
        let fails = |code| GpuQueueError::Cuda { what: "an attribute of the GPU", code };
        assert_eq!(of_driver(|_| Ok(0)).unwrap(), None);
        for (one, refusal) in [(MPS, RegisterRefusal::Mps), (HOST_PAGE_TABLES, RegisterRefusal::HostPageTables)] {
            assert_eq!(of_driver(|asked| Ok(u32::from(asked == one))).unwrap(), Some(refusal));
            // A driver that does not know the attribute refuses by its name, and says what helps.
            let unknown = |asked| if asked == one { Err(fails(CUresult::CUDA_ERROR_INVALID_VALUE)) } else { Ok(0) };
            let why = of_driver(unknown).unwrap().expect("nobody knows what its stores reach");
            assert_eq!(why, RegisterRefusal::UnknownAttribute(one));
            let text = why.to_string();
            assert!(text.contains(&format!("{one:?}")) && text.contains("580 or later"), "{text}");
            // Any other error is no fact.
            let lost = |asked| if asked == one { Err(fails(CUresult::CUDA_ERROR_NOT_INITIALIZED)) } else { Ok(0) };
            assert!(matches!(of_driver(lost), Err(GpuQueueError::Cuda { .. })));
        }
    }

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
