//! Identify (NVMe Base 2.0, 5.17; NVMe 1.4, 5.15).

use warprow_spec::admin::{IdentifyCdw10, IdentifyCdw11};
use warprow_spec::ascii::padded;
use warprow_spec::identify::{
    Cns, CommandSet, ControllerType, EntrySize, FlushBroadcast, Frmw, IdentifyController, Lpa, Oacs, Oaes, Oncs, Vwc,
};
use warprow_spec::registers::Vs;
use warprow_spec::{Cqe, FromZeros, IDENTIFY_BYTES, IntoBytes, Sqe, StatusCode};

use super::reply::Reply;
use crate::control::Control;
use crate::core::Core;
use crate::error_log::ERRORS_KEPT;
use crate::events::REQUEST_LIMIT;
use crate::failure::Failure;
use crate::features::{ARBITRATION_BURST, WARNING_TEMPERATURE};

/// PCI vendor that QEMU's and others' virtual devices use as subsystem vendor (Red Hat); a model has no vendor.
const VENDOR: u16 = 0x1af4;

impl Control {
    pub(super) fn identify(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        let cns = IdentifyCdw10::from_bits(sqe.cdw10).cns();
        let csi = IdentifyCdw11::from_bits(sqe.cdw11).csi();
        let since_2_0 = core.config.version >= Vs::V2_0;
        match cns {
            Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => {
                let index = self.namespace(sqe.nsid)?;
                let remaining = self.format_remaining(index, core.now());
                let data = self.namespaces[index].identify(remaining);
                self.send(sqe, data.as_bytes())
            }
            Cns::CONTROLLER => {
                let data = self.identify_controller(core);
                self.send(sqe, data.as_bytes())
            }
            Cns::ACTIVE_NAMESPACES | Cns::ALLOCATED_NAMESPACES => self.namespace_list(sqe),
            Cns::NAMESPACE_DESCRIPTORS => {
                let index = self.namespace(sqe.nsid)?;
                let list = self.namespaces[index].descriptors(core.config.version);
                self.send(sqe, &list)
            }
            // One controller, number 0: a list of one identifier, or of none that are as great as the one asked with.
            Cns::NAMESPACE_CONTROLLERS | Cns::CONTROLLERS => {
                if cns == Cns::NAMESPACE_CONTROLLERS {
                    self.namespace(sqe.nsid)?;
                }
                let mut list = [0; IDENTIFY_BYTES];
                list[0] = u8::from(IdentifyCdw10::from_bits(sqe.cdw10).cntid() == 0);
                self.send(sqe, &list)
            }
            // What NVM Command Set 1.0 has beyond Identify Namespace and Controller is all optional and absent.
            Cns::COMMAND_SET_NAMESPACE if since_2_0 && csi == CommandSet::NVM => {
                self.namespace(sqe.nsid)?;
                self.send(sqe, &[0; IDENTIFY_BYTES])
            }
            Cns::COMMAND_SET_CONTROLLER if since_2_0 && csi == CommandSet::NVM => self.send(sqe, &[0; IDENTIFY_BYTES]),
            Cns::COMMAND_SET_ACTIVE_NAMESPACES if since_2_0 && csi == CommandSet::NVM => self.namespace_list(sqe),
            Cns::COMMAND_SETS if since_2_0 => {
                let mut vectors = [0; IDENTIFY_BYTES];
                vectors[0] = 1;
                self.send(sqe, &vectors)
            }
            _ => Err(Failure::field(40)),
        }
    }

    /// Index of a namespace.
    fn namespace(&self, nsid: u32) -> Result<usize, Failure> {
        let index = nsid.wrapping_sub(1) as usize;
        if index < self.namespaces.len() {
            Ok(index)
        } else {
            Err(Failure::at(StatusCode::InvalidNamespaceOrFormat, 4))
        }
    }

    /// The namespaces whose identifiers are greater than the one given.
    fn namespace_list(&mut self, sqe: &Sqe) -> Result<Reply, Failure> {
        if sqe.nsid >= 0xffff_fffe {
            return Err(Failure::at(StatusCode::InvalidNamespaceOrFormat, 4));
        }
        let mut list = [0; IDENTIFY_BYTES];
        let after = self.namespaces.len().min(sqe.nsid as usize);
        for (entry, nsid) in list.as_chunks_mut::<4>().0.iter_mut().zip(after + 1..=self.namespaces.len()) {
            *entry = (nsid as u32).to_le_bytes();
        }
        self.send(sqe, &list)
    }

    fn identify_controller(&self, core: &Core) -> Box<IdentifyController> {
        let config = &core.config;
        let mut data = Box::new(IdentifyController::new_zeroed());
        data.vid = VENDOR;
        data.ssvid = VENDOR;
        data.sn = padded(&config.serial);
        data.mn = padded(&config.model);
        data.fr = padded(&config.firmware);
        data.rab = ARBITRATION_BURST;
        data.mdts = config.mdts;
        data.ver = config.version;
        data.rtd3e = u32::try_from(config.shutdown_delay.as_micros()).unwrap_or(u32::MAX).max(1_000_000);
        data.oaes = Oaes::new().with_namespace_attribute(true);
        data.cntrltype = ControllerType::IO;
        data.oacs = Oacs::new().with_format_nvm(true);
        data.acl_z = 3;
        data.aerl_z = REQUEST_LIMIT as u8 - 1;
        data.frmw = Frmw::new().with_slot1_read_only(true).with_slots(1);
        data.lpa = Lpa::new().with_commands_supported(true).with_extended(true);
        data.elpe_z = (ERRORS_KEPT - 1) as u8;
        data.wctemp = WARNING_TEMPERATURE;
        data.cctemp = WARNING_TEMPERATURE + 15;
        data.apsta = config.autonomous_power_states.into();
        (data.hmpre, data.hmmin) = config.host_memory;
        data.tnvmcap =
            self.namespaces.iter().map(|namespace| u128::from(namespace.backing.size())).sum::<u128>().into();
        data.sqes = EntrySize::new().with_required(Sqe::SIZE_LOG2).with_maximum(Sqe::SIZE_LOG2);
        data.cqes = EntrySize::new().with_required(Cqe::SIZE_LOG2).with_maximum(Cqe::SIZE_LOG2);
        data.nn = self.namespaces.len() as u32;
        data.oncs =
            Oncs::new().with_compare(true).with_dataset_management(true).with_write_zeroes(true).with_save_select(true);
        data.fna = config.fna;
        data.vwc = Vwc::new().with_present(self.has_write_cache()).with_broadcast(FlushBroadcast::SUPPORTED);
        let nqn = format!("nqn.2014-08.org.nvmexpress:warprow:{}", config.serial);
        for (byte, from) in data.subnqn.iter_mut().zip(nqn.bytes().take(255)) {
            *byte = from;
        }
        data.psd[0].mp = 2500;
        data
    }
}
