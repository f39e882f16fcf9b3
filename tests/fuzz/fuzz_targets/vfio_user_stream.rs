//! Any bytes on a vfio-user socket: whole messages, then an error, and never a wait.
#![no_main]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use warprow_vfio_user_proto::Channel;
use warprow_vfio_user_proto::limits::MAX_PAYLOAD;

fuzz_target!(|data: &[u8]| {
    let Ok((mut ours, theirs)) = UnixStream::pair() else { return };
    let mut channel = Channel::new(theirs).unwrap();
    ours.write_all(data).unwrap();
    drop(ours);
    let mut left = data.len();
    while let Ok(message) = channel.receive(Instant::now() + Duration::from_secs(5), Duration::from_secs(5)) {
        assert!(message.payload.len() <= MAX_PAYLOAD && message.fds.is_empty());
        assert_eq!(message.header.size as usize, 16 + message.payload.len());
        left = left.checked_sub(message.header.size as usize).expect("no more than was sent");
    }
});
