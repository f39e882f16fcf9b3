//! Where fields stand, checked against the byte offsets and bit positions of the specification.

use std::mem::offset_of;

use warprow_spec::identify::{
    Flbas, Fna, Fpi, IdentifyController, IdentifyNamespace, LbaFormat, Oacs, Oncs, Sgls, Vwc,
};
use warprow_spec::log::{CommandEffects, ErrorLogEntry, SmartLog};
use warprow_spec::registers::*;
use warprow_spec::sqe::{Cdw0, Fuse, Psdt};
use warprow_spec::{Cqe, FromBytes, IntoBytes, Sqe, Status, StatusCode};

macro_rules! offsets {
    ($type:ty { $($field:ident $offset:literal,)+ }) => {
        $(assert_eq!(offset_of!($type, $field), $offset, concat!(stringify!($type), "::", stringify!($field)));)+
    };
}

#[test]
fn identify_controller_fields_stand_where_the_spec_puts_them() {
    offsets!(IdentifyController {
        vid 0, ssvid 2, sn 4, mn 24, fr 64, rab 72, ieee 73, cmic 76, mdts 77, cntlid 78, ver 80, rtd3r 84, rtd3e 88,
        oaes 92, ctratt 96, rrls 100, cntrltype 111, fguid 112, crdt 128, nvmsr 253, vwci 254, mec 255,
        oacs 256, acl_z 258, aerl_z 259, frmw 260, lpa 261, elpe_z 262, npss_z 263, avscc 264, apsta 265, wctemp 266,
        cctemp 268, mtfa 270, hmpre 272, hmmin 276, tnvmcap 280, unvmcap 296, rpmbs 312, edstt 316, dsto 318, fwug 319,
        kas 320, hctma 322, mntmt 324, mxtmt 326, sanicap 328, hmminds 332, hmmaxd 336, nsetidmax 338, endgidmax 340,
        anatt 342, anacap 343, anagrpmax 344, nanagrpid 348, pels 352, domainid 356, megcap 368,
        sqes 512, cqes 513, maxcmd 514, nn 516, oncs 520, fuses 522, fna 524, vwc 525, awun_z 526, awupf_z 528,
        icsvscc 530, nwpc 531, acwu_z 532, ocfs 534, sgls 536, mnan 540, maxdna 544, maxcna 560, subnqn 768,
        fabrics 1792, psd 2048, vendor 3072,
    });
}

#[test]
fn identify_namespace_fields_stand_where_the_spec_puts_them() {
    offsets!(IdentifyNamespace {
        nsze 0, ncap 8, nuse 16, nsfeat 24, nlbaf_z 25, flbas 26, mc 27, dpc 28, dps 29, nmic 30, rescap 31, fpi 32,
        dlfeat 33, nawun_z 34, nawupf_z 36, nacwu_z 38, nabsn_z 40, nabo 42, nabspf_z 44, noiob 46, nvmcap 48,
        npwg_z 64, npwa_z 66, npdg_z 68, npda_z 70, nows_z 72, mssrl 74, mcl 76, msrc_z 80, anagrpid 92, nsattr 99,
        nvmsetid 100, endgid 102, nguid 104, eui64 120, lbaf 128, vendor 384,
    });
}

#[test]
fn log_page_fields_stand_where_the_spec_puts_them() {
    offsets!(SmartLog {
        critical_warning 0, composite_temperature 1, available_spare 3, available_spare_threshold 4, percentage_used 5,
        endurance_group_warning 6, data_units_read 32, data_units_written 48, host_read_commands 64,
        host_write_commands 80, controller_busy_time 96, power_cycles 112, power_on_hours 128, unsafe_shutdowns 144,
        media_errors 160, error_log_entries 176, warning_temperature_time 192, critical_temperature_time 196,
        temperature_sensors 200, thermal_transition_count 216, thermal_total_time 224,
    });
    offsets!(ErrorLogEntry {
        error_count 0, sqid 8, cid 10, status_phase 12, parameter_error_location 14, lba 16, nsid 24,
        vendor_log_page 28, trtype 29, command_specific 32, transport_specific 40,
    });
    assert_eq!(CommandEffects::new().with_cse(7).into_bits(), 7 << 16);
    assert_eq!(CommandEffects::new().with_csupp(true).with_lbcc(true).with_uss(true).into_bits(), 1 << 19 | 3);
}

