//! A file that says how much of it has been read.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes that are read at once.
const BUFFER: usize = 1 << 18;

pub(crate) struct Input<'a> {
    inner: BufReader<Counted<'a>>,
}

struct Counted<'a> {
    file: File,
    read: u64,
    report: &'a mut dyn FnMut(u64),
}

impl<'a> Input<'a> {
    pub(crate) fn open(path: &Path, report: &'a mut dyn FnMut(u64)) -> io::Result<Input<'a>> {
        let counting = Counted {
            file: regular(path)?,
            read: 0,
            report,
        };
        Ok(Input {
            inner: BufReader::with_capacity(BUFFER, counting),
        })
    }

    /// The first bytes of a file, and how long it is.
    pub(crate) fn head(path: &Path, most: usize) -> io::Result<(Vec<u8>, u64)> {
        let file = regular(path)?;
        let length = file.metadata()?.len();
        let mut head = Vec::new();
        file.take(most as u64).read_to_end(&mut head)?;
        Ok((head, length))
    }
}

/// The files of one recording, the one that says what the others hold first. That is one file, except of `perf record
/// --threads`, which makes a folder: `data` with the header, and `data.0` and so on with the records of each thread.
pub(crate) fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let header = path.join("data");
    if !header.is_file() {
        let what = "it is a folder without a file `data`, which `perf record --threads` would have put there";
        return Err(io::Error::other(what));
    }
    let mut parts: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|n| n.strip_prefix("data.")?.parse().ok());
        if let Some(number) = number {
            parts.push((number, entry.path()));
        }
    }
    parts.sort();
    let parts = parts.into_iter().map(|(_, path)| path);
    Ok([header].into_iter().chain(parts).collect())
}

/// Opening a FIFO would wait for ever, and files are read more than once.
fn regular(path: &Path) -> io::Result<File> {
    varve_sys::open_regular(path)
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read += read as u64;
        (self.report)(self.read);
        Ok(read)
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = self.file.seek(to)?;
        self.read = at;
        Ok(at)
    }
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer)
    }
}

impl BufRead for Input<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.inner.consume(bytes);
    }
}

impl Seek for Input<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}
