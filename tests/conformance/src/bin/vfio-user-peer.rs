//! Every check on the controller that another program serves on a vfio-user socket. **Its namespaces' data is destroyed.**
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use warprow_conformance::{CHECKS, Subject, Verdict};
use warprow_dma::SystemClock;
use warprow_vfio_user::VfioUserFunction;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(socket) = arguments.next() else {
        eprintln!("usage: vfio-user-peer SOCKET [name of a check that this peer is known not to pass...]");
        return ExitCode::from(2);
    };
    let known: Vec<String> = arguments.collect();
    match checks(&socket, &known) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs them all, each on a connection of its own: a peer that ends one over a check may pass the next. How many failed.
fn checks(socket: &str, known: &[String]) -> Result<u32> {
    for name in known {
        ensure!(CHECKS.iter().any(|check| check.name == name), "there is no check {name:?}");
    }
    let (mut passed, mut failed) = (0, 0);
    for check in CHECKS {
        let (name, start) = (check.name, Instant::now());
        if known.iter().any(|it| it == name) {
            println!("known  {name}: not tried");
            continue;
        }
        let verdict = VfioUserFunction::open(socket)
            .map_err(anyhow::Error::from)
            .and_then(|function| check.run(&Subject { function, clock: Arc::new(SystemClock::new()) }));
        let ms = start.elapsed().as_millis();
        match verdict {
            Ok(Verdict::Passed) => {
                passed += 1;
                println!("ok     {name} ({ms} ms)");
            }
            Ok(Verdict::Skipped(why)) => println!("skip   {name}: {why}"),
            Err(error) => {
                failed += 1;
                println!("FAILED {name} ({ms} ms): {error:#}");
            }
        }
    }
    println!("{passed} passed, {failed} failed, of {}", CHECKS.len());
    ensure!(passed > 0, "no check passed");
    Ok(failed)
}
