//! The forms of a `perf.data`: one real recording, rewritten into each of them, says the same in all.

use crate::common::{Imported, golden, of_bytes, of_paths};
use varve_import::{ImportError, Place};
use varve_trace::tables::{MappingRow, ProcessRow, SampleRow, ThreadRow};
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};

const HEADER_ATTR: u32 = 64;
const HEADER_TRACING_DATA: u32 = 66;
const HEADER_BUILD_ID: u32 = 67;
const FINISHED_ROUND: u32 = 68;
const HEADER_FEATURE: u32 = 80;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;
const BUILD_ID: usize = 2;

fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// A file taken apart: descriptions of events, features by bit, and records.
struct Parts {
    attrs: Vec<(Vec<u8>, Vec<u8>)>,
    features: Vec<(usize, Vec<u8>)>,
    records: Vec<u8>,
    /// The file up to its records.
    before: Vec<u8>,
}

fn parts() -> Parts {
    let file = std::fs::read(golden("page-faults.perf.data")).unwrap();
    let section = |at: usize| {
        let (offset, size) = (word(&file, at), word(&file, at + 8));
        file[offset..offset + size].to_vec()
    };
    let attr_size = word(&file, 16);
    let attr = |at: usize| {
        let attr = file[at..at + attr_size - 16].to_vec();
        (attr, section(at + attr_size - 16))
    };
    let (first, bytes) = (word(&file, 24), word(&file, 32));
    let attrs = (first..first + bytes).step_by(attr_size).map(attr);
    let data = word(&file, 40);
    let table = data + word(&file, 48);
    let set = (0..256).filter(|bit| file[72 + bit / 8] >> (bit % 8) & 1 == 1);
    let features = set
        .enumerate()
        .map(|(i, bit)| (bit, section(table + 16 * i)));
    Parts {
        attrs: attrs.collect(),
        features: features.collect(),
        records: section(40),
        before: file[..data].to_vec(),
    }
}

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let size = u16::try_from(8 + body.len()).unwrap();
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(size.to_le_bytes());
    bytes.extend(body);
    bytes
}

/// The form of `perf record -o -`, with these records.
fn piped(parts: &Parts, records: &[u8]) -> Vec<u8> {
    let mut file = b"PERFILE2".to_vec();
    file.extend(16u64.to_le_bytes());
    for (attr, ids) in &parts.attrs {
        file.extend(record(HEADER_ATTR, &[&attr[..], ids].concat()));
    }
    for (bit, bytes) in &parts.features {
        if *bit == BUILD_ID {
            // What a file holds in a section are such records.
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let size = usize::from(u16::from_le_bytes([rest[6], rest[7]]));
                file.extend(record(HEADER_BUILD_ID, &rest[8..size]));
                rest = &rest[size..];
            }
        } else {
            let body = [&(*bit as u64).to_le_bytes()[..], bytes].concat();
            file.extend(record(HEADER_FEATURE, &body));
        }
    }
    file.extend(records);
    file
}

/// The form of a file whose recording was cut short, which says nothing of the machine.
fn filed(parts: &Parts, records: &[u8]) -> Vec<u8> {
    let mut file = parts.before.clone();
    file[48..56].fill(0);
    file.extend(records);
    file
}

/// The records as perf compresses them: one stream, of which each record holds what so many bytes became.
fn compressed(records: &[u8], piece: usize, kind: u32) -> Vec<u8> {
    let mut encoder = Encoder::new(1).unwrap();
    let mut file = Vec::new();
    for piece in records.chunks(piece) {
        let mut packed = vec![0; 1 << 15];
        let mut out = OutBuffer::around(&mut packed[..]);
        let mut input = InBuffer::around(piece);
        while input.pos() < piece.len() {
            encoder.run(&mut input, &mut out).unwrap();
        }
        assert_eq!(encoder.flush(&mut out).unwrap(), 0);
        let length = out.pos();
        packed.truncate(length);
        if kind == COMPRESSED2 {
            packed.resize(length.next_multiple_of(8), 0xee);
            packed.splice(..0, (length as u64).to_le_bytes());
        }
        file.extend(record(kind, &packed));
        file.extend(record(FINISHED_ROUND, &[]));
    }
    file
}

