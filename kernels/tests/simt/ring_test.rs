//! The kernel of ring tests, on drives in good health and on others.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use warprow_driver::{Controller, ControllerOptions};
use warprow_gpu_queues::{DoorbellAccess, RingTest, RingTestError};
use warprow_soft_controller::{Fault, Namespace, ProceduralBacking, QueueMatch, Rule, SoftController};
use warprow_spec::{NvmOpcode, Status, StatusCode};

use crate::queues::{Steps, disordered};
use crate::shim::{Shim, seeds};

/// LBAs that a test reads.
const READS: u64 = 768;
/// Queue pairs, of which the kernel's is the last.
const QUEUES: u16 = 4;

/// A drive whose every word differs, of few LBAs or many, that answers in any order.
fn drive(rng: &mut Rng, lba: u32) -> (Arc<SoftController>, Arc<Steps>) {
    let lbas = if rng.bool() { rng.u64(1..READS) } else { rng.u64(READS..100_000) };
    let len = (lbas * u64::from(lba)).next_multiple_of(4096);
    let content = ProceduralBacking::with(len, |block, words| {
        let number = |word: usize| (block * 64 + word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        words.iter_mut().enumerate().for_each(|(i, word)| *word = number(i));
    });
    let drive = disordered(rng, SoftController::builder(), true).namespace(Namespace::new(content).lba(lba));
    let drive = drive.build().unwrap();
    let steps = Arc::<Steps>::default();
    steps.add(drive.clone());
    (drive, steps)
}

pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let lba = [512, 4096][rng.usize(0..2)];
    let (drive, steps) = drive(&mut rng, lba);
    let options = ControllerOptions { queue_pairs: QUEUES, ..ControllerOptions::default() };
    let controller = Controller::open(drive.clone(), steps.clone(), options).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let lbas = namespace.lba_count();
    let test = RingTest {
        timeout: Duration::from_millis(50),
        ..RingTest::new((controller.clone(), namespace), DoorbellAccess::Memory)
    };
    let mut dice = rng.fork();
    let mut run = |shim: &mut Shim| {
        let mut beside = |idle: bool| match dice.u32(0..4) {
            _ if idle => steps.turn(3000),
            0 => steps.turn(150),
            _ => steps.pass(150),
        };
        shim.test_ring(&test, seed, Some(&mut beside))
    };
    let report = run(shim).map_err(|error| error.to_string())?;
    let contents = lbas.min(READS);
    if (report.lbas, report.contents, report.in_registers) != (READS, contents, false) || report.doorbells < 3 {
        return Err(format!("{report:?} of {lbas} LBAs"));
    }
    let nth = rng.u64(1..READS);
    let inject = |fault| {
        let rule = Rule::new(fault).on(QueueMatch::Id(controller.granted_queue_pairs()));
        drive.faults().inject(rule.io(NvmOpcode::READ).nth(nth))
    };
    let code = StatusCode::UnrecoveredReadError;
    let told = match seed % 3 {
        0 => {
            inject(Fault::Swallow);
            let outstanding = |error: &RingTestError| matches!(error, RingTestError::Silent { outstanding: 1, .. });
            run(shim).is_err_and(|error| outstanding(&error))
        }
        1 => {
            inject(Fault::Status(Status::from_code(code)));
            let is_it =
                |error: &RingTestError| matches!(error, RingTestError::Status { status, .. } if status.code() == code);
            run(shim).is_err_and(|error| is_it(&error))
        }
        _ => {
            inject(Fault::Duplicate);
            run(shim).is_err_and(|error| matches!(error, RingTestError::Anomalies { anomalies: 1, .. }))
        }
    };
    if told { Ok(()) } else { Err("a command that fails goes unnoticed".to_owned()) }
}

#[test]
fn drives_pass_or_are_found_out() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(24) {
        case(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}
