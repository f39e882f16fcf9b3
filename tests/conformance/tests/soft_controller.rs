//! The software controller passes what QEMU's model passes (tests/guest), in every shape that it can take.

use std::sync::Arc;
use std::time::Duration;

use warprow_conformance::{CHECKS, Subject, Verdict};
use warprow_dma::SystemClock;
use warprow_driver::{AdminAnswer, Controller, ControllerOptions, DriverError, HostMemory, ResetKind};
use warprow_soft_controller::{ControllerBuilder, Fault, Namespace, RamBacking, Rule, SoftController};
use warprow_spec::admin::FeatureSelect;
use warprow_spec::features::FeatureId;
use warprow_spec::identify::Fna;
use warprow_spec::registers::Vs;
use warprow_spec::{AdminOpcode, NvmOpcode, Sqe, Status, StatusCode};

/// Sends an admin command as it is.
#[allow(unsafe_code, reason = "commands that the driver would not send")]
fn admin(controller: &Controller, sqe: Sqe) -> Result<AdminAnswer, DriverError> {
    // SAFETY: no memory of these tests is ever plain bytes, so that wherever the device writes it is under no reference.
    unsafe { controller.admin(sqe, &[], Duration::from_secs(2)) }
}

/// A drive of two namespaces.
fn drive() -> ControllerBuilder {
    let namespace = |bytes| Namespace::new(RamBacking::new(bytes).expect("memory")).lba(512);
    SoftController::builder().namespace(namespace(64 << 20)).namespace(namespace(16 << 20))
}

/// In this process there are none; over a socket there are.
const INTERRUPTS: &str = "answers to admin commands interrupt";

/// Runs every check; those that need a write cache may be skipped.
fn passes(builder: ControllerBuilder) {
    passes_but(builder, &["the volatile write cache is switched", INTERRUPTS]);
}

/// Runs every check; only those named may be skipped.
fn passes_but(builder: ControllerBuilder, may_skip: &[&str]) {
    let subject = Subject { function: builder.build().expect("a controller"), clock: Arc::new(SystemClock::new()) };
    let mut wrong = Vec::new();
    for check in CHECKS {
        match check.run(&subject) {
            Ok(Verdict::Passed) => {}
            Ok(Verdict::Skipped(why)) if may_skip.contains(&check.name) => println!("skip {}: {why}", check.name),
            Ok(Verdict::Skipped(why)) => wrong.push(format!("{}: skipped: {why}", check.name)),
            Err(error) => wrong.push(format!("{}: {error:#}", check.name)),
        }
    }
    assert!(wrong.is_empty(), "{} of {} checks:\n{}", wrong.len(), CHECKS.len(), wrong.join("\n"));
}

#[test]
fn plain() {
    passes(drive());
}

#[test]
fn two_workers() {
    passes(drive().workers(2));
}

#[test]
fn of_version_1_4_with_short_transfers_and_few_queues() {
    passes(drive().version(Vs::V1_4).max_transfer(16 << 10).queue_pairs(3).queue_entries(64));
}

#[test]
fn with_wide_doorbells_and_large_queues_and_transfers() {
    passes(drive().doorbell_stride(4).queue_entries(65536).max_transfer(4 << 20).max_page(4));
}

#[test]
fn with_formats_that_reach_every_namespace() {
    passes(drive().format_attributes(Fna::new().with_format_all(true)));
}

#[test]
fn with_a_write_cache() {
    let namespace = || Namespace::new(RamBacking::new(16 << 20).expect("memory")).lba(512).write_cache(1 << 20);
    passes_but(SoftController::builder().namespace(namespace()).namespace(namespace()), &[INTERRUPTS]);
}

