//! What a vfio-user client may send, and a server of its own accord: whatever the other understands is bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warprow_vfio_user_proto::limits::{MAX_FDS, MAX_TRANSFER};
use warprow_vfio_user_proto::{DmaRequest, IrqSource, Request};

fuzz_target!(|data: &[u8]| {
    let [command, fds, payload @ ..] = data else { return };
    let fds = usize::from(*fds) % (MAX_FDS + 2);
    match DmaRequest::parse(u16::from(*command) % 20, payload, fds) {
        Ok(DmaRequest::Read(access)) => {
            access.addr.checked_add(access.count).expect("addresses that end");
            assert!(access.count as usize <= MAX_TRANSFER && access.count != 0 && fds == 0);
        }
        Ok(DmaRequest::Write(access, data)) => assert!(access.count as usize == data.len() && !data.is_empty()),
        Err(refusal) => assert!(!refusal.why.is_empty()),
    }
    match Request::parse(u16::from(*command) % 20, payload, fds) {
        Ok(Request::Map(map)) => {
            map.addr.checked_add(map.size).expect("addresses that end");
            assert!(map.size >= 4096 && (map.addr | map.size).is_multiple_of(4096) && fds <= 1);
            assert!(fds == 0 || map.offset.checked_add(map.size).is_some());
        }
        // Some clients send the file of what they unmap.
        Ok(Request::Unmap(Some(unmap))) => {
            assert!(fds <= 1);
            unmap.addr.checked_add(unmap.size).expect("addresses that end");
        }
        Ok(Request::Read(access)) => {
            access.offset.checked_add(access.count.into()).expect("an offset that ends");
            assert!(access.count as usize <= MAX_TRANSFER);
        }
        Ok(Request::Write(access, data)) => assert_eq!(access.count as usize, data.len()),
        Ok(Request::SetIrqs(set)) => {
            set.start.checked_add(set.count).expect("vectors that end");
            match set.source {
                IrqSource::Chosen(bytes) => assert_eq!(bytes.len(), set.count as usize),
                IrqSource::Eventfds => assert!(fds == 0 || fds == set.count as usize),
                IrqSource::All => assert_eq!(fds, 0),
            }
        }
        Ok(Request::Unmap(None)) => assert!(fds <= 1),
        Ok(_) => assert!(fds == 0),
        Err(refusal) => assert!(!refusal.why.is_empty()),
    }
});
