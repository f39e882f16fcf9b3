//! Several namespaces of one controller in one store.

#[path = "../../lookup/tests/common/mod.rs"]
mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Table;
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, LookupError, Output, OutputRows, PlanOptions, Slot};
use warprow_soft_controller::{Fault, Namespace, RamBacking, Rule, SoftController};
use warprow_spec::{AdminOpcode, NvmOpcode};
use warprow_store::{
    DType, Device, FormatConsent, FormatProposal, FormatSettings, LbaChoice, LoadOptions, OpenOptions, Store,
    StoreError, TableSpec,
};

const ROWS: u64 = 2000;
const DIM: usize = 128;

/// Two namespaces of one controller.
fn two(queue_pairs: u16) -> (Arc<SoftController>, [Device; 2]) {
    let namespace = || Namespace::new(RamBacking::new(16 << 20).unwrap());
    let builder = SoftController::builder().name("two").serial("two").queue_pairs(queue_pairs);
    let drive = builder.namespace(namespace()).namespace(namespace()).build().unwrap();
    let first = Device::new(drive.clone(), 1);
    (drive, [first.clone(), first.with_namespace(2)])
}

fn options() -> OpenOptions {
    OpenOptions::default().with_timeout(Duration::from_millis(300)).with_admin_timeout(Duration::from_millis(500))
}

fn table() -> Table {
    let mut random = fastrand::Rng::with_seed(11);
    let rows = (0..ROWS * DIM as u64).flat_map(|_| random.f32().to_le_bytes()).collect();
    Table { spec: TableSpec::new("t", ROWS, DIM as u32, DType::F32), rows, ranks: None, keys: None }
}

fn look(slot: &mut Slot, table: &Table) -> Result<u64, LookupError> {
    let ids: Vec<u64> = (0..ROWS).step_by(3).collect();
    let mut rows = vec![0.0; ids.len() * DIM];
    let report = slot.lookup(&Batch::new(&ids, 1), &mut Output::new(OutputRows::F32(&mut rows), DIM))?;
    for (&id, row) in ids.iter().zip(rows.chunks(DIM)) {
        assert_eq!(row, common::widen(DType::F32, table.row(id)), "id {id}");
    }
    Ok(report.rows_ssd)
}

#[test]
fn namespaces_of_one_controller_make_a_store() {
    let (drive, devices) = two(16);
    let settings = FormatSettings::default().with_lba(LbaChoice::Bytes(4096)).with_open(options());
    let plan = FormatProposal::new(&devices, settings).unwrap();
    let consent = FormatConsent::Token(plan.token().to_owned());
    let store = plan.run(&consent, &mut |_, _| {}).unwrap();
    assert_eq!(store.drives(), [Some("two".to_owned()), Some("two/2".to_owned())]);
    let table = table();
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    drop(store);

    let alone = Store::open(&devices[..1], &options()).unwrap_err();
    assert!(alone.to_string().contains("two/2"), "{alone}");
    let twice = Store::open(&[devices[1].clone(), devices[0].clone(), devices[1].clone()], &options()).unwrap_err();
    assert!(matches!(&twice, StoreError::OpenedTwice { drive } if drive == "two/2"), "{twice}");

    let store = Store::open(&[devices[1].clone(), devices[0].clone()], &options()).unwrap();
    let verified = store.verify("t", &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(verified.rows, ROWS);
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default().with_slots(2)).unwrap();
    let mut slot = plan.slot().unwrap();
    let mut other = plan.slot().unwrap();
    assert!(look(&mut slot, &table).unwrap() > 0);
    look(&mut other, &table).unwrap();

    // A queue that is not deleted costs a reset, for which the queues of both namespaces must be let go.
    for nsid in [1, 2] {
        drive.faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).nsid(nsid));
        look(&mut slot, &table).unwrap_err();
        drive.faults().inject(Rule::new(Fault::Swallow).admin(AdminOpcode::DELETE_IO_SQ));
        let began = Instant::now();
        look(&mut slot, &table).unwrap();
        // The time limit of the deletion, but not that of waiting for owners.
        assert!(began.elapsed() < Duration::from_millis(1900), "{:?}", began.elapsed());
        look(&mut other, &table).unwrap();
    }
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default().with_replace());
    assert_eq!(store.verify("t", &mut |_| ControlFlow::Continue(())).unwrap().rows, ROWS);
}

#[test]
fn metadata_of_both_namespaces_gets_by_with_one_queue() {
    let (_, devices) = two(2);
    let store = Store::create(&devices, &Default::default(), &options()).unwrap();
    let table = table();
    // Rows take both queues; metadata has none left then, and both again afterwards.
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default()).unwrap();
    look(&mut plan.slot().unwrap(), &table).unwrap();
    drop(plan);
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default().with_replace());
    drop((host, store));
    let store = Store::open(&devices, &options()).unwrap();
    assert_eq!(store.verify("t", &mut |_| ControlFlow::Continue(())).unwrap().rows, ROWS);
}