/// Everything that a file says, save of the machine.
fn said(
    of: &Imported,
) -> (
    Vec<SampleRow>,
    Vec<MappingRow>,
    Vec<ThreadRow>,
    Vec<ProcessRow>,
) {
    let trace = of.trace();
    (
        trace.rows().unwrap(),
        trace.rows().unwrap(),
        trace.rows().unwrap(),
        trace.rows().unwrap(),
    )
}

fn original() -> Imported {
    let original = of_bytes(
        &std::fs::read(golden("page-faults.perf.data")).unwrap(),
        None,
    )
    .unwrap();
    assert_eq!(original.samples().len(), 6);
    original
}

#[test]
fn what_was_written_to_a_pipe_says_what_a_file_says() {
    let (parts, original) = (parts(), original());
    let piped = of_bytes(&piped(&parts, &parts.records), None).unwrap();
    assert_eq!(said(&piped), said(&original));
    let (a, b) = (piped.trace().manifest, original.trace().manifest);
    assert_eq!(a.machine, b.machine);
    assert_eq!(a.target.command, b.target.command);
    // It says which files were mapped by their build ids.
    let rows = piped.trace().rows::<MappingRow>().unwrap();
    assert!(rows.iter().any(|row| row.build_id.is_some()));
}

#[test]
fn compressed_records_say_what_plain_ones_say() {
    let (parts, original) = (parts(), original());
    // In pieces that cut records anywhere, and in one.
    for (piece, kind) in [
        (7, COMPRESSED),
        (101, COMPRESSED2),
        (1000, COMPRESSED),
        (1 << 20, COMPRESSED2),
    ] {
        let packed = compressed(&parts.records, piece, kind);
        let file = of_bytes(&filed(&parts, &packed), None).unwrap();
        let plain = of_bytes(&filed(&parts, &parts.records), None).unwrap();
        assert_eq!(said(&file), said(&plain), "{piece}");
        assert_eq!(file.samples().len(), 6);
        let piped = of_bytes(&piped(&parts, &packed), None).unwrap();
        assert_eq!(said(&piped), said(&original), "{piece}");
    }
}

