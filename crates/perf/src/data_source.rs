//! What the hardware says of an access: `perf_mem_data_src`, in bits and in perf's words.

use varve_model::MemoryLevel;

/// What is known of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataSource {
    /// Whether it wrote; none where it may be either.
    pub write: Option<bool>,
    /// Where the data came from.
    pub level: Option<MemoryLevel>,
}

impl DataSource {
    /// From `union perf_mem_data_src` (`include/uapi/linux/perf_event.h`).
    pub fn from_bits(bits: u64) -> DataSource {
        let field = |shift: u32, width: u32| bits >> shift & ((1 << width) - 1);
        let (operation, level, number) = (field(0, 5), field(5, 14), field(33, 4));
        let (is_remote, hops) = (field(37, 1) == 1, field(43, 3));
        DataSource {
            write: write(operation & 2 != 0, operation & 4 != 0),
            level: numbered(number, level & 4 != 0, is_remote, hops).or_else(|| flagged(level)),
        }
    }

    /// From perf's text, `OP LOAD|LVL L1 hit|SNP None|...`, with or without the leading bar.
    pub fn from_text(text: &[u8]) -> DataSource {
        let mut found = DataSource::default();
        for part in text.split(|b| *b == b'|') {
            let part = part.trim_ascii();
            if let Some(operation) = part.strip_prefix(b"OP ") {
                let has = |word: &[u8]| memchr::memmem::find(operation, word).is_some();
                found.write = write(has(b"LOAD"), has(b"STORE"));
            } else if let Some(level) = part.strip_prefix(b"LVL ") {
                found.level = level_of_text(level);
            }
        }
        found
    }
}

/// Both at once is neither: an atomic access may be either.
fn write(load: bool, store: bool) -> Option<bool> {
    match (load, store) {
        (true, false) => Some(false),
        (false, true) => Some(true),
        _ => None,
    }
}

/// `mem_lvl_num`, since Linux 4.14. Where the level was missed, the data came from elsewhere.
fn numbered(number: u64, is_miss: bool, is_remote: bool, hops: u64) -> Option<MemoryLevel> {
    use MemoryLevel::*;
    if is_miss {
        return None;
    }
    // More than one hop leaves the node's core; two and more leave the socket's caches.
    let is_far = is_remote && hops != 1;
    Some(match number {
        1..=4 | 0xb if is_remote => RemoteCache,
        1 | 7 => L1,
        2 | 5 => L2,
        3 => L3,
        4 => L4,
        8 => Uncached,
        9 => Cxl,
        0xa => Io,
        0xc => FillBuffer,
        0xd if is_far => RemoteDram,
        0xd => LocalDram,
        0xe => Pmem,
        _ => return None,
    })
}

/// `mem_lvl`, the older set of flags.
fn flagged(level: u64) -> Option<MemoryLevel> {
    use MemoryLevel::*;
    const MISS: u64 = 4;
    let has = |bit: u64| level & bit != 0;
    // Memory flags say where the data came from whether or not a cache was missed on the way.
    Some(match () {
        () if has(0x100) || has(0x200) => RemoteDram,
        () if has(0x80) => LocalDram,
        () if has(0x400) || has(0x800) => RemoteCache,
        () if has(0x1000) => Io,
        () if has(0x2000) => Uncached,
        () if has(MISS) => return None,
        () if has(0x10) => FillBuffer,
        () if has(0x8) => L1,
        () if has(0x20) => L2,
        () if has(0x40) => L3,
        () => return None,
    })
}

/// perf's words for a level, such as `L1 hit`, `LFB/MAB hit`, `Local RAM or RAM hit`; also with `_` for blanks.
pub fn level_of_text(words: &[u8]) -> Option<MemoryLevel> {
    use MemoryLevel::*;
    let words: Vec<u8> = words
        .iter()
        .map(|b| {
            if *b == b'_' {
                b' '
            } else {
                b.to_ascii_lowercase()
            }
        })
        .collect();
    let has = |word: &str| memchr::memmem::find(&words, word.as_bytes()).is_some();
    let is_remote = has("remote");
    Some(match () {
        () if has("pmem") => Pmem,
        () if has("cxl") => Cxl,
        () if has("remote cache") => RemoteCache,
        () if has("ram") && is_remote => RemoteDram,
        () if has("local ram") => LocalDram,
        () if has("ram") => Dram,
        () if has("uncached") => Uncached,
        () if has("i/o") => Io,
        () if has("miss") => return None,
        () if is_remote => RemoteCache,
        () if has("lfb") => FillBuffer,
        () if has("l1") || has("l0") => L1,
        () if has("l2") => L2,
        () if has("l3") => L3,
        () if has("l4") => L4,
        () => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryLevel::*;

    fn is(source: DataSource, write: Option<bool>, level: Option<MemoryLevel>) {
        assert_eq!(source, DataSource { write, level });
    }

    #[test]
    fn bits_and_words_say_the_same() {
        // An Intel load that hit L1: LOAD, L1 | HIT, no snoop, lvl_num L1.
        is(
            DataSource::from_bits(0x1_0508_0142 | 1 << 33),
            Some(false),
            Some(L1),
        );
        is(DataSource::from_bits(0x6808_0142), Some(false), Some(L1));
        is(
            DataSource::from_text(b"|OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2 hit|LCK No"),
            Some(false),
            Some(L1),
        );
        // A store to remote memory, one hop beyond the node.
        is(
            DataSource::from_bits(4 | 0xd << 33 | 1 << 37 | 2 << 43),
            Some(true),
            Some(RemoteDram),
        );
        is(
            DataSource::from_text(b"|OP STORE|LVL Remote RAM (1 hop) hit"),
            Some(true),
            Some(RemoteDram),
        );
        // Local memory is reported although L3 was missed.
        is(
            DataSource::from_bits(2 | (0x80 | 4) << 5),
            Some(false),
            Some(LocalDram),
        );
        is(
            DataSource::from_text(b"OP LOAD|LVL Local RAM hit"),
            Some(false),
            Some(LocalDram),
        );
        is(
            DataSource::from_text(b"|OP LOAD|LVL LFB/MAB hit|"),
            Some(false),
            Some(FillBuffer),
        );
        is(
            DataSource::from_text(b"|OP LOAD|LVL L1 miss|"),
            Some(false),
            None,
        );
        is(DataSource::from_text(b"|OP N/A|LVL N/A|"), None, None);
        is(DataSource::from_bits(0), None, None);
    }

    #[test]
    fn words_of_the_artifact_are_known() {
        let words: [(&[u8], _); 6] = [
            (b"Ram_hit", Some(Dram)),
            (b"PMEM_hit", Some(Pmem)),
            (b"LFB_hit", Some(FillBuffer)),
            (b"L3_miss", None),
            (b"L2_hit", Some(L2)),
            (b"LVL", None),
        ];
        for (word, level) in words {
            assert_eq!(level_of_text(word), level);
        }
    }
}
