//! Who may have a socket, where several want it at once.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Barrier};

use warprow_soft_controller::{Namespace, NullBacking, SoftController};
use warprow_vfio_user_server::{ServeError, SocketClaim, VfioUserServer};

fn drive() -> Arc<SoftController> {
    SoftController::builder().namespace(Namespace::new(NullBacking::new(1 << 20))).shared_doorbells().build().unwrap()
}

/// A socket that nobody answers.
fn stale(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
    assert!(UnixStream::connect(path).is_err());
}

#[test]
fn of_many_servers_one_gets_the_socket() {
    const SERVERS: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let drives: Vec<_> = (0..SERVERS).map(|_| drive()).collect();
    for round in 0..100 {
        stale(&path);
        let together = Barrier::new(SERVERS);
        let served = std::thread::scope(|scope| {
            let serve = |drive: &Arc<SoftController>| {
                together.wait();
                let server = VfioUserServer::bind(&path, drive.clone());
                // Whoever has it keeps it until all have tried.
                together.wait();
                server.map(|server| {
                    let file = std::fs::symlink_metadata(&path).unwrap();
                    UnixStream::connect(&path).expect("its socket is there, and listens");
                    drop(server);
                    file.ino()
                })
            };
            let threads: Vec<_> = drives.iter().map(|drive| scope.spawn(move || serve(drive))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let refused =
            served.iter().filter(|outcome| matches!(outcome, Err(ServeError::InUse(at)) if *at == path)).count();
        assert_eq!(refused, SERVERS - 1, "round {round}: {served:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "round {round}: something was left");
    }
}

#[test]
fn a_claim_keeps_others_away_before_there_is_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let claim = SocketClaim::new(&path).unwrap();
    assert!(matches!(SocketClaim::new(&path), Err(ServeError::InUse(_))));
    assert!(matches!(VfioUserServer::bind(&path, drive()), Err(ServeError::InUse(_))));
    let lock = folder.path().join("s.lock");
    assert_eq!(lock.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let server = VfioUserServer::on(claim, drive()).unwrap();
    assert!(matches!(SocketClaim::new(&path), Err(ServeError::InUse(_))));
    drop(server);
    assert!(!path.exists() && !lock.exists());
    // A killed server leaves both.
    stale(&path);
    std::fs::write(&lock, "").unwrap();
    drop(VfioUserServer::bind(&path, drive()).unwrap());
    assert!(!path.exists() && !lock.exists());
}

#[test]
fn what_is_not_ours_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    // A server that knows nothing of the lock.
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(SocketClaim::new(&path), Err(ServeError::InUse(_))));
    drop(other);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(SocketClaim::new(&path), Err(ServeError::NotASocket(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    // Nor does it follow a link to take its lock.
    let linked = folder.path().join("linked");
    std::os::unix::fs::symlink(&path, folder.path().join("linked.lock")).unwrap();
    assert!(matches!(SocketClaim::new(&linked), Err(ServeError::System { what: "open", .. })));
    assert!(matches!(SocketClaim::new(folder.path().join("x".repeat(200))), Err(ServeError::TooLong(_))));
    assert!(!folder.path().join("s.lock").exists());
}