/// `perf record --threads` makes a folder: what is said of the recording in one file, and the records of each thread in others.
#[test]
fn a_folder_by_threads_says_what_a_file_says() {
    const SAMPLE: u32 = 9;
    let parts = parts();
    let plain = of_bytes(&filed(&parts, &parts.records), None).unwrap();
    let (mut tasks, mut samples, mut rest) = (Vec::new(), Vec::new(), &parts.records[..]);
    while !rest.is_empty() {
        let size = usize::from(u16::from_le_bytes([rest[6], rest[7]]));
        let is_sample = rest[..4] == SAMPLE.to_le_bytes();
        let to = if is_sample { &mut samples } else { &mut tasks };
        to.extend_from_slice(&rest[..size]);
        rest = &rest[size..];
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("perf.data");
    std::fs::create_dir(&path).unwrap();
    let import = || of_paths(std::slice::from_ref(&path), None);
    match import() {
        Err(error @ ImportError::Io { .. }) => {
            assert!(
                error.to_string().contains("without a file `data`"),
                "{error}"
            )
        }
        _ => panic!("an empty folder was imported"),
    }
    std::fs::write(path.join("data"), filed(&parts, &tasks)).unwrap();
    std::fs::write(path.join("data.0"), []).unwrap();
    std::fs::write(path.join("data.10"), compressed(&samples, 100, COMPRESSED)).unwrap();
    assert_eq!(said(&import().unwrap()), said(&plain));
    let whole = samples.len() - 8;
    std::fs::write(path.join("data.10"), &samples[..whole]).unwrap();
    match import() {
        Err(ImportError::Damaged { path, message, .. }) => {
            assert!(path.ends_with("perf.data/data.10") && message.contains("ends within"))
        }
        _ => panic!("it was imported"),
    }
}

/// A pipe tells the formats of tracepoints in a record that more bytes follow than its size says.
#[test]
fn formats_of_tracepoints_are_skipped_in_a_pipe() {
    let (parts, original) = (parts(), original());
    let formats = vec![9; 1 << 17];
    let mut records = record(HEADER_TRACING_DATA, &(1u64 << 17).to_le_bytes());
    records.extend(&formats);
    records.extend(&parts.records);
    let piped = of_bytes(&piped(&parts, &records), None).unwrap();
    assert_eq!(said(&piped), said(&original));
}

#[test]
fn damage_in_other_forms_is_told_with_its_place() {
    let parts = parts();
    let place = |bytes: &[u8]| match of_bytes(bytes, None) {
        Err(ImportError::Damaged { place, message, .. }) => (place, message),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was imported"),
    };
    let pipe = piped(&parts, &[]);
    let begin = Place::Byte(pipe.len() as u64);
    let packed = compressed(&parts.records, 500, COMPRESSED);
    // Not what zstd made.
    let mut spoilt = packed.clone();
    spoilt[9] ^= 0xff;
    let (at, why) = place(&piped(&parts, &spoilt));
    assert_eq!(at, begin);
    assert!(why.contains("compressed"), "{why}");
    // The last piece is missing: what is there ends within a record, or does not.
    let size = usize::from(u16::from_le_bytes([packed[6], packed[7]]));
    let first = piped(&parts, &packed[..size]);
    let (at, why) = place(&first);
    assert_eq!(at, Place::Byte(first.len() as u64));
    assert!(why.contains("ends within"), "{why}");
    // More than the record's size has.
    let mut long = compressed(&parts.records, 1 << 20, COMPRESSED2);
    long[8..16].fill(0xff);
    assert_eq!(place(&piped(&parts, &long)).0, begin);
    // A record of no size among those that were compressed.
    let nothing = compressed(&[0; 64], 64, COMPRESSED);
    assert_eq!(place(&piped(&parts, &nothing)).0, begin);
    // Formats of tracepoints beyond the end.
    let far = record(HEADER_TRACING_DATA, &(1u64 << 20).to_le_bytes());
    assert_eq!(place(&piped(&parts, &far)).0, begin);
    // No events.
    let none = [&b"PERFILE2"[..], &16u64.to_le_bytes()].concat();
    assert_eq!(place(&none).0, Place::Byte(16));
    let cut = [&none[..], &record(HEADER_ATTR, &[0; 20])].concat();
    assert_eq!(place(&cut).0, Place::Byte(16));
}

/// Compressed bytes that become very many are refused before they are many.
#[test]
fn a_compressed_record_cannot_be_without_end() {
    let parts = parts();
    let many = record(FINISHED_ROUND, &[]).repeat(9 << 20);
    let packed = compressed(&many, many.len(), COMPRESSED);
    drop(many);
    match of_bytes(&piped(&parts, &packed), None) {
        Err(ImportError::Damaged { message, .. }) => {
            assert!(message.contains("more than can be"), "{message}")
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was imported"),
    }
}

/// perf was killed: its header has no size, and the last record may be cut, or zeros follow.
#[test]
fn an_unfinished_file_has_its_whole_records() {
    use crate::perf_file::{USUAL, event, with_size};
    let one = event(USUAL);
    let mut records = one.comm((10, 10), "a", 1000, false);
    for number in 0..100 {
        let at = 0x60_0000 + number * 8;
        records.extend(one.sample((10, 10), 2000 + number, 0x40_0100, at));
    }
    let whole = with_size(&[one], &records, 0);
    let cut = with_size(&[one], &[&records[..], &records[..37]].concat(), 0);
    let within_head = with_size(&[one], &[&records[..], &records[..5]].concat(), 0);
    let padded = with_size(&[one], &[&records[..], &[0; 4096]].concat(), 0);
    let odd = with_size(&[one], &[&records[..], &[0; 5]].concat(), 0);
    for file in [whole, cut, within_head, padded, odd] {
        let got = of_bytes(&file, None).unwrap();
        assert_eq!(got.samples().len(), 100);
        let manifest = got.trace().manifest;
        assert_eq!(manifest.losses, [("cut_file".to_owned(), 1)].into());
        let statement = manifest.completeness.statement;
        assert!(
            statement.contains("at which an imported file ends"),
            "{statement}"
        );
    }
    // A file whose header says how long it is, and that is shorter, is damaged.
    let size = records.len() as u64;
    let finished = with_size(&[one], &records, size);
    assert!(
        of_bytes(&finished, None)
            .unwrap()
            .trace()
            .manifest
            .losses
            .is_empty()
    );
    let short = with_size(&[one], &records[..size as usize - 5], size);
    match of_bytes(&short, None) {
        Err(ImportError::Damaged { message, .. }) => {
            assert!(message.contains("beyond its end"), "{message}")
        }
        _ => panic!("it was imported"),
    }
}
