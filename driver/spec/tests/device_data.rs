//! Data as a device returns it: read right where it is right, and without panic where it is garbage.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use warprow_spec::ascii::{self, Ascii};
use warprow_spec::async_event::AsyncEvent;
use warprow_spec::features::*;
use warprow_spec::identify::*;
use warprow_spec::log::*;
use warprow_spec::nvm::DsmRange;
use warprow_spec::registers::*;
use warprow_spec::{Cqe, FromBytes, FromZeros, IntoBytes, Sqe};

#[test]
fn text_fields_lose_their_padding_and_nothing_else() {
    assert_eq!(Ascii(b"  QEMU NVMe Ctrl  \0\0").to_string(), "QEMU NVMe Ctrl");
    assert_eq!(Ascii(b"a\x1b[31m\xff b ").to_string(), "a?[31m? b");
    assert_eq!(Ascii(b"        ").to_string(), "");
    assert_eq!(Ascii(b"").to_string(), "");
    assert_eq!(ascii::padded::<8>("1.0"), *b"1.0     ");
    assert_eq!(ascii::padded::<4>("lengthy"), *b"leng");
    assert_eq!(ascii::padded::<4>("é\n"), *b"??  ");
    assert_eq!(Ascii(&ascii::padded::<20>("Warprow Soft")), "Warprow Soft");
}

#[test]
fn controller_limits_are_read() {
    let mut id = IdentifyController::new_zeroed();
    (id.sn, id.mn, id.fr) = (ascii::padded("S1"), ascii::padded("A drive"), ascii::padded("9"));
    id.subnqn[..5].copy_from_slice(b"nqn.x");
    assert_eq!(id.serial(), "S1");
    assert_eq!(id.model(), "A drive");
    assert_eq!(id.firmware(), "9");
    assert_eq!(id.subsystem_nqn(), "nqn.x");
    assert_eq!(id.max_transfer_bytes(4096), None);
    id.mdts = 5;
    assert_eq!(id.max_transfer_bytes(4096), Some(128 << 10));
    id.mdts = 255;
    assert_eq!(id.max_transfer_bytes(4096), None);
    id.mdts = 60;
    assert_eq!(id.max_transfer_bytes(4096), None);
    id.npss_z = 255;
    assert_eq!(id.power_states().count(), 32);
    id.psd[0] = PowerState { mp: 900, ..PowerState::default() };
    assert_eq!(id.psd[0].max_power_tenth_mw(), Some(90_000));
    let (erase_all, format_all) = (Fna::new().with_erase_all(true), Fna::new().with_format_all(true));
    assert!(erase_all.reaches_all(true) && !erase_all.reaches_all(false));
    assert!(format_all.reaches_all(false) && !format_all.reaches_all(true));
}

#[test]
fn namespace_formats_are_read() {
    let mut id = IdentifyNamespace::new_zeroed();
    assert!(!id.is_active());
    id.nsze = 1000;
    id.nlbaf_z = 2;
    id.lbaf[0] = LbaFormat::new().with_lbads(9);
    id.lbaf[2] = LbaFormat::new().with_lbads(12).with_ms(8);
    id.lbaf[3] = LbaFormat::new().with_lbads(9);
    let formats: Vec<_> = id.formats().map(|(index, format)| (index, format.to_string())).collect();
    assert_eq!(formats, [(0, "512 B".into()), (2, "4096 B + 8 B metadata".into())]);
    // The upper bits of the index do not count with 16 formats or fewer.
    id.flbas = Flbas::new().with_index_lower(2).with_index_upper(3);
    assert_eq!(id.format_index(), 2);
    assert_eq!(id.size_bytes(), Some(4_096_000));
    id.flbas = Flbas::new().with_index_lower(3);
    assert_eq!(id.format(), None);
    id.nlbaf_z = 40;
    id.flbas = Flbas::new().with_index_lower(1).with_index_upper(2);
    id.lbaf[33] = LbaFormat::new().with_lbads(9);
    assert_eq!((id.format_index(), id.size_bytes()), (33, Some(512_000)));
    id.nsze = u64::MAX;
    assert_eq!(id.size_bytes(), None);
    assert_eq!([0, 8, 32, 255].map(|lbads| LbaFormat::new().with_lbads(lbads).lba_bytes()), [None; 4]);
}

