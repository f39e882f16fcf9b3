//! What drives report by themselves. Whoever uses a drive looks now and then, by a clock that it reads anyway.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use warprow_driver::{Controller, Details, Event, Namespace};

/// Time between two looks, and while a log page is being read.
const EVERY: Duration = Duration::from_millis(10);
const SOON: Duration = Duration::from_micros(100);
/// Events that are kept.
const KEPT: usize = 32;

/// What a drive has reported by itself since the store was opened. Members that are namespaces of one controller have the
/// same events.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DriveEvents {
    /// The drive.
    pub drive: String,
    /// Events since the store was opened.
    pub total: u64,
    /// The latest of them, at most 32, oldest first.
    pub latest: Vec<Event>,
}

/// A drive's namespace is no longer what it was when the store was opened: another format, another size, another namespace, or
/// none. Its rows must not be read by addresses that were meant for the old one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "drive {drive}: its namespace was changed under the store, from {was} to {is}; close the store and open it again; if the \
     drive was formatted, format the store and load its tables again"
)]
#[non_exhaustive]
pub struct NamespaceChanged {
    /// The drive.
    pub drive: String,
    /// What the namespace was.
    pub was: String,
    /// What it is.
    pub is: String,
}

/// A namespace, by what must not change.
pub(crate) fn describe(namespace: &Namespace) -> String {
    let (lbas, bytes, metadata) = (namespace.lba_count(), namespace.lba_bytes(), namespace.metadata_bytes());
    let (nguid, eui64) = (u128::from_be_bytes(namespace.nguid()), u64::from_be_bytes(namespace.eui64()));
    format!("{lbas} LBAs of {bytes} + {metadata} B (NGUID {nguid:032x}, EUI-64 {eui64:016x})")
}

/// Looks for a controller's events.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// When to look again: nanoseconds of the clock.
    next: AtomicU64,
    /// Events that concern namespaces.
    namespace_notices: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    total: u64,
    latest: VecDeque<Event>,
}

impl Watch {
    /// Looks, if it is time and nobody else does. Waits for nothing, and allocates only for events.
    #[inline]
    pub(crate) fn look(&self, controller: &Controller, now: Duration) {
        if nanos(now) >= self.next.load(Ordering::Relaxed) {
            self.look_now(controller, now);
        }
    }

    /// Whether a log page is being read, or somebody else looks.
    #[cold]
    fn look_now(&self, controller: &Controller, now: Duration) -> bool {
        let mut seen = match self.seen.try_lock() {
            Ok(seen) => seen,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return true,
        };
        let Some(polled) = controller.poll_events(|event| seen.add(controller, event)) else { return true };
        self.namespace_notices.store(polled.namespace_notices, Ordering::Relaxed);
        let next = now.saturating_add(if polled.reading { SOON } else { EVERY });
        self.next.store(nanos(next), Ordering::Relaxed);
        polled.reading
    }

    /// Looks, and waits for the log pages of what has been reported, as long as an admin command may take.
    pub(crate) fn look_well(&self, controller: &Controller) {
        let clock = controller.clock();
        let (began, mut turn) = (clock.now(), 0);
        let limit = controller.options().admin_timeout;
        while self.look_now(controller, clock.now()) && clock.now().saturating_sub(began) < limit {
            clock.relax(turn);
            turn = turn.saturating_add(1);
        }
    }

    pub(crate) fn namespace_notices(&self) -> u64 {
        self.namespace_notices.load(Ordering::Relaxed)
    }