#[test]
fn that_borrows_memory() {
    passes(drive().host_memory(64, 16));
    // Lent, again after resets, found as it was left before the shutdown; and what is wrong is refused.
    let drive = drive().host_memory(64, 16).build().expect("a controller");
    let open = |limit| {
        let options = ControllerOptions { host_memory_limit: limit, ..ControllerOptions::default() };
        Controller::open(drive.clone(), Arc::new(SystemClock::new()), options).expect("it opens")
    };
    let controller = open(1 << 20);
    let lent = HostMemory::Lent(64 << 12);
    assert_eq!(controller.host_memory(), lent);
    for kind in [ResetKind::Controller, ResetKind::Function] {
        controller.reset(kind).expect("a reset");
        assert_eq!(controller.host_memory(), lent);
    }
    let send = |sqe| match admin(&controller, sqe) {
        Ok(_) => None,
        Err(DriverError::Command { status, .. }) => Some(status.code()),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(send(Sqe::lend_host_memory(64, 0x1000, 1)), Some(StatusCode::CommandSequenceError), "lent already");
    let take_back = Sqe { cdw11: 0, ..Sqe::lend_host_memory(0, 0, 0) };
    assert_eq!(send(take_back), None, "every mark is there");
    assert_eq!(send(take_back), None);
    assert_eq!(send(Sqe::lend_host_memory(15, 0x1000, 1)), Some(StatusCode::InvalidField), "less than it needs");
    assert!(send(Sqe::lend_host_memory(64, 0x1000, 1)).is_some(), "no memory there");
    let page = controller.allocate(2 * 4096).expect("memory");
    page.memory().store_u64(0, page.iova() + 4096);
    page.memory().store_u64(8, 64);
    assert!(send(Sqe::lend_host_memory(64, page.iova(), 1)).is_some(), "fewer pages than it says");
    drop(page);
    let lost = drive.dma_faults();
    controller.reset(ResetKind::Controller).expect("a reset");
    assert_eq!(controller.host_memory(), lent);
    controller.shutdown().expect("it gives the memory back first");
    drop(controller);
    assert_eq!(open(32 << 12).host_memory(), HostMemory::Lent(32 << 12), "less than it would like");
    assert!(matches!(open(8 << 12).host_memory(), HostMemory::Withheld(_)), "less than it needs");
    assert_eq!(drive.dma_faults(), lost);
}

/// A host that writes to memory that it has lent.
#[test]
fn memory_that_was_spoilt_while_it_was_lent_is_noticed() {
    let drive = drive().host_memory(16, 16).build().expect("a controller");
    let options = ControllerOptions { host_memory_limit: 0, ..ControllerOptions::default() };
    let controller = Controller::open(drive, Arc::new(SystemClock::new()), options).expect("it opens");
    let memory = controller.allocate(17 * 4096).expect("memory");
    for spoilt in [false, true] {
        memory.memory().store_u64(0, memory.iova() + 4096);
        memory.memory().store_u64(8, 16);
        let lend = Sqe::lend_host_memory(16, memory.iova(), 1);
        admin(&controller, lend).expect("it takes the memory");
        if spoilt {
            memory.memory().store_u64(9 * 4096, 1);
        }
        let back = Sqe { cdw11: 0, ..Sqe::lend_host_memory(0, 0, 0) };
        assert_eq!(admin(&controller, back).is_err(), spoilt);
    }
}

#[test]
fn that_would_change_its_power_state() {
    passes(drive().autonomous_power_states());
    for allowed in [false, true] {
        let drive = drive().autonomous_power_states().build().expect("a controller");
        let options = ControllerOptions { autonomous_power_states: allowed, ..ControllerOptions::default() };
        let controller = Controller::open(drive, Arc::new(SystemClock::new()), options).expect("it opens");
        for _ in 0..2 {
            let feature = FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION;
            let on = controller.feature(feature, 0, FeatureSelect::CURRENT).expect("the feature");
            assert_eq!(on, u32::from(allowed));
            controller.reset(ResetKind::Controller).expect("a reset, after which it is on again");
        }
    }
}

#[test]
fn out_of_order() {
    let late = Duration::from_micros(50);
    passes(drive().seed(11).permute().jitter(late).partial_fetch().delay_one_in(100, Duration::from_millis(2)));
}

#[test]
fn slow_to_become_ready() {
    passes(drive().ready_delay(Duration::from_millis(5)).shutdown_delay(Duration::from_millis(20)));
}

/// A controller that answers with success and does nothing, or spoils data, is found out by each check named.
#[test]
fn lies_are_found_out() {
    let lie = || Rule::new(Fault::Status(Status::SUCCESS)).always();
    let spoilt = || Rule::new(Fault::Corrupt).always();
    let data = ["what is written is read", "PRPs describe any buffer", "scattered buffers", "many queues side by side"];
    let resets = ["resets keep data and lose commands", "a reset waits for the owners of queues", "shutdown, and back"];
    let table: &[(&str, Rule, &[&str])] = &[
        ("writes that are not carried out", lie().io(NvmOpcode::WRITE), &data),
        ("reads that are not carried out", lie().io(NvmOpcode::READ), &data),
        ("reads without data", lie().io(NvmOpcode::READ), &["resets under load", "aborts under load"]),
        ("reads of spoilt data", spoilt().io(NvmOpcode::READ), &["resets under load", "aborts under load"]),
        ("writes that spoil a bit", spoilt().io(NvmOpcode::WRITE), &data),
        ("reads that spoil a bit", spoilt().io(NvmOpcode::READ), &data),
        ("writes that a reset loses", lie().io(NvmOpcode::WRITE), &resets),
        ("writes to the wrong namespace", lie().io(NvmOpcode::WRITE).nsid(2), &["namespaces are separate"]),
        (
            "completions that come twice",
            Rule::new(Fault::Duplicate).always().io(NvmOpcode::READ),
            &["what is written is read", "a full queue answers every command once", "aborts under load"],
        ),
        ("Write Zeroes that does nothing", lie().io(NvmOpcode::WRITE_ZEROES), &["Write Zeroes"]),
        ("Compare that finds all alike", lie().io(NvmOpcode::COMPARE), &["Compare"]),
        (
            "any I/O command succeeds",
            lie().on(warprow_soft_controller::QueueMatch::Io),
            &[
                "LBAs out of range are refused",
                "unknown I/O commands and namespaces are refused",
                "the largest transfer, and one block more",
                "Deallocate",
                "Flush and forced unit access",
                "the smallest queues, around and around",
            ],
        ),
        (
            "formats that do nothing",
            lie().admin(AdminOpcode::FORMAT_NVM),
            &["formats to every LBA size", "LBA formats that are not offered are refused"],
        ),
        ("aborts of nothing that succeed", lie().admin(AdminOpcode::ABORT), &["Abort of nothing aborts nothing"]),
        ("any admin command 78h", lie().admin(AdminOpcode(0x78)), &["unknown admin commands are refused"]),
        ("deletions that do nothing", lie().admin(AdminOpcode::DELETE_IO_CQ), &["impossible queues are refused"]),
        (
            "features that are not set",
            lie().admin(AdminOpcode::SET_FEATURES),
            &["a temperature event is reported, and again", "unknown features and log pages are refused"],
        ),
        ("logs that are empty", lie().admin(AdminOpcode::GET_LOG_PAGE), &["the SMART log counts commands"]),
        (
            "Identify that says nothing",
            lie().admin(AdminOpcode::IDENTIFY),
            &[
                "Identify Controller is credible",
                "namespaces are listed and described",
                "unknown namespaces and structures are refused",
            ],
        ),
    ];
    let mut believed = Vec::new();
    for (lie, rule, names) in table {
        for name in *names {
            let check = CHECKS.iter().find(|check| check.name == *name).expect("a check of that name");
            let drive = drive().build().expect("a controller");
            drive.faults().inject(rule.clone());
            let subject = Subject { function: drive, clock: Arc::new(SystemClock::new()) };
            if let Ok(verdict) = check.run(&subject) {
                believed.push(format!("{lie}: {name}: {verdict:?}"));
            }
        }
    }
    assert!(believed.is_empty(), "believed:\n{}", believed.join("\n"));
}