#[test]
fn queue_entry_fields_stand_where_the_spec_puts_them() {
    offsets!(Sqe {
        cdw0 0, nsid 4, cdw2 8, cdw3 12, mptr 16, prp1 24, prp2 32, cdw10 40, cdw11 44, cdw12 48, cdw13 52, cdw14 56,
        cdw15 60,
    });
    offsets!(Cqe { dw0 0, dw1 4, sqhd 8, sqid 10, cid 12, status_phase 14, });

    let cdw0 =
        Cdw0::new().with_opcode(0xa5).with_fuse(Fuse::SECOND).with_psdt(Psdt::SGL_SEGMENT_METADATA).with_cid(0x1234);
    assert_eq!(cdw0.into_bits(), 0x1234_82a5);

    let cqe = Cqe::from_words([0x0000_0002_0000_0001, 0x4281_0007_0003_0009]);
    assert_eq!((cqe.dw0, cqe.dw1, cqe.sqhd, cqe.sqid, cqe.cid), (1, 2, 9, 3, 7));
    // Status 4281h: DNR 0, More 1, CRD 0, SCT 1, SC 40h, phase 1.
    assert!(cqe.phase() && Cqe::phase_of_word(cqe.as_words()[1]));
    assert_eq!(cqe.status(), Status::new().with_sct(1).with_sc(0x40).with_more(true));
    assert_eq!(cqe.as_words(), [0x0000_0002_0000_0001, 0x4281_0007_0003_0009]);
    // The status that Linux prints as 4002h, Invalid Field in Command with DNR, is 8004h or 8005h with its phase.
    let cqe = Cqe::from_words([0, 0x8004 << 48]);
    assert!(!cqe.phase() && cqe.status().dnr());
    assert_eq!(cqe.status().code(), StatusCode::InvalidField);
}

#[test]
fn sqe_words_are_its_bytes() {
    let sqe = Sqe {
        mptr: 0x1111_2222_3333_4444,
        cdw2: 0xaabb_ccdd,
        cdw15: 0x0f0f_0f0f,
        ..Sqe::read(7, 0x0102_0304_0506_0708, 15, true).with_cid(0xbeef).with_prps(0x1000, 0x2000)
    };
    let words = sqe.as_words();
    assert_eq!(
        words,
        [
            0x0000_0007_beef_0002,
            0x0000_0000_aabb_ccdd,
            0x1111_2222_3333_4444,
            0x1000,
            0x2000,
            0x0102_0304_0506_0708,
            0x0000_0000_4000_000f,
            0x0f0f_0f0f_0000_0000,
        ]
    );
    assert_eq!(words.as_bytes(), sqe.as_bytes());
    assert_eq!(Sqe::from_words(words), sqe);
    assert_eq!(Sqe::read_from_bytes(sqe.as_bytes()).unwrap(), sqe);
}

#[test]
fn capabilities_of_a_known_controller_decode() {
    let cap = Cap::from_bits(0x0040_0820_0f01_07ff);
    assert_eq!(cap.mqes_z(), 2047);
    assert_eq!(cap.max_queue_entries(), 2048);
    assert!(cap.cqr() && !cap.ams_wrr() && !cap.ams_vendor());
    assert_eq!(cap.to(), 15);
    assert_eq!(cap.disable_timeout_ms(), 7500);
    assert_eq!((cap.dstrd(), cap.doorbell_stride()), (0, 4));
    assert!(!cap.nssrs());
    assert!(cap.css_nvm() && cap.css_iocs() && !cap.css_noio());
    assert!(!cap.bps());
    assert_eq!((cap.mpsmin(), cap.min_page_bytes()), (0, 4096));
    assert_eq!((cap.mpsmax(), cap.max_page_bytes()), (4, 65536));
    assert!(!cap.pmrs() && !cap.cmbs() && !cap.nsss() && !cap.crwms() && !cap.crims());
}

