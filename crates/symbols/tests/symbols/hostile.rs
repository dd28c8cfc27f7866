//! Broken and hostile ELF files cost their own names, never a panic, a hang or the memory of the machine.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{C, CPP, compile, mappings};
use varve_model::{Address, Bytes, Pid, SiteId, Time};
use varve_symbols::{
    AddressSpaces, Locator, Mapping, Snapshot, Stack, StaticsReader, Unwinder, symbolize,
};

const BIAS: u64 = 0x5555_5555_4000;

/// A small generator of its own, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

fn look_at(all: &[Mapping], path: &Path) -> Duration {
    let start = Instant::now();
    let statics = StaticsReader::new(Locator::default(), Bytes(1)).read(all);
    assert!(statics.objects.len() < 10_000_000);
    let spaces = AddressSpaces::new(all);
    let code: Vec<&Mapping> = all
        .iter()
        .filter(|mapping| mapping.perms.contains('x'))
        .collect();
    let frames: Vec<Address> = code
        .iter()
        .flat_map(|mapping| {
            (0..40).map(|step| Address(mapping.address.0 + step * mapping.bytes.0 / 40))
        })
        .collect();
    let stack = Stack {
        site: SiteId(0),
        pid: Pid(1),
        at: None,
        frames: frames.clone(),
    };
    symbolize(&Locator::default(), &spaces, &[stack]);
    let mut unwinder = Unwinder::new(Locator::default());
    let words: Vec<u8> = frames
        .iter()
        .flat_map(|address| address.0.to_le_bytes())
        .collect();
    for ip in frames {
        let snapshot = Snapshot {
            pid: Pid(1),
            at: Time(1),
            ip,
            sp: Address(0x7fff_0000),
            bp: Address(0x7fff_0010),
            stack: &words,
        };
        unwinder.unwind(&spaces, &snapshot);
    }
    let elapsed = start.elapsed();
    // A guard against work without end; `slowest` below shows what it takes.
    assert!(
        elapsed < Duration::from_secs(300),
        "{} took {elapsed:?}",
        path.display()
    );
    elapsed
}

#[test]
fn mutated_files_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut slowest = Duration::ZERO;
    let rounds: usize = std::env::var("VARVE_MUTATIONS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(500);
    for (name, source, flags) in [
        ("a.c", C, &["-g", "-O2"][..]),
        ("b.cc", CPP, &["-g", "-O1", "-no-pie"][..]),
        ("c.c", C, &["-gdwarf-4", "-O2", "-gz"][..]),
        ("d.cc", CPP, &["-g0", "-O2"][..]),
    ] {
        let path = compile(folder.path(), name, source, flags);
        let all = mappings(&path, BIAS);
        let original = std::fs::read(&path).unwrap();
        let headers = original.len() - original.len() / 20;
        for round in 0..rounds {
            let mut bytes = original.clone();
            match round % 4 {
                0 => bytes.truncate(random.next(original.len())),
                1 => {
                    // The headers steer everything else.
                    for _ in 0..1 + random.next(4) {
                        let at = if random.next(2) == 0 {
                            random.next(1024)
                        } else {
                            headers + random.next(original.len() - headers)
                        };
                        bytes[at] ^= 1 << random.next(8);
                    }
                }
                2 => {
                    for _ in 0..1 + random.next(200) {
                        let at = random.next(original.len());
                        bytes[at] = random.next(256) as u8;
                    }
                }
                _ => {
                    let (at, length) = (random.next(original.len()), random.next(256));
                    let value = [0, 0xff, 0x80, 0x7f][random.next(4)];
                    bytes
                        .iter_mut()
                        .skip(at)
                        .take(length)
                        .for_each(|byte| *byte = value);
                }
            }
            std::fs::write(&path, &bytes).unwrap();
            let took = look_at(&all, &path);
            if took > Duration::from_secs(1) {
                eprintln!("{name}, round {round}: {took:?}");
            }
            slowest = slowest.max(took);
        }
    }
    eprintln!("{} files, slowest {slowest:?}", rounds * 4);
}
