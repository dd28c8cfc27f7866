//! Packets of SPE as the manual writes them.

use varve_model::Address;
use varve_perf::spe::{Leftover, Operation, decode};

fn all(bytes: &[u8], misaligned: usize) -> (Vec<Operation>, Leftover) {
    let mut found = Vec::new();
    let left = decode(bytes, misaligned, &mut |o| found.push(o));
    (found, left)
}

#[test]
fn every_kind_of_packet_is_read() {
    let bytes = [
        // Padding; the context of EL2; the instruction at EL0, whose byte 7 holds the level.
        &[0x00, 0x00, 0x65, 42, 0, 0, 0][..],
        &[0xb0, 0x10, 0x32, 0x54, 0xaa, 0xaa, 0, 0, 0x80],
        // The target of a branch and the physical address, which do not matter.
        &[0xb1, 1, 1, 1, 1, 1, 1, 1, 1],
        &[0xb3, 2, 2, 2, 2, 2, 2, 2, 2],
        // The virtual address, with a tag.
        &[0xb2, 0x08, 0, 0, 0, 0xff, 0x7f, 0, 0x5a],
        // A store of a general register; the operation's class stands in the header.
        &[0x49, 0x01],
        // Events: retired, first level accessed and refilled, last level accessed.
        &[0x52, 0b0000_1110, 0b0000_0001],
        // The total latency, that of the issue, that of the translation.
        &[0x98, 0x2c, 0x01, 0x99, 9, 0, 0x9a, 7, 0],
        // The same as an extended one: index 8.
        &[0x21, 0x98, 3, 0],
        &[0x43, 0x0d],
        &[0x71, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
    ]
    .concat();
    let (found, left) = all(&bytes, 0);
    assert_eq!(left, Leftover::default());
    assert_eq!(
        found,
        [Operation {
            ip: Some(Address(0xaa_aa54_3210)),
            exception_level: Some(0),
            address: Some(Address(0x7fff_0000_0008)),
            write: Some(true),
            latency_cycles: Some(300),
            context: Some(42),
            events: 0x10e,
            ticks: Some(0x1122_3344_5566_7788),
        }]
    );
    assert_eq!(found[0].level(), Some(varve_model::MemoryLevel::L3));
}

#[test]
fn addresses_of_the_kernel_keep_their_sign_and_level() {
    let bytes = [0xb0, 0, 0, 0, 0, 0, 0, 0x80, 0x20, 0x01];
    let (found, _) = all(&bytes, 0);
    assert_eq!(found[0].ip, Some(Address(0xff80_0000_0000_0000)));
    assert_eq!(found[0].exception_level, Some(1));
}

#[test]
fn alignment_is_that_of_the_buffer() {
    // To the next multiple of 16, from the third byte of a buffer that begins 4 bytes behind one.
    let mut bytes = vec![0x00, 0x00, 0x23, 0x00];
    bytes.resize(12, 0xff);
    bytes.extend([0x49, 0x00, 0x01]);
    let (found, left) = all(&bytes, 4);
    assert_eq!(left, Leftover::default());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].write, Some(false));
}

#[test]
fn what_is_no_packet_spoils_one_record_and_is_counted() {
    let record = [0x49, 0x01, 0x01];
    let bytes = [&record[..], &[0xff, 0xff], &record, &record, &[0x49]].concat();
    let (found, left) = all(&bytes, 0);
    assert_eq!(found.len(), 2);
    assert_eq!(left, Leftover { unknown: 3, cut: 2 });
}
