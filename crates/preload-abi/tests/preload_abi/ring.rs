//! Both sides of the ring together, then a reader against a hostile writer.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use varve_preload_abi::{
    AllocKind, Event, Fullness, HEADER_BYTES, MAX_FRAMES, MapOperation, OwnMemory, Record,
    Reservation, RingError, RingReader, RingWriter, StartCause,
};

struct Ring {
    file: File,
    base: NonNull<u8>,
    bytes: usize,
    writer: RingWriter,
}

fn ring(capacity: usize) -> (Ring, RingReader) {
    let (reader, file) = RingReader::create(capacity).unwrap();
    let bytes = reader.bytes();
    // SAFETY: a shared mapping of a fresh file of that length.
    let base = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(
            null_mut(),
            bytes,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    let base = NonNull::new(base.cast()).unwrap();
    // SAFETY: page-aligned, of that length; unmapped when the ring is dropped.
    let writer = unsafe { RingWriter::attach(base, bytes) }.unwrap();
    let file = File::from(file);
    let ring = Ring {
        file,
        base,
        bytes,
        writer,
    };
    (ring, reader)
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the writer is not used any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

fn free(address: u64, tid: u32) -> Record<'static> {
    Record {
        time_ns: address,
        tid,
        site: 0,
        event: Event::Free { address },
    }
}

/// The position of the first record's word in the file.
const FIRST: u64 = HEADER_BYTES as u64;
const HEAD: u64 = 128;

fn put(ring: &Ring, offset: u64, word: u64) {
    ring.file.write_all_at(&word.to_ne_bytes(), offset).unwrap();
}

#[test]
fn many_writers_lose_and_reorder_nothing() {
    let (ring, mut reader) = ring(16 << 10);
    let (threads, each) = (8u32, 20_000u64);
    let over = AtomicBool::new(false);
    let mut next = vec![0u64; threads as usize];
    std::thread::scope(|scope| {
        let writer = ring.writer;
        let workers: Vec<_> = (0..threads)
            .map(|tid| {
                scope.spawn(move || {
                    for number in 0..each {
                        let frames: Vec<u64> =
                            (0..number % 40).map(|frame| frame ^ number).collect();
                        let event = Event::Stack { frames: &frames };
                        let record = Record {
                            time_ns: number,
                            tid,
                            site: 1,
                            event,
                        };
                        let wait = |_| {
                            std::thread::yield_now();
                            true
                        };
                        assert!(writer.write(&record, 0, &Reservation::default(), wait));
                    }
                })
            })
            .collect();
        let next = &mut next;
        let over = &over;
        let reading = scope.spawn(move || {
            loop {
                let last = over.load(Ordering::Acquire);
                reader
                    .drain(|record| {
                        let expected = &mut next[record.tid as usize];
                        assert_eq!(record.time_ns, *expected);
                        let Event::Stack { frames } = record.event else {
                            panic!("{record:?}")
                        };
                        assert!(
                            frames
                                .iter()
                                .copied()
                                .eq((0..*expected % 40).map(|frame| frame ^ *expected))
                        );
                        *expected += 1;
                    })
                    .unwrap();
                if last {
                    return reader.losses();
                }
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        over.store(true, Ordering::Release);
        assert_eq!(reading.join().unwrap().dropped, 0);
    });
    assert_eq!(next, vec![each; threads as usize]);
}

#[test]
fn a_full_ring_drops_counts_and_recovers() {
    let (ring, mut reader) = ring(16 << 10);
    let mut asked = 0;
    let mut written = 0;
    for number in 0..1000 {
        written += u64::from(ring.writer.write(
            &free(number, 1),
            0,
            &Reservation::default(),
            |fullness| {
                assert_eq!(fullness, Fullness::ReaderNotYet);
                asked += 1;
                false
            },
        ));
    }
    assert_eq!((written, asked), (512, 488));
    let drained = reader.drain(|_| {}).unwrap();
    assert_eq!(
        (
            drained.records,
            drained.fill_percent,
            reader.losses().dropped
        ),
        (512, 100, 488)
    );
    assert!(
        ring.writer
            .write(&free(1, 1), 0, &Reservation::default(), |_| false)
    );
    assert_eq!(
        reader
            .drain(|record| assert_eq!(record, &free(1, 1)))
            .unwrap()
            .records,
        1
    );
}

#[test]
fn writers_know_whether_somebody_reads() {
    let (ring, mut reader) = ring(0);
    assert_eq!(ring.writer.fullness(0), Fullness::ReaderNotYet);
    reader.drain(|_| {}).unwrap();
    assert_eq!(ring.writer.fullness(0), Fullness::ReaderAlive);
    assert!(ring.writer.is_read(0) && !ring.writer.is_over(0));
    assert_eq!(ring.writer.fullness(u64::MAX), Fullness::ReaderGone);
    assert!(ring.writer.is_over(u64::MAX));
    drop(reader);
    assert_eq!(ring.writer.fullness(0), Fullness::ReaderGone);
    assert!(ring.writer.is_over(0));
}

#[test]
fn what_is_later_is_left_for_the_next_drain() {
    let (ring, mut reader) = ring(0);
    for time in [3, 5, 7, 4, 90] {
        assert!(
            ring.writer
                .write(&free(time, 1), 0, &Reservation::default(), |_| false)
        );
    }
    let mut seen = Vec::new();
    let mut drain = |moments| {
        seen.clear();
        reader
            .drain_before(moments, |record| seen.push(record.time_ns))
            .unwrap();
        seen.clone()
    };
    assert_eq!(drain(6..10), [3, 5]);
    assert_eq!(drain(6..10), []);
    // What is dated into the future keeps nobody.
    assert_eq!(drain(8..20), [7, 4, 90]);
}

#[test]
fn a_record_that_was_never_finished_is_waited_for_then_skipped() {
    let (ring, mut reader) = ring(0);
    for number in 0..4 {
        assert!(
            ring.writer
                .write(&free(number, 1), 0, &Reservation::default(), |_| false)
        );
    }
    // The second died after it wrote its first word, the third before.
    let word = u64::from(0x5au8) << 56 | 4 << 32 | 99;
    put(&ring, FIRST + 32, word);
    ring.file.write_all_at(&[0; 32], FIRST + 64).unwrap();
    let mut seen = Vec::new();
    assert_eq!(
        reader
            .drain(|record| seen.push(record.time_ns))
            .unwrap()
            .unfinished,
        0
    );
    assert_eq!(seen, [0]);
    assert_eq!(
        reader
            .drain_rest(|record| seen.push(record.time_ns))
            .unwrap()
            .unfinished,
        2
    );
    assert_eq!(seen, [0, 3]);
}

#[test]
fn damage_is_said_once_and_for_all_after_what_was_good() {
    let nonsense = [
        u64::MAX,
        0xa5 << 56,
        0xa5 << 56 | 16,
        0xa5 << 56 | 2 << 32 | 32,
        0xa5 << 56 | 3 << 32 | 1 << 31,
        12345,
    ];
    for word in nonsense {
        let (ring, mut reader) = ring(0);
        for number in 0..3 {
            assert!(
                ring.writer
                    .write(&free(number, 1), 0, &Reservation::default(), |_| false)
            );
        }
        put(&ring, FIRST + 32, word);
        let mut seen = 0;
        let first = reader.drain(|_| seen += 1);
        assert!(
            matches!(first, Err(RingError::Damaged { position: 32, .. })),
            "{word:x}: {first:?}"
        );
        assert!(matches!(
            reader.drain(|_| seen += 1),
            Err(RingError::Damaged { .. })
        ));
        assert_eq!(seen, 1);
    }
}

#[test]
fn nobody_changes_the_size_of_a_ring() {
    let (ring, mut reader) = ring(0);
    assert!(
        ring.writer
            .write(&free(1, 1), 0, &Reservation::default(), |_| false)
    );
    for length in [10, ring.bytes as u64 + 4096] {
        let error = ring.file.set_len(length).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
    let descriptor = ring.file.as_raw_fd();
    // SAFETY: integers.
    let sealed = unsafe { libc::fcntl(descriptor, libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    assert_eq!(sealed, -1);
    // A hole reads as zeroes.
    let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: integers.
    let punched = unsafe { libc::fallocate(descriptor, flags, 0, ring.bytes as i64) };
    assert_eq!(punched, 0);
    assert_eq!(
        reader
            .drain(|_| panic!("there is nothing"))
            .unwrap()
            .records,
        0
    );
}

#[test]
fn what_is_not_a_ring_is_not_written_to() {
    let (ring, _reader) = ring(0);
    // SAFETY: the mapping of the ring, or its beginning.
    let attach = |bytes| unsafe { RingWriter::attach(ring.base, bytes) };
    assert!(attach(ring.bytes).is_some());
    for bytes in [0, 100, HEADER_BYTES, ring.bytes / 2, ring.bytes - 8] {
        assert!(attach(bytes).is_none(), "{bytes}");
    }
    for (offset, word) in [(0, 1), (8, 99), (24, 1 << 40)] {
        put(&ring, offset, word);
        assert!(attach(ring.bytes).is_none(), "{offset}");
    }
}

fn events() -> impl Strategy<Value = (Event<'static>, u32, u32, u64)> {
    let kinds = prop_oneof![
        Just(AllocKind::Malloc),
        Just(AllocKind::Pvalloc),
        Just(AllocKind::ReallocArray)
    ];
    let any3 = any::<(u64, u64, u64)>();
    let event = prop_oneof![
        (any::<(u32, u32)>(), any::<bool>()).prop_map(|((pid, parent), fork)| Event::Init {
            pid,
            parent,
            cause: if fork {
                StartCause::Fork
            } else {
                StartCause::Exec
            },
        }),
        (any::<(u64, u64)>(), kinds).prop_map(|((address, bytes), kind)| Event::Alloc {
            address,
            bytes,
            kind
        }),
        any::<u64>().prop_map(|address| Event::Free { address }),
        any::<(u64, u64)>().prop_map(|(address, bytes)| Event::Sampled { address, bytes }),
        any::<u64>().prop_map(|page| Event::PageOwner { page }),
        prop::collection::vec(any::<u64>(), 0..MAX_FRAMES).prop_map(|frames| Event::Stack {
            frames: Vec::leak(frames)
        }),
        (any3, prop::collection::vec(any::<u64>(), 0..MAX_FRAMES)).prop_map(
            |((start, end, offset), path)| Event::Unloads {
                start,
                end,
                offset,
                path: Vec::leak(path),
            }
        ),
        any3.prop_map(|(low, bytes, guard)| Event::ThreadStack { low, bytes, guard }),
        (any3, any::<(u64, u64, u32, u32, i32)>()).prop_map(
            |((address, bytes, old_address), (old_bytes, offset, protection, flags, fd))| {
                Event::Map {
                    operation: MapOperation::Mremap,
                    address,
                    bytes,
                    old_address,
                    old_bytes,
                    protection,
                    flags,
                    fd,
                    offset,
                }
            }
        ),
        any::<(u64, u64)>().prop_map(|(address, bytes)| Event::PreloadMapping {
            address,
            bytes,
            purpose: OwnMemory::Table,
        }),
    ];
    (event, any::<u32>(), any::<u32>(), any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(list in prop::collection::vec(events(), 1..200)) {
        let (ring, mut reader) = ring(0);
        let records: Vec<Record<'_>> = list
            .iter()
            .map(|&(event, tid, site, time_ns)| Record { time_ns, tid, site, event })
            .collect();
        let mut read = 0;
        for record in &records {
            let written = ring.writer.write(record, 0, &Reservation::default(), |_| {
                reader.drain(|record| { assert_eq!(record, &records[read]); read += 1; }).unwrap();
                true
            });
            prop_assert!(written);
        }
        reader.drain(|record| { assert_eq!(record, &records[read]); read += 1; }).unwrap();
        prop_assert_eq!(read, records.len());
    }

    #[test]
    fn scribbling_never_panics(
        scribbles in prop::collection::vec((0u64..20480, any::<u64>(), any::<bool>()), 1..40),
        rest in any::<bool>(),
    ) {
        let (ring, mut reader) = ring(0);
        for (number, (offset, word, small)) in scribbles.into_iter().enumerate() {
            for k in 0..20 {
                ring.writer.write(&free(number as u64 * 20 + k, 1), 0, &Reservation::default(), |_| false);
            }
            // The tail belongs to the reader, which keeps its own; the writer's mask is its own too.
            let word = if small { word % 65536 } else { word };
            put(&ring, if offset % 5 == 0 { HEAD } else { offset & !7 }, word);
            let drained = if rest { reader.drain_rest(|_| {}) } else { reader.drain(|_| {}) };
            if let Ok(drained) = drained {
                prop_assert!(drained.records * 32 <= 16 << 10);
            }
        }
    }
}
