//! What drives report by themselves, as look-ups see it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use warprow_dma::{Clock, SystemClock};
use warprow_driver::{DriverError, FormatRequest};
use warprow_soft_controller::{Namespace, RamBacking, SoftController};
use warprow_spec::async_event::{AsyncEventKind, HealthEvent, NoticeEvent};
use warprow_spec::log::LogPageId;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use warprow_driver::Controller;
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, LookupError, Output, OutputRows, PlanOptions, Slot};
use warprow_store::view::MemberDrive;
use warprow_store::{
    ControllerEvent, DType, Device, DriveEvents, EventDetails, LoadOptions, NamespaceChanged, OpenOptions, Store,
    StoreError, TableLoad, TableSpec,
};

/// Look-ups look for events that often, at most.
const EVERY: Duration = Duration::from_millis(10);

const SPARE: (AsyncEventKind, LogPageId) = (AsyncEventKind::Health(HealthEvent::SPARE), LogPageId::SMART);
const NAMESPACE: (AsyncEventKind, LogPageId) =
    (AsyncEventKind::Notice(NoticeEvent::NAMESPACE_ATTRIBUTE), LogPageId::CHANGED_NAMESPACES);

/// A clock that goes only when it is told to.
#[derive(Default)]
struct Told(AtomicU64);

impl Clock for Told {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn relax(&self, _: u32) {
        std::thread::yield_now();
    }

    fn sleep(&self, _: Duration) {}
}

struct Fixture {
    drives: Vec<Arc<SoftController>>,
    store: Store,
    slot: Slot,
}

/// A table of 100 rows, each full of its id, on two drives.
fn fixture(clock: Arc<dyn Clock>) -> Fixture {
    let drive = |name| {
        let namespace = Namespace::new(RamBacking::new(16 << 20).unwrap());
        SoftController::builder().name(name).serial(name).namespace(namespace).build().unwrap()
    };
    let drives: Vec<_> = ["drive0", "drive1"].map(drive).into();
    let devices: Vec<_> = drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect();
    let store = Store::create(&devices, &Default::default(), &OpenOptions::default().with_clock(clock)).unwrap();
    let rows: Vec<u8> = (0..100).flat_map(|id| [id; 512]).collect();
    let spec = TableSpec::new("t", 100, 512, DType::U8);
    let source = &rows[..];
    let go = &mut |_| ControlFlow::Continue(());
    store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), go).unwrap();
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default().with_out(DType::U8)).unwrap();
    Fixture { drives, store, slot: plan.slot().unwrap() }
}

impl Fixture {
    /// Looks every row up, and checks it.
    fn look(&mut self) -> Result<(), LookupError> {
        let ids: Vec<u32> = (0..100).collect();
        let mut rows = vec![255; 100 * 512];
        let result = self.slot.lookup(&Batch::new(&ids, 1), &mut Output::new(OutputRows::U8(&mut rows), 512));
        match &result {
            Ok(_) => assert!(rows.chunks(512).zip(0..100).all(|(row, id)| row.iter().all(|&x| x == id))),
            Err(LookupError::NamespaceChanged(_)) => {
                assert!(rows.iter().all(|&x| x == 255), "the output is untouched")
            }
            Err(_) => {}
        }
        result.map(drop)
    }

    /// What look-ups have seen, without another look.
    fn seen(&self, drive: usize) -> DriveEvents {
        self.member(drive).events_seen()
    }

    fn member(&self, drive: usize) -> Arc<MemberDrive> {
        self.store.view().drives()[drive].clone().unwrap()
    }

    fn controller(&self, drive: usize) -> Arc<Controller> {
        self.member(drive).controller().clone()
    }

    /// Looks up until a look-up fails because a namespace has changed.
    fn until_changed(&mut self) -> NamespaceChanged {
        let began = Instant::now();
        loop {
            match self.look() {
                Err(LookupError::NamespaceChanged(changed)) => return changed,
                _ => assert!(began.elapsed() < Duration::from_secs(10), "nobody noticed"),
            }
        }
    }
}

