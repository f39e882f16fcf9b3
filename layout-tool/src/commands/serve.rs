//! `warprow serve`.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use warprow_soft_controller::DriveUri;
use warprow_store::{DriveAddress, StoreError};
use warprow_vfio_user_server::{ServeError, ServerEvent, SocketClaim, VfioUserServer};

use super::{CommandOutput, Context};
use crate::drives::shell;
use crate::failure::{Class, Failure, lacks_resources};
use crate::report::printable_lines;

/// How often it looks whether somebody asked to stop.
const GLANCE: Duration = Duration::from_millis(50);

/// Serve an emulated drive on a socket, as an NVMe controller that speaks vfio-user
///
/// Whoever may open the socket can use the drive, one at a time: `warprow` with -d vfio-user:SOCKET, a virtual machine of QEMU 10.1
/// or later, SPDK. Ends with Ctrl-C.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow serve --socket /run/a.sock emulated:/data/a.drive
  warprow serve --socket a.sock emulated:scratch,backing=ram,size=4G &
  warprow format -d vfio-user:a.sock --row-bytes 512 --dry-run")]
pub struct ServeArgs {
    /// Where to serve; a socket that nobody answers any more is replaced
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The drive: emulated:PATH, with properties as under `format`; also backing=ram, procedural or null
    #[arg(value_name = "DRIVE")]
    drive: String,
}

pub(crate) fn run(args: &ServeArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let uri = match args.drive.parse::<DriveAddress>() {
        Ok(DriveAddress::Emulated(uri)) => uri,
        Err(error @ StoreError::Emulated(_)) => return Err(error.into()),
        Ok(_) | Err(_) => {
            let what = format!("{} is not an emulated drive: only those are served", args.drive);
            return Err(Failure::usage(&args.drive, what).remedy("give emulated:PATH"));
        }
    };
    // Before the drive is opened, which may make its file.
    let claim = SocketClaim::new(&args.socket).map_err(|error| refused(&error))?;
    let drive = uri.builder().map_err(StoreError::from)?.shared_doorbells().build();
    let drive = drive.map_err(|error| StoreError::from(warprow_soft_controller::UriError::from(error)))?;
    let server = VfioUserServer::on(claim, drive).map_err(|error| refused(&error))?;
    // A reader that has gone away is no failure.
    announce(&uri, args, context)
        .or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
        .map_err(|error| Failure::new(Class::Resources, "stdout", format!("what is served cannot be said: {error}")))?;

    let stop = AtomicBool::new(false);
    let clients = AtomicU64::new(0);
    let tell = |event: ServerEvent| {
        if event == ServerEvent::Connected {
            clients.fetch_add(1, Ordering::Relaxed);
        }
        context.screen.say(&event.to_string());
    };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(&stop, &tell));
        while !context.interrupt.is_asked() && !serving.is_finished() {
            std::thread::sleep(GLANCE);
        }
        stop.store(true, Ordering::Relaxed);
        serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
    .map_err(|error| refused(&error))?;
    let clients = clients.into_inner();
    let text = format!("Served {clients} {}.", if clients == 1 { "client" } else { "clients" });
    CommandOutput::new(text, json!({ "socket": args.socket, "drive": uri.to_string(), "clients": clients }))
}

/// Says, before the first client can come, how one comes.
fn announce(uri: &DriveUri, args: &ServeArgs, context: &Context) -> std::io::Result<()> {
    let socket = std::path::absolute(&args.socket).unwrap_or_else(|_| args.socket.clone());
    let device = json!({"driver": "vfio-user-pci", "socket": {"type": "unix", "path": socket}}).to_string();
    let text = format!(
        "Serving {uri} on {}; Ctrl-C ends it.\n  warprow:  -d {}\n  QEMU:     -object memory-backend-memfd,id=m,size=4G,share=on \
         -machine q35,memory-backend=m -m 4G \\\n            -device {}\n",
        socket.display(),
        shell(&format!("vfio-user:{}", socket.display())),
        shell(&device),
    );
    let text = printable_lines(&text);
    // Standard output is the result's where programs read it.
    if context.json {
        std::io::stderr().write_all(text.as_bytes())
    } else {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
    }
}

fn refused(error: &ServeError) -> Failure {
    let about = |path: &std::path::Path| path.display().to_string();
    let (class, subject, remedy) = match error {
        ServeError::InUse(path) => (Class::Refused, about(path), "end the other server, or choose another path"),
        ServeError::NotASocket(path) => (Class::Refused, about(path), "choose another path"),
        ServeError::TooLong(path) => (Class::Usage, about(path), "choose a shorter path"),
        ServeError::System { path, source, .. } if lacks_resources(source) => (
            Class::Resources,
            about(path),
            "make room there, or raise the limits of this process: ulimit -a shows them",
        ),
        ServeError::System { path, .. } => (Class::Input, about(path), "look at the path and its directory"),
        ServeError::Private => (Class::Bug, String::new(), "please report it"),
    };
    Failure::new(class, subject, error.to_string()).remedy(remedy)
}