#[test]
fn register_bits_stand_where_the_spec_puts_them() {
    let one = |set: fn(Cap) -> Cap| set(Cap::new()).into_bits().trailing_zeros();
    assert_eq!(one(|c| c.with_cqr(true)), 16);
    assert_eq!(one(|c| c.with_ams_wrr(true)), 17);
    assert_eq!(one(|c| c.with_ams_vendor(true)), 18);
    assert_eq!(one(|c| c.with_to(1)), 24);
    assert_eq!(one(|c| c.with_dstrd(1)), 32);
    assert_eq!(one(|c| c.with_nssrs(true)), 36);
    assert_eq!(one(|c| c.with_css_nvm(true)), 37);
    assert_eq!(one(|c| c.with_css_iocs(true)), 43);
    assert_eq!(one(|c| c.with_css_noio(true)), 44);
    assert_eq!(one(|c| c.with_bps(true)), 45);
    assert_eq!(one(|c| c.with_cps(1)), 46);
    assert_eq!(one(|c| c.with_mpsmin(1)), 48);
    assert_eq!(one(|c| c.with_mpsmax(1)), 52);
    assert_eq!(one(|c| c.with_pmrs(true)), 56);
    assert_eq!(one(|c| c.with_cmbs(true)), 57);
    assert_eq!(one(|c| c.with_nsss(true)), 58);
    assert_eq!(one(|c| c.with_crwms(true)), 59);
    assert_eq!(one(|c| c.with_crims(true)), 60);

    // What Linux writes to enable a controller of 4 KiB pages, 64 B and 16 B entries.
    assert_eq!(
        Cc::new().with_iosqes(Sqe::SIZE_LOG2).with_iocqes(Cqe::SIZE_LOG2).with_en(true).into_bits(),
        0x0046_0001
    );
    let cc = Cc::from_bits(0x0146_7ff0);
    assert_eq!((cc.css(), cc.mps(), cc.ams()), (CommandSetSelected::ADMIN_ONLY, 15, Arbitration::VENDOR));
    assert_eq!((cc.shn(), cc.iosqes(), cc.iocqes()), (ShutdownNotification::NORMAL, 6, 4));
    assert!(!cc.en() && cc.crime());
    assert_eq!(Cc::new().with_mps(1).page_bytes(), 8192);

    let csts = Csts::from_bits(0x59);
    assert!(csts.rdy() && !csts.cfs() && csts.nssro() && !csts.pp() && csts.st());
    assert_eq!(csts.shst(), ShutdownStatus::COMPLETE);
    assert!(Csts::from_bits(u32::MAX).is_absent() && !csts.is_absent());

    assert_eq!(Aqa::new().with_asqs_z(0xfff).with_acqs_z(0x001).into_bits(), 0x0001_0fff);
    assert_eq!(Vs::from_bits(0x0001_0400), Vs::V1_4);
    assert_eq!(Vs::from_bits(0x0002_0000), Vs::V2_0);
    assert!(Vs::V1_4 < Vs::from_bits(0x0001_0401) && Vs::from_bits(0x0001_0401) < Vs::V2_0);
    assert_eq!(Vs::from_bits(0x0001_0302).to_string(), "1.3.2");
    assert_eq!(Nssr::RESET.into_bits().to_be_bytes(), *b"NVMe");

    let cmbsz = Cmbsz::from_bits(0x0004_021f);
    assert!(cmbsz.sqs() && cmbsz.cqs() && cmbsz.lists() && cmbsz.rds() && cmbsz.wds());
    assert_eq!((cmbsz.unit_bytes(), cmbsz.sz()), (Some(1 << 20), 0x40));
    assert_eq!(Cmbsz::new().with_szu(6).unit_bytes(), Some(64 << 30));
    assert_eq!(Cmbsz::new().with_szu(7).unit_bytes(), None);
    assert_eq!(Cmbloc::new().with_bir(2).with_cqda(true).with_ofst(1).into_bits(), 0x0000_1102);
    assert_eq!(Cmbmsc::new().with_cmse(true).with_cba(1).into_bits(), 0x1002);
    assert_eq!(Crto::from_bits(0x0002_0050), Crto::new().with_crimt(2).with_crwmt(0x50));
}

#[test]
fn enable_timeout_is_that_of_crto_where_there_is_one() {
    let crto = Crto::new().with_crwmt(600).with_crimt(300);
    let cap = Cap::new().with_to(255);
    assert_eq!(cap.enable_timeout_ms(crto, false), 127_500);
    assert_eq!(cap.with_crwms(true).enable_timeout_ms(crto, false), 300_000);
    assert_eq!(cap.with_crwms(true).with_crims(true).enable_timeout_ms(crto, true), 150_000);
    assert_eq!(cap.with_crwms(true).with_crims(true).enable_timeout_ms(crto, false), 300_000);
    assert_eq!(cap.with_crwms(true).enable_timeout_ms(Crto::new(), false), 127_500);
}

#[test]
fn doorbells_stand_apart_by_the_stride() {
    assert_eq!((sq_tail_doorbell(0, 0), cq_head_doorbell(0, 0)), (0x1000, 0x1004));
    assert_eq!((sq_tail_doorbell(3, 0), cq_head_doorbell(3, 0)), (0x1018, 0x101c));
    assert_eq!((sq_tail_doorbell(1, 4), cq_head_doorbell(1, 4)), (0x1080, 0x10c0));
    assert_eq!(cq_head_doorbell(u16::MAX, 15), 0x1000 + 131_071 * (4 << 15));
    assert_eq!(Cap::new().with_dstrd(15).doorbell_stride(), 128 << 10);
}

#[test]
fn attribute_bits_stand_where_the_spec_puts_them() {
    assert_eq!(Oacs::new().with_format_nvm(true).with_namespace_management(true).into_bits(), 0x000a);
    assert_eq!(Oacs::new().with_doorbell_buffer(true).with_lockdown(true).into_bits(), 0x0500);
    assert_eq!(Oncs::new().with_dataset_management(true).with_write_zeroes(true).with_copy(true).into_bits(), 0x010c);
    assert_eq!(Fna::from_bits(0x05), Fna::new().with_format_all(true).with_crypto_erase(true));
    assert_eq!(Vwc::from_bits(0x07).broadcast().name(), Some("supported"));
    assert_eq!(Fpi::from_bits(0x80 | 42), Fpi::new().with_supported(true).with_remaining(42));
    assert_eq!(Sgls::new().with_bit_bucket(true).with_transport(true).into_bits(), 0x0021_0000);
    assert_eq!(Flbas::from_bits(0x55), Flbas::new().with_index_lower(5).with_extended(true).with_index_upper(2));
    let format = LbaFormat::from_bits(0x020c_0008);
    assert_eq!((format.ms(), format.lbads(), format.rp(), format.lba_bytes()), (8, 12, 2, Some(4096)));
}