#[test]
fn look_ups_see_what_drives_report_and_look_seldom() {
    let clock = Arc::new(Told::default());
    let mut fixture = fixture(clock.clone());
    fixture.look().unwrap();
    fixture.drives[1].raise_event(SPARE.0, SPARE.1);
    // Time for the drive to report it; none for the store.
    std::thread::sleep(Duration::from_millis(30));
    (0..10).for_each(|_| fixture.look().unwrap());
    assert_eq!(fixture.seen(1).total, 0, "it looked before it was time");
    let began = Instant::now();
    while fixture.seen(1).total == 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "nobody looked");
        clock.0.fetch_add(EVERY.as_nanos() as u64, Ordering::Relaxed);
        fixture.look().unwrap();
    }
    let events = fixture.store.drive_events();
    assert_eq!(
        events.iter().map(|event| (&*event.drive, event.total)).collect::<Vec<_>>(),
        [("drive0", 0), ("drive1", 1)]
    );
    let [ControllerEvent { event, details: EventDetails::Health(_) }] = &events[1].latest[..] else {
        panic!("{events:?}")
    };
    assert_eq!(event.kind(), SPARE.0);

    // Without look-ups, whoever asks sees them; the latest are kept.
    for round in 2..40 {
        fixture.drives[1].raise_event(SPARE.0, SPARE.1);
        let began = Instant::now();
        while fixture.store.drive_events()[1].total < round {
            assert!(began.elapsed() < Duration::from_secs(10), "event {round} is lost");
        }
    }
    assert_eq!(fixture.store.drive_events()[1].latest.len(), DriveEvents::KEPT);
}

#[test]
fn a_namespace_that_was_formatted_refuses_look_ups() {
    let mut fixture = fixture(Arc::new(SystemClock::new()));
    fixture.look().unwrap();
    fixture.controller(1).format(&FormatRequest::new(1, 4096), |_| {}).unwrap();
    fixture.drives[1].raise_event(NAMESPACE.0, NAMESPACE.1);
    let changed = fixture.until_changed();
    assert_eq!(changed.drive, "drive1");
    assert!(changed.was.contains("LBAs of 512 ") && changed.is.contains("LBAs of 4096 "), "{changed}");
    // It stays so, also if it is formatted back: the rows are gone.
    fixture.controller(1).format(&FormatRequest::new(1, 512), |_| {}).unwrap();
    fixture.drives[1].raise_event(NAMESPACE.0, NAMESPACE.1);
    assert_eq!(fixture.until_changed(), changed);
    let is = |result: Result<(), StoreError>| match result {
        Err(StoreError::NamespaceChanged(error)) => assert_eq!(error, changed),
        other => panic!("{other:?}"),
    };
    is(fixture.store.scan("t", 0..100, &mut |_, _| ControlFlow::Continue(())));
    is(fixture.store.verify("t", &mut |_| ControlFlow::Continue(())).map(drop));
    is(fixture.store.ranks("t").map(drop));
    is(HostExecutor::attach(&fixture.store, HostOptions::default()).map(drop));
    let spec = TableSpec::new("u", 1, 512, DType::U8);
    let source = &[1; 512][..];
    let go = &mut |_| ControlFlow::Continue(());
    is(fixture.store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), go).map(drop));
}

#[test]
fn a_namespace_that_is_as_it_was_serves_on() {
    let mut fixture = fixture(Arc::new(SystemClock::new()));
    fixture.drives[0].raise_event(NAMESPACE.0, NAMESPACE.1);
    let began = Instant::now();
    while fixture.seen(0).total == 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "nobody looked");
        fixture.look().unwrap();
    }
    fixture.look().unwrap();
    let [ControllerEvent { details: EventDetails::ChangedNamespaces(_), .. }] = &fixture.seen(0).latest[..] else {
        panic!("{:?}", fixture.seen(0))
    };
}

#[test]
fn a_reset_takes_events_so_namespaces_are_looked_at_after_it() {
    let mut fixture = fixture(Arc::new(SystemClock::new()));
    fixture.look().unwrap();
    fixture.controller(0).format(&FormatRequest::new(1, 4096), |_| {}).unwrap();
    let member = fixture.member(0);
    let mut first = true;
    let function = member.controller().name().clone();
    let mut recreate = || match std::mem::take(&mut first) {
        true => Err(DriverError::Down { function: function.clone() }),
        false => Ok(()),
    };
    member.revive(None, &mut recreate).unwrap();
    let error = fixture.look().unwrap_err();
    assert!(matches!(&error, LookupError::NamespaceChanged(changed) if changed.drive == "drive0"), "{error}");
}
