//! Every check on the controller that another program serves on a vfio-user socket. **Its namespaces' data is destroyed.**
#![forbid(unsafe_code)]

use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use warprow_conformance::{CHECKS, Check, Subject, Verdict};
use warprow_dma::SystemClock;
use warprow_vfio_user::{OpenError, VfioUserFunction};

const USAGE: &str =
    "usage: vfio-user-peer [--start COMMAND] SOCKET [name of a check that this peer is known not to pass...]
  --start COMMAND  starts a server that serves one client and ends, for each check anew";

/// How long a server that was started may take until it can be connected to, and one whose client has gone until it has ended.
const TURN: Duration = Duration::from_secs(20);
const GLANCE: Duration = Duration::from_millis(10);

/// Where the controller is served.
struct Peer {
    socket: String,
    /// For servers of one client.
    start: Option<String>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let start = arguments.next_if(|argument| argument == "--start").and_then(|_| arguments.next());
    let Some(socket) = arguments.next().filter(|socket| !socket.starts_with('-')) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let known: Vec<String> = arguments.collect();
    match checks(&Peer { socket, start }, &known) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs them all, each on a connection of its own: a peer that ends one over a check may pass the next. How many failed.
fn checks(peer: &Peer, known: &[String]) -> Result<u32> {
    for name in known {
        ensure!(CHECKS.iter().any(|check| check.name == name), "there is no check {name:?}");
    }
    let mut passed = 0;
    let mut failed = 0;
    for check in CHECKS {
        let name = check.name;
        let start = Instant::now();
        if known.iter().any(|other| other == name) {
            println!("known  {name}: not tried");
            continue;
        }
        let verdict = peer.run(check);
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

impl Peer {
    fn run(&self, check: &Check) -> Result<Verdict> {
        let on =
            |function: Arc<VfioUserFunction>| check.run(&Subject { function, clock: Arc::new(SystemClock::new()) });
        let Some(command) = &self.start else { return on(VfioUserFunction::open(&self.socket)?) };
        let mut server = Server::start(command, &self.socket)?;
        let verdict = server.open(&self.socket).and_then(on);
        let ended = server.end();
        // What went wrong first says more.
        let verdict = verdict?;
        ended.map(|()| verdict)
    }
}

/// A server of one client. Dropping it kills it.
struct Server(Child);

impl Server {
    fn start(command: &str, socket: &str) -> Result<Self> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing what lies at {socket}"));
            }
            _ => {}
        }
        // In the shell's place, so that it can be killed.
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec {command}")).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(shell.spawn().context("starting a shell")?))
    }

    /// Connects as soon as it listens.
    fn open(&mut self, socket: &str) -> Result<Arc<VfioUserFunction>> {
        let deadline = Instant::now() + TURN;
        loop {
            let error = match VfioUserFunction::open(socket) {
                Ok(function) => return Ok(function),
                Err(error) => error,
            };
            if let Some(status) = self.0.try_wait()? {
                return Err(error).context(format!("the server has ended: {status}"));
            }
            if !matches!(error, OpenError::Connect { .. }) || Instant::now() > deadline {
                return Err(error.into());
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// Waits for its end.
    fn end(&mut self) -> Result<()> {
        let deadline = Instant::now() + TURN;
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait()? {
                ensure!(status.success(), "the server ended badly when its client had gone: {status}");
                return Ok(());
            }
            std::thread::sleep(GLANCE);
        }
        bail!("the server did not end within {} s after its client", TURN.as_secs());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
