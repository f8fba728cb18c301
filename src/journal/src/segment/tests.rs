//! Tests of the format: every change of a frame is detected, and what is encoded is decoded again.

use super::*;

fn coding(salt: u32) -> Coding {
    Coding { salt, run: 0 }
}

fn sealed(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    let at = begin_frame(&mut out);
    out.extend_from_slice(payload);
    let range = end_frame(&mut out, at);
    let head = FrameHead {
        seq: 7,
        wall_ms: -1,
        mono_ms: 5,
        group_start: 4096,
        records: 1,
        kind,
    };
    seal_frame(&mut out[range.clone()], head, coding(99));
    out.truncate(range.end);
    out
}

fn parse(bytes: &[u8], salt: u32) -> Result<Frame<'_>, FrameFault> {
    RawHead::parse(bytes)
        .ok_or(FrameFault::Ends)?
        .verify(bytes, coding(salt))
}

#[test]
fn every_changed_bit_of_a_frame_is_detected() {
    let bytes = sealed(FrameKind::Readings, b"payload");
    let frame = parse(&bytes, 99).unwrap();
    let head = FrameHead {
        seq: 7,
        wall_ms: -1,
        mono_ms: 5,
        group_start: 4096,
        records: 1,
        kind: FrameKind::Readings,
    };
    assert_eq!((frame.payload, frame.head), (&b"payload"[..], head));
    assert_eq!(
        parse(&bytes, 98).unwrap_err(),
        FrameFault::Crc,
        "another segment's salt"
    );
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&bad, 99).is_err(), "bit {bit}");
    }
}

#[test]
fn a_synced_frame_and_its_copy_are_never_in_one_sector() {
    for at in (4096..3 * 4096).step_by(8) {
        let copy = synced_copy_at(at);
        assert!(
            copy / SECTOR_BYTES > (at + FRAME_HEAD_BYTES as u64 - 1) / SECTOR_BYTES,
            "{at}"
        );
        assert!(copy - at <= SECTOR_BYTES + FRAME_HEAD_BYTES as u64);
    }
    let head = FrameHead {
        seq: 9,
        wall_ms: 3,
        mono_ms: MONO_MASK,
        group_start: 1 << 33,
        records: 5,
        kind: FrameKind::Readings,
    };
    let bytes = synced_frame(head, coding(1));
    let frame = parse(&bytes, 1).unwrap();
    assert_eq!(
        frame.head,
        FrameHead {
            records: 0,
            kind: FrameKind::Synced,
            ..head
        }
    );
    assert_eq!(
        (frame.next_seq(), frame.span()),
        (9, FRAME_HEAD_BYTES as u64)
    );
}

#[test]
fn a_header_is_read_from_either_place_and_another_version_is_named() {
    let header = Header {
        number: 3,
        first_seq: 12,
        salt: u32::MAX,
        recycled: true,
        created_ms: 5,
    };
    assert_eq!(
        header.coding(),
        Coding {
            salt: u32::MAX,
            run: u32::MAX - 3
        }
    );
    let fresh = Header {
        recycled: false,
        ..header
    };
    assert_eq!(Header::decode(&fresh.encode()), Ok(fresh));
    let mut page = header.encode();
    assert_eq!(Header::decode(&page), Ok(header));
    assert_eq!(Header::decode(&page[HEADER_COPY_AT..]), Ok(header));
    page[20] ^= 1;
    assert_eq!(Header::decode(&page), Err(HeaderFault::Crc));
    page[8] = 9;
    let fault = Header::decode(&page).unwrap_err();
    assert_eq!(fault, HeaderFault::Version(9));
    assert!(fault.to_string().contains("version 9"), "{fault}");
    assert_eq!(Header::decode(b"short"), Err(HeaderFault::Magic));
}

#[test]
fn dead_letters_round_trip_and_a_truncated_frame_is_refused() {
    let dead_letter = DeadLetter {
        received_at_ms: -5,
        source: "mqtt".into(),
        topic: "a/ü".into(),
        payload: vec![0, 255],
        reason: "bad_json".into(),
        detail: String::new(),
    };
    let mut bytes = vec![];
    encode_dead(&[dead_letter.clone(), dead_letter.clone()], &mut bytes);
    assert_eq!(
        decode_dead(&bytes).unwrap(),
        [dead_letter.clone(), dead_letter]
    );
    for cut in 0..bytes.len() {
        assert!(decode_dead(&bytes[..cut]).is_none(), "cut at {cut}");
    }
}

#[test]
fn a_gap_frame_gives_the_next_sequence() {
    let bytes = sealed(FrameKind::Gap, &30u64.to_le_bytes());
    let frame = parse(&bytes, 99).unwrap();
    assert_eq!((frame.next_seq(), frame.span()), (30, 48));
}
