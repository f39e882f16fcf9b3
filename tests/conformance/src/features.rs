use std::time::Duration;

use anyhow::{Result, ensure};
use warprow_driver::{Controller, DriverError, EventDetails};
use warprow_spec::admin::FeatureSelect;
use warprow_spec::async_event::{AsyncEventKind, HealthEvent};
use warprow_spec::features::{FeatureId, NumberOfQueues, TemperatureThreshold};
use warprow_spec::log::LogPageId;
use warprow_spec::{NSID_ALL, Sqe, StatusCode};

use crate::fixture::{Fixture, admin_refused, open};
use crate::subject::{Subject, Verdict};

pub(crate) fn number_of_queues(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    let granted = controller.granted_queue_pairs();
    let now = NumberOfQueues::from_bits(controller.feature(FeatureId::NUMBER_OF_QUEUES, 0, FeatureSelect::CURRENT)?);
    ensure!(granted >= 1 && u32::from(granted) <= now.pairs(), "{granted} pairs granted, {now:?} set");
    Ok(Verdict::Passed)
}

pub(crate) fn volatile_write_cache(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    let Some(before) = controller.volatile_write_cache()? else {
        return Ok(Verdict::Skipped("there is no volatile write cache".into()));
    };
    for on in [false, true, before] {
        match controller.set_volatile_write_cache(on) {
            // Some have a cache that cannot be switched (Base 5.27.1).
            Err(DriverError::Command { status, .. }) if status.code() == StatusCode::FeatureNotChangeable && !on => {
                return Ok(Verdict::Skipped("the volatile write cache cannot be switched".into()));
            }
            done => done?,
        }
        ensure!(controller.volatile_write_cache()? == Some(on), "switched {on}, and it is not");
    }
    Ok(Verdict::Passed)
}

pub(crate) fn unknown(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    let reserved = FeatureId(0x7a);
    let get = Sqe::get_features(reserved, 0, FeatureSelect::CURRENT);
    admin_refused("Get Features 7Ah", &controller, get, &[StatusCode::InvalidField])?;
    admin_refused("Set Features 7Ah", &controller, Sqe::set_features(reserved, 0, 0), &[StatusCode::InvalidField])?;
    // Invalid Log Page is due; controllers in the field answer Invalid Field as well.
    let codes = [StatusCode::InvalidLogPage, StatusCode::InvalidField];
    let log = Sqe::get_log_page(LogPageId(0x6f), NSID_ALL, 127, 0, false);
    admin_refused("Get Log Page 6Fh", &controller, log, &codes)?;
    Ok(Verdict::Passed)
}

pub(crate) fn smart_log(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    let before = fixture.controller.smart_log()?;
    ensure!((200..400).contains(&before.composite_temperature.get()), "{} K", before.composite_temperature);
    fixture.write_pattern(2, 0, 8)?;
    for lba in 0..8 {
        fixture.check_pattern(2, lba, 1)?;
    }
    let after = fixture.controller.smart_log()?;
    let reads = after.host_read_commands.get() - before.host_read_commands.get();
    let writes = after.host_write_commands.get() - before.host_write_commands.get();
    ensure!(reads == 8 && writes >= 1, "{reads} reads and {writes} writes counted");
    ensure!(fixture.controller.error_log(16)?.iter().all(|entry| entry.error_count != 0));
    Ok(Verdict::Passed)
}

pub(crate) fn temperature_event(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    let value = controller.feature(FeatureId::TEMPERATURE_THRESHOLD, 0, FeatureSelect::CURRENT)?;
    let original = TemperatureThreshold::from_bits(value);
    let set = |kelvins| {
        let value = TemperatureThreshold::new().with_tmpth(kelvins).into_bits();
        controller.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 0, value)
    };
    // Twice: the second only comes if the log page was read and the request armed again.
    for round in 1..=2 {
        match set(1) {
            Err(DriverError::Command { status, .. }) if status.code() == StatusCode::FeatureNotChangeable => {
                return Ok(Verdict::Skipped("the temperature threshold is fixed".into()));
            }
            other => other?,
        };
        ensure!(awaits_temperature(&controller)?, "round {round}: no event within 2 s");
        set(original.tmpth())?;
    }
    Ok(Verdict::Passed)
}

fn awaits_temperature(controller: &Controller) -> Result<bool> {
    let deadline = controller.clock().now() + Duration::from_secs(2);
    while controller.clock().now() < deadline {
        for event in controller.take_events()? {
            let EventDetails::Health(log) = &event.details else { anyhow::bail!("{event:?}") };
            if event.event.kind() == AsyncEventKind::Health(HealthEvent::TEMPERATURE) {
                ensure!(log.critical_warning.temperature(), "the log does not show the warning: {log:?}");
                return Ok(true);
            }
        }
        controller.clock().sleep(Duration::from_millis(1));
    }
    Ok(false)
}
