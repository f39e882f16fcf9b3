//! Status codes: total, round trip, readable.

use std::collections::HashSet;

use warprow_spec::{Status, StatusCode};

#[test]
fn every_code_makes_the_round_trip() {
    let mut named = 0;
    for sct in 0..8 {
        for sc in 0..=255 {
            let code = StatusCode::from_parts(sct, sc);
            assert_eq!(code.parts(), (sct, sc));
            let status = Status::from_code(code);
            assert_eq!((status.sct(), status.sc(), status.code()), (sct, sc, code));
            assert_eq!(status.is_success(), (sct, sc) == (0, 0));
            let text = code.to_string();
            assert!(text.ends_with(&format!("(SCT {sct:X}h, SC {sc:02X}h)")), "{text}");
            named += usize::from(!matches!(code, StatusCode::Unknown { .. }));
        }
    }
    assert_eq!(named, StatusCode::NAMED.len());
    let names: HashSet<_> = StatusCode::NAMED.iter().map(|code| code.name()).collect();
    assert_eq!(names.len(), named, "two codes share a name");
}

#[test]
fn codes_of_the_specification() {
    let code = |sct, sc| StatusCode::from_parts(sct, sc);
    assert_eq!(code(0, 0x00), StatusCode::Success);
    assert_eq!(code(0, 0x07), StatusCode::AbortRequested);
    assert_eq!(code(0, 0x0b), StatusCode::InvalidNamespaceOrFormat);
    assert_eq!(code(0, 0x13), StatusCode::PrpOffsetInvalid);
    assert_eq!(code(0, 0x24), StatusCode::AdminMediaNotReady);
    assert_eq!(code(0, 0x80), StatusCode::LbaOutOfRange);
    assert_eq!(code(0, 0x84), StatusCode::FormatInProgress);
    assert_eq!(code(1, 0x01), StatusCode::InvalidQueueIdentifier);
    assert_eq!(code(1, 0x05), StatusCode::AsyncEventLimitExceeded);
    assert_eq!(code(1, 0x0a), StatusCode::InvalidFormat);
    assert_eq!(code(1, 0x80), StatusCode::ConflictingAttributes);
    assert_eq!(code(2, 0x80), StatusCode::WriteFault);
    assert_eq!(code(2, 0x81), StatusCode::UnrecoveredReadError);
    assert_eq!(code(2, 0x87), StatusCode::DeallocatedOrUnwrittenBlock);
    assert_eq!(code(3, 0x71), StatusCode::AbortedByHost);
    // Reserved in every version.
    assert_eq!(code(0, 0x17), StatusCode::Unknown { sct: 0, sc: 0x17 });
    assert_eq!(code(1, 0x04), StatusCode::Unknown { sct: 1, sc: 0x04 });
    assert_eq!(code(1, 0x17), StatusCode::Unknown { sct: 1, sc: 0x17 });
}

#[test]
fn statuses_read_well() {
    let status = Status::from(StatusCode::LbaOutOfRange).with_dnr(true);
    assert_eq!(status.code().to_string(), "LBA Out of Range (SCT 0h, SC 80h)");
    assert_eq!(status.to_string(), "LBA Out of Range (SCT 0h, SC 80h), do not retry");
    assert_eq!(
        format!("{:?}", status.with_crd(2).with_more(true).with_dnr(false)),
        "Status[LBA Out of Range (SCT 0h, SC 80h), retry delay 2, more in the error log]"
    );
    assert_eq!(StatusCode::from_parts(7, 3).to_string(), "Vendor Specific (SCT 7h, SC 03h)");
    assert_eq!(StatusCode::from_parts(0, 0xc0).to_string(), "Vendor Specific (SCT 0h, SC C0h)");
    assert_eq!(StatusCode::from_parts(5, 0xc0).to_string(), "Unknown Status (SCT 5h, SC C0h)");
}

#[test]
fn status_bits_stand_where_the_spec_puts_them() {
    // Bits 8:1, 11:9, 13:12, 14 and 15 of the entry's last half, one lower without the phase tag.
    assert_eq!(Status::new().with_sc(0xff).into_bits(), 0x00ff);
    assert_eq!(Status::new().with_sct(7).into_bits(), 0x0700);
    assert_eq!(Status::new().with_crd(3).into_bits(), 0x1800);
    assert_eq!(Status::new().with_more(true).into_bits(), 0x2000);
    assert_eq!(Status::new().with_dnr(true).into_bits(), 0x4000);
    assert!(Status::new().with_more(true).is_success(), "only the code tells of success");
}