    /// What was seen so far, for the member `drive`.
    pub(crate) fn events(&self, drive: String) -> DriveEvents {
        let seen: MutexGuard<'_, Seen> = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        DriveEvents { drive, total: seen.total, latest: seen.latest.iter().cloned().collect() }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Seen {
    fn add(&mut self, controller: &Controller, event: Event) {
        let function = controller.name();
        match &event.details {
            Details::Health(smart) => tracing::warn!(
                %function, event = %event.event, warnings = ?smart.critical_warning,
                kelvins = smart.composite_temperature.get(), spare_percent = smart.available_spare,
                used_percent = smart.percentage_used, media_errors = smart.media_errors.get(),
                "the drive reports on its health"
            ),
            Details::Errors(errors) => {
                tracing::warn!(%function, event = %event.event, latest = ?errors.first(), "the drive reports errors");
            }
            Details::Other(_) => tracing::warn!(%function, event = %event.event, "the drive reports an event"),
            details => tracing::warn!(%function, event = %event.event, ?details, "the drive reports an event"),
        }
        self.total += 1;
        if self.latest.len() == KEPT {
            self.latest.pop_front();
        }
        self.latest.push_back(event);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;
    use std::time::Instant;

    use warprow_dma::{Clock, SystemClock};
    use warprow_driver::{DriverError, FormatRequest};
    use warprow_soft_controller::{Namespace, Ram, SoftController};
    use warprow_spec::async_event::{AsyncEventKind, HealthEvent, NoticeEvent};
    use warprow_spec::log::LogPageId;

    use super::*;
    use crate::{
        Batch, DType, Device, Feature, HostOptions, LoadOptions, LookupError, OpenOptions, Output, PlanOptions, Rows,
        Slot, Store, StoreError, TableLoad, TableSpec,
    };

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

    struct World {
        drives: Vec<Arc<SoftController>>,
        store: Store,
        slot: Slot,
    }

    /// A table of 100 rows, each full of its id, on two drives.
    fn world(clock: Arc<dyn Clock>) -> World {
        let drive = |name| {
            let namespace = Namespace::new(Ram::new(16 << 20).unwrap());
            SoftController::builder().name(name).serial(name).namespace(namespace).build().unwrap()
        };
        let drives: Vec<_> = ["drive0", "drive1"].map(drive).into();
        let devices: Vec<_> = drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect();
        let store = Store::create(&devices, &Default::default(), &OpenOptions::default().with_clock(clock)).unwrap();
        let rows: Vec<u8> = (0..100).flat_map(|id| [id; 512]).collect();
        let (spec, source) = (TableSpec::new("t", 100, 512, DType::U8), &rows[..]);
        let go = &mut |_| ControlFlow::Continue(());
        store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), go).unwrap();
        let host = Host::attach(&store, HostOptions::default()).unwrap();
        let plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default().with_out(DType::U8)).unwrap();
        World { drives, store, slot: plan.slot().unwrap() }
    }

    impl World {
        /// Looks every row up, and checks it.
        fn look(&mut self) -> Result<(), LookupError> {
            let ids: Vec<u32> = (0..100).collect();
            let mut rows = vec![255; 100 * 512];
            let result = self.slot.lookup(&Batch::new(&ids, 1), &mut Output::new(Rows::U8(&mut rows), 512));
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
            let member = self.store.shared.members[drive].as_ref().unwrap();
            member.driven().watch().events(String::new())
        }

        fn controller(&self, drive: usize) -> &Arc<Controller> {
            self.store.shared.members[drive].as_ref().unwrap().controller()
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
        let mut world = world(clock.clone());
        world.look().unwrap();
        world.drives[1].raise_event(SPARE.0, SPARE.1);
        // Time for the drive to report it; none for the store.
        std::thread::sleep(Duration::from_millis(30));
        (0..10).for_each(|_| world.look().unwrap());
        assert_eq!(world.seen(1).total, 0, "it looked before it was time");
        let began = Instant::now();
        while world.seen(1).total == 0 {
            assert!(began.elapsed() < Duration::from_secs(10), "nobody looked");
            clock.0.fetch_add(nanos(EVERY), Ordering::Relaxed);
            world.look().unwrap();
        }
        let events = world.store.drive_events();
        assert_eq!(events.iter().map(|it| (&*it.drive, it.total)).collect::<Vec<_>>(), [("drive0", 0), ("drive1", 1)]);
        let [Event { event, details: Details::Health(_) }] = &events[1].latest[..] else { panic!("{events:?}") };
        assert_eq!(event.kind(), SPARE.0);

        // Without look-ups, whoever asks sees them; the latest are kept.
        for round in 2..40 {
            world.drives[1].raise_event(SPARE.0, SPARE.1);
            let began = Instant::now();
            while world.store.drive_events()[1].total < round {
                assert!(began.elapsed() < Duration::from_secs(10), "event {round} is lost");
            }
        }
        assert_eq!(world.store.drive_events()[1].latest.len(), KEPT);
    }

    #[test]
    fn a_namespace_that_was_formatted_refuses_look_ups() {
        let mut world = world(Arc::new(SystemClock::new()));
        world.look().unwrap();
        world.controller(1).format(&FormatRequest::new(1, 4096), |_| {}).unwrap();
        world.drives[1].raise_event(NAMESPACE.0, NAMESPACE.1);
        let changed = world.until_changed();
        assert_eq!(changed.drive, "drive1");
        assert!(changed.was.contains("LBAs of 512 ") && changed.is.contains("LBAs of 4096 "), "{changed}");
        // It stays so, also if it is formatted back: the rows are gone.
        world.controller(1).format(&FormatRequest::new(1, 512), |_| {}).unwrap();
        world.drives[1].raise_event(NAMESPACE.0, NAMESPACE.1);
        assert_eq!(world.until_changed(), changed);
        let is = |result: Result<(), StoreError>| match result {
            Err(StoreError::NamespaceChanged(error)) => assert_eq!(error, changed),
            other => panic!("{other:?}"),
        };
        is(world.store.scan("t", 0..100, &mut |_, _| ControlFlow::Continue(())));
        is(world.store.verify("t", &mut |_| ControlFlow::Continue(())).map(drop));
        is(world.store.ranks("t").map(drop));
        is(Host::attach(&world.store, HostOptions::default()).map(drop));
        let (spec, source) = (TableSpec::new("u", 1, 512, DType::U8), &[1; 512][..]);
        let go = &mut |_| ControlFlow::Continue(());
        is(world.store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), go).map(drop));
    }

    #[test]
    fn a_namespace_that_is_as_it_was_serves_on() {
        let mut world = world(Arc::new(SystemClock::new()));
        world.drives[0].raise_event(NAMESPACE.0, NAMESPACE.1);
        let began = Instant::now();
        while world.seen(0).total == 0 {
            assert!(began.elapsed() < Duration::from_secs(10), "nobody looked");
            world.look().unwrap();
        }
        world.look().unwrap();
        let [Event { details: Details::ChangedNamespaces(_), .. }] = &world.seen(0).latest[..] else {
            panic!("{:?}", world.seen(0))
        };
    }

    #[test]
    fn a_reset_takes_events_so_namespaces_are_looked_at_after_it() {
        let mut world = world(Arc::new(SystemClock::new()));
        world.look().unwrap();
        world.controller(0).format(&FormatRequest::new(1, 4096), |_| {}).unwrap();
        let member = world.store.shared.members[0].clone().unwrap();
        let mut first = true;
        let function = member.controller().name().clone();
        let mut recreate = || match std::mem::take(&mut first) {
            true => Err(DriverError::Down { function: function.clone() }),
            false => Ok(()),
        };
        member.revive(None, &mut recreate).unwrap();
        let error = world.look().unwrap_err();
        assert!(matches!(&error, LookupError::NamespaceChanged(changed) if changed.drive == "drive0"), "{error}");
    }
}
