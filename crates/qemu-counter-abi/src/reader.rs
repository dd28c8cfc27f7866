//! Reading what the plugin wrote. The program that was counted may have damaged it: everything is checked.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::layout as at;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CountsError {
    /// The system said no.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How.
        what: &'static str,
    },
}

/// A file of words.
#[derive(Debug)]
struct Words {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Words {
    fn open(path: &Path) -> Result<Words, CountsError> {
        let io = |source| CountsError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        let words = Words {
            path: path.to_owned(),
            file,
            bytes,
        };
        if bytes < at::HEADER_BYTES || words.word(at::AT_MAGIC)? != at::MAGIC {
            return Err(words.damaged("it does not begin as such a file does"));
        }
        if words.word(at::AT_VERSION)? != at::VERSION {
            return Err(words.damaged("it was written by another version of the plugin"));
        }
        Ok(words)
    }

    fn damaged(&self, what: &'static str) -> CountsError {
        CountsError::Damaged {
            path: self.path.clone(),
            what,
        }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), CountsError> {
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|source| CountsError::Io {
                path: self.path.clone(),
                source,
            })
    }

    /// The first byte from `offset` on that takes room on the disk, if there is one: the others are zero.
    fn content_from(&self, offset: u64) -> Result<Option<u64>, CountsError> {
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(CountsError::Io {
                path: self.path.clone(),
                source: error.into(),
            }),
        }
    }

    fn word(&self, offset: u64) -> Result<u64, CountsError> {
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }
}

/// What all processes of a recording share.
#[derive(Debug)]
pub struct Control(Words);

impl Control {
    /// Makes the file; intervals are `length` accesses long, or the whole run where it is 0. Threads claim
    /// accesses in blocks of a 64th of it, so that it is rounded up to a multiple of 64.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub fn create(path: &Path, length: u64) -> io::Result<()> {
        let file = File::create_new(path)?;
        file.set_len(at::CONTROL_BYTES)?;
        let length = length.next_multiple_of(64);
        let block = (length / 64).max(1);
        for (offset, word) in [
            (at::AT_VERSION, at::VERSION),
            (at::CONTROL_LENGTH, length),
            (at::CONTROL_BLOCK, block),
            (at::AT_MAGIC, at::MAGIC),
        ] {
            file.write_all_at(&word.to_ne_bytes(), offset)?;
        }
        Ok(())
    }

    /// Opens it.
    ///
    /// # Errors
    /// A file that cannot be read or is another.
    pub fn open(path: &Path) -> Result<Control, CountsError> {
        Words::open(path).map(Control)
    }

    /// Processes that could not make a file of counts.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn uncounted(&self) -> Result<u64, CountsError> {
        self.0.word(at::CONTROL_UNCOUNTED)
    }

    /// How many accesses one interval is long; 0 where the whole run is one.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn length(&self) -> Result<u64, CountsError> {
        self.0.word(at::CONTROL_LENGTH)
    }

    /// When each of the first `count` intervals began, nanoseconds of CLOCK_MONOTONIC; 0 where nobody
    /// noted it.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn starts(&self, count: u64) -> Result<Vec<u64>, CountsError> {
        let count = count.min(at::MAX_INTERVALS);
        let mut bytes = vec![0; 8 * count as usize];
        self.0.read(at::CONTROL_STARTS, &mut bytes)?;
        Ok(words(&bytes).collect())
    }
}

/// What one file of counts says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The process, as the file's name says.
    pub pid: u32,
    /// The number by which it knows itself: another one in a pid namespace of its own.
    pub own_pid: u32,
    /// When the program began, or was forked, nanoseconds of CLOCK_MONOTONIC.
    pub born_ns: u64,
    /// The executable.
    pub path: String,
    /// Accesses that could not be counted.
    pub lost: u64,
    /// Programs that the process changed into and that were not counted.
    pub unfollowed: u64,
}

/// The counts of one thread in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The thread.
    pub tid: u32,
    /// The interval.
    pub interval: u32,
    offset: u64,
}

/// What one thread did to one page in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The page: virtual address >> 12.
    pub page: u64,
    /// Accesses that read at least one byte of it.
    pub reads: u64,
    /// Accesses that wrote at least one byte of it.
    pub writes: u64,
    /// The stamp of the first of them: nanoseconds of CLOCK_MONOTONIC, made to differ.
    pub first_ns: u64,
}

/// A file of counts.
#[derive(Debug)]
pub struct Counts {
    words: Words,
    image: Image,
}