#[test]
fn lists_end_where_they_should() {
    let mut list = ActiveNamespaceList([0; 1024]);
    assert_eq!(list.iter().count(), 0);
    list.0[..4].copy_from_slice(&[1, 5, 0, 7]);
    assert_eq!(list.iter().collect::<Vec<_>>(), [1, 5]);
    assert_eq!(ActiveNamespaceList([3; 1024]).iter().count(), 1024);

    let mut changed = ChangedNamespaceList([0; 1024]);
    changed.0[0] = 4;
    assert!(!changed.overflowed());
    assert_eq!(changed.iter().collect::<Vec<_>>(), [4]);
    changed.0[0] = u32::MAX;
    assert!(changed.overflowed());
    assert_eq!(changed.iter().count(), 0);

    let mut slots = FirmwareSlotLog::new_zeroed();
    slots.frs[1] = ascii::padded("2.5");
    assert_eq!(slots.revision(2).map(|r| r.to_string()).as_deref(), Some("2.5"));
    assert!([0, 1, 8, 255].iter().all(|&slot| slots.revision(slot).is_none()));
}

#[test]
fn namespace_descriptors_make_the_round_trip() {
    let descriptors = [
        NamespaceDescriptor::Eui64([1, 2, 3, 4, 5, 6, 7, 8]),
        NamespaceDescriptor::Nguid([9; 16]),
        NamespaceDescriptor::Uuid([7; 16]),
        NamespaceDescriptor::CommandSet(CommandSet::NVM),
        NamespaceDescriptor::Other { nidt: 3, nid: b"short" },
        NamespaceDescriptor::Other { nidt: 0xee, nid: &[1; 255] },
    ];
    let mut list = [0; 4096];
    let mut used = 0;
    for descriptor in &descriptors {
        used += descriptor.write_to(&mut list[used..]).unwrap();
    }
    assert_eq!(list[..12], [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(used, 12 + 20 + 20 + 5 + 9 + 259);
    assert_eq!(NamespaceDescriptor::list(&list).collect::<Vec<_>>(), descriptors);
    // Cut anywhere, the list ends with the last whole descriptor.
    for cut in 0..used {
        assert!(descriptors.starts_with(&NamespaceDescriptor::list(&list[..cut]).collect::<Vec<_>>()), "cut at {cut}");
    }
    assert_eq!(descriptors[0].write_to(&mut [0; 11]), None);
    assert_eq!(NamespaceDescriptor::Other { nidt: 9, nid: &[0; 256] }.write_to(&mut [0; 512]), None);
}

/// Runs `check` on pages of garbage, of ones and of zeros, from a fixed seed.
fn with_garbage(check: impl Fn(&[u8])) {
    check(&[0; 4096]);
    check(&[0xff; 4096]);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[42; 32]);
    let mut runner =
        TestRunner::new_with_rng(Config { cases: 128, failure_persistence: None, ..Config::default() }, rng);
    let checked = runner.run(&proptest::collection::vec(any::<u8>(), 4096), |page| {
        check(&page);
        Ok(())
    });
    checked.unwrap();
}

/// A structure over the first bytes of a page; whatever those are, it must be printable and give its bytes back.
fn view<T: FromBytes + IntoBytes + zerocopy::Immutable + std::fmt::Debug>(page: &[u8]) -> T {
    let (value, _) = T::read_from_prefix(page).unwrap();
    assert_eq!(value.as_bytes(), &page[..size_of::<T>()]);
    assert!(!format!("{value:?}").is_empty());
    value
}

#[test]
fn identify_data_may_be_garbage() {
    with_garbage(|page| {
        let controller: IdentifyController = view(page);
        let texts = [controller.serial(), controller.model(), controller.firmware(), controller.subsystem_nqn()];
        assert!(texts.iter().all(|text| text.to_string().bytes().all(|b| (b' '..=b'~').contains(&b))));
        assert!((1..=32).contains(&controller.power_states().count()));
        assert!(controller.power_states().all(|state| state.max_power_tenth_mw() != Some(0)));
        for page_bytes in [4096, 128 << 20, u64::MAX] {
            assert_ne!(controller.max_transfer_bytes(page_bytes), Some(0));
        }

        let namespace: IdentifyNamespace = view(page);
        assert!(namespace.format_index() < 64);
        assert!(namespace.formats().all(|(index, format)| index < 64 && format.lba_bytes() >= Some(512)));
        if let Some(format) = namespace.format() {
            assert_eq!(format, namespace.lbaf[usize::from(namespace.format_index())]);
            assert!(!format.to_string().is_empty());
        }
        if let Some(bytes) = namespace.size_bytes() {
            assert!(bytes >= namespace.nsze);
        }

        let active: ActiveNamespaceList = view(page);
        assert!(active.iter().all(|nsid| nsid != 0));
        let bytes: usize = NamespaceDescriptor::list(page).map(|d| 4 + d.nid().len()).sum();
        assert!(bytes <= page.len());
    });
}

#[test]
fn log_pages_may_be_garbage() {
    with_garbage(|page| {
        let error: ErrorLogEntry = view(page);
        assert_eq!(error.is_valid(), error.error_count != 0);
        assert!(!error.status_phase.status().to_string().is_empty());
        view::<SmartLog>(page);
        let slots: FirmwareSlotLog = view(page);
        (0..=255).filter_map(|slot| slots.revision(slot)).for_each(|text| assert!(text.to_string().len() <= 8));
        let changed: ChangedNamespaceList = view(page);
        assert!(!changed.overflowed() || changed.iter().count() == 0);
        view::<CommandsSupportedLog>(page);
    });
}

#[test]
fn queue_entries_and_registers_may_be_garbage() {
    with_garbage(|page| {
        let sqe: Sqe = view(page);
        assert_eq!(Sqe::from_words(sqe.as_words()), sqe);
        assert_eq!(sqe.with_slba(sqe.slba()), sqe);
        let cqe: Cqe = view(page);
        assert_eq!(Cqe::from_words(cqe.as_words()), cqe);
        assert_eq!(cqe.phase(), Cqe::phase_of_word(cqe.as_words()[1]));
        assert!(!cqe.status().to_string().is_empty());
        view::<DsmRange>(page);

        let cap: Cap = view(page);
        assert!((1..=65_536).contains(&cap.max_queue_entries()));
        assert!(
            (4096..=128 << 20).contains(&cap.min_page_bytes()) && (4096..=128 << 20).contains(&cap.max_page_bytes())
        );
        let crto: Crto = view(&page[8..]);
        assert!(cap.enable_timeout_ms(crto, true) >= cap.disable_timeout_ms());
        assert_eq!(cq_head_doorbell(cqe.sqid, page[0]) - sq_tail_doorbell(cqe.sqid, page[0]), 4 << (page[0] & 0xf));
        view::<Vs>(page).to_string();
        assert!(view::<Cc>(page).page_bytes() >= 4096);
        view::<Csts>(page);
        view::<Aqa>(page);
        view::<Cmbloc>(page);
        view::<Cmbsz>(page).unit_bytes();
        view::<Cmbmsc>(page);
        view::<Nssr>(page);

        let dw0 = cqe.dw0;
        assert!(!AsyncEvent::from_bits(dw0).to_string().is_empty());
        assert!((1..=65_536).contains(&NumberOfQueues::from_bits(dw0).pairs()));
        assert_eq!(AsyncEventConfig::from_bits(dw0).critical_warnings().into_bits(), dw0 as u8);
        let printed = format!(
            "{:?} {:?} {:?} {:?}",
            ArbitrationFeature::from_bits(dw0),
            PowerManagement::from_bits(dw0),
            TemperatureThreshold::from_bits(dw0),
            ErrorRecovery::from_bits(dw0)
        );
        assert!(printed.contains("tler"));
    });
}