impl Counts {
    /// Opens it.
    ///
    /// # Errors
    /// A file that cannot be read or is another.
    pub fn open(path: &Path) -> Result<Counts, CountsError> {
        let words = Words::open(path)?;
        let length = (words.word(at::AT_PATH)? as usize).min(at::MAX_PATH);
        let mut name = vec![0; length];
        words.read(at::AT_PATH + 8, &mut name)?;
        let own_pid = words.word(at::AT_PID)? as u32;
        // The recorder gave the file its name; what is in it is the program's word.
        let file = path.file_name().and_then(|n| n.to_str());
        let named = file.and_then(crate::parse_file_name);
        let image = Image {
            pid: named.map_or(own_pid, |(pid, _)| pid),
            own_pid,
            born_ns: words.word(at::AT_BORN)?,
            path: String::from_utf8_lossy(&name).into_owned(),
            lost: words.word(at::AT_LOST)?,
            unfollowed: words.word(at::AT_UNFOLLOWED)?,
        };
        Ok(Counts { words, image })
    }

    /// What it says of itself.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Its segments, the newest first.
    ///
    /// # Errors
    /// A list that does not end or leads out of the file, tables that do or that overlap, and intervals that there
    /// cannot be.
    pub fn segments(&self) -> Result<Vec<Segment>, CountsError> {
        let mut segments = Vec::new();
        let mut tables = Vec::new();
        // Threads make segments side by side, so that offsets need not fall: a list may come back to itself anywhere.
        let mut seen = HashSet::new();
        let mut offset = self.words.word(at::AT_SEGMENTS)?;
        while offset != 0 {
            let fits = offset <= self.words.bytes - at::SEGMENT_BYTES;
            if !fits || !seen.insert(offset) || seen.len() as u64 > at::MAX_SEGMENTS {
                return Err(self.words.damaged("its list of segments leads nowhere"));
            }
            let mut bytes = [0; at::SEGMENT_BYTES as usize];
            self.words.read(offset, &mut bytes)?;
            let word = |at: u64| {
                let mut word = [0; 8];
                word.copy_from_slice(&bytes[at as usize..at as usize + 8]);
                u64::from_ne_bytes(word)
            };
            let next = word(at::SEGMENT_NEXT);
            tables.extend(self.place(word(at::SEGMENT_TABLE))?);
            let interval = word(at::SEGMENT_INTERVAL);
            if interval >= at::MAX_INTERVALS {
                return Err(self.words.damaged("an interval of it cannot be"));
            }
            segments.push(Segment {
                tid: word(at::SEGMENT_TID) as u32,
                interval: interval as u32,
                offset,
            });
            offset = next;
        }
        // Room is never used again, so that this holds of a program that runs, too. A small file whose segments all
        // show the same table would take for ever.
        tables.sort_unstable();
        if tables.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Err(self.words.damaged("tables of it overlap"));
        }
        Ok(segments)
    }

    /// The entries of a segment, in no order. The program may still run: what comes is what some moment of the call
    /// saw.
    ///
    /// # Errors
    /// A table that leads out of the file, or that does not stay where it is for as long as reading it takes.
    pub fn entries(&self, segment: &Segment) -> Result<Vec<Entry>, CountsError> {
        let place = || self.words.word(segment.offset + at::SEGMENT_TABLE);
        let mut table = place()?;
        // A table that grows moves, and what it leaves behind is emptied. It doubles at least each time.
        for _ in 0..=at::MAX_LOG2 {
            let entries = self.table(table);
            let now = place()?;
            if now == table {
                return entries;
            }
            table = now;
        }
        Err(self
            .words
            .damaged("a table of it does not stay in its place"))
    }

    /// Where a table begins and ends; nothing where there is none yet.
    fn place(&self, table: u64) -> Result<Option<(u64, u64)>, CountsError> {
        let log2 = (table & 63) as u32;
        let offset = table & !63;
        if offset == 0 {
            return Ok(None);
        }
        let end = (log2 <= at::MAX_LOG2)
            .then(|| offset.checked_add(at::ENTRY_BYTES << log2))
            .flatten();
        match end.filter(|end| *end <= self.words.bytes) {
            Some(end) => Ok(Some((offset, end))),
            None => Err(self.words.damaged("a table of it leads nowhere")),
        }
    }

    fn table(&self, table: u64) -> Result<Vec<Entry>, CountsError> {
        let Some((offset, end)) = self.place(table)? else {
            return Ok(Vec::new());
        };
        let mut entries = Vec::new();
        let mut buffer = vec![0; (1 << 16).min((end - offset) as usize)];
        let mut at = offset;
        while at < end {
            match self.words.content_from(at)? {
                Some(from) if from < end => at = at.max(from / at::ENTRY_BYTES * at::ENTRY_BYTES),
                _ => break,
            }
            let length = (end - at).min(buffer.len() as u64) as usize;
            self.words.read(at, &mut buffer[..length])?;
            for entry in buffer[..length].chunks_exact(at::ENTRY_BYTES as usize) {
                let mut fields = words(entry);
                let mut next = || fields.next().unwrap_or(0);
                let (key, reads, writes, first_ns) = (next(), next(), next(), next());
                if key != 0 {
                    entries.push(Entry {
                        page: key - 1,
                        reads,
                        writes,
                        first_ns,
                    });
                }
            }
            at += length as u64;
        }
        Ok(entries)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|chunk| {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    })
}
