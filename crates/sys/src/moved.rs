//! Bringing back the pages that a fault handler had moved when it ended.
//!
//! A fault handler moves pages of its process to a shadow address, and its userfaultfd makes the process wait at each until
//! it is back. The registration of that memory outlives the handler where somebody else holds the userfaultfd too: then the
//! process waits, and reads no zeroes. [`MovedPages`] holds what it takes to let it go on without the handler.
//!
//! Only a process that shares the memory may move pages (`UFFDIO_MOVE`), so they are copied: read from the shadow
//! (`/proc/PID/mem`) and put where they belong (`UFFDIO_COPY`). The files are opened while the recorder may, and need no right
//! afterwards; they stay those of the very memory that they were opened of, whatever becomes of the process.
//! ABI: `linux/userfaultfd.h`, `linux/fs.h`; semantics: `Documentation/admin-guide/mm/userfaultfd.rst`.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use varve_model::{PAGE_BYTES, Pid};

use crate::userfault::present_runs;
use crate::{MapEntry, PidFd, parse_maps};

const UFFDIO_COPY: u64 = 0xc028_aa03;
const UFFDIO_POISON: u64 = 0xc020_aa08;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// Bytes that are copied at once.
const PIECE: u64 = 64 * PAGE_BYTES;
/// How long one page is tried: mappings change, or memory is short.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_micros(100);

/// Where the pages of a range lie while they are moved.
#[derive(Clone, Copy, Debug)]
pub struct Shadow {
    /// The shadow address of an address.
    pub of: fn(u64) -> u64,
    /// Addresses below and from here on have their shadows in different directions.
    pub middle: u64,
    /// Addresses from here on are nobody's.
    pub top: u64,
}

/// What was brought back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Pages.
    pub pages: u64,
    /// Pages that could not be: an access to one ends the process, and reads no zeroes.
    pub poisoned: u64,
}

/// What it takes to bring the pages of one process back.
#[derive(Debug)]
pub struct MovedPages {
    front: OwnedFd,
    memory: File,
    pagemap: File,
    maps: File,
    handler: PidFd,
}

impl MovedPages {
    /// How many descriptors it consists of.
    pub const DESCRIPTORS: usize = 5;

    /// Of the memory that a verified handler shares with its process; `front` is the handler's userfaultfd.
    ///
    /// # Errors
    /// Where the handler's files cannot be opened, or it is not a handler of that process any more.
    pub fn open(handler: Pid, process: Pid, front: OwnedFd) -> io::Result<MovedPages> {
        let open = |pid: Pid, name: &str| {
            crate::rights::with_any_file(|| File::open(format!("/proc/{pid}/{name}")))
        };
        let (memory, pagemap) = (open(handler, "mem")?, open(handler, "pagemap")?);
        // The kernel lists mappings only for as long as the process lives by whose number they were opened.
        let maps = open(process, "maps")?;
        // Whatever had this number when the files were opened, it shares the memory of the process now: a program that it
        // runs since, or another process, would not.
        let handler = crate::verify_handler(handler, process)?;
        let opened = MovedPages {
            front,
            memory,
            pagemap,
            maps,
            handler,
        };
        // Of a process whose first thread has ended, the kernel lists none.
        match opened.is_over() {
            true => Err(io::ErrorKind::NotFound.into()),
            false => Ok(opened),
        }
    }

    /// Its descriptors, in the order that [`MovedPages::from_descriptors`] takes.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; MovedPages::DESCRIPTORS] {
        [
            self.front.as_fd(),
            self.memory.as_fd(),
            self.pagemap.as_fd(),
            self.maps.as_fd(),
            self.handler.as_fd(),
        ]
    }

    /// From the descriptors that somebody handed over.
    pub fn from_descriptors(all: [OwnedFd; MovedPages::DESCRIPTORS]) -> MovedPages {
        let [front, memory, pagemap, maps, handler] = all;
        MovedPages {
            front,
            memory: memory.into(),
            pagemap: pagemap.into(),
            maps: maps.into(),
            handler: handler.into(),
        }
    }

    /// Whether the handler has ended.
    pub fn handler_has_ended(&self) -> bool {
        self.handler.has_ended()
    }

    /// Whether the memory is gone.
    pub fn is_over(&self) -> bool {
        !matches!(self.maps.read_at(&mut [0; 1], 0), Ok(1))
    }

    /// Whether the kernel has something to say of the memory that nobody has heard yet.
    pub fn has_events(&self) -> bool {
        let [has_events] = crate::is_readable([self.front.as_fd()], Some(Duration::ZERO));
        has_events
    }

    /// Brings back everything, and gives up watching the memory. The handler has ended. Doing so again changes nothing.
    pub fn bring_back(&self, shadow: Shadow) -> Brought {
        let mut return_ = Return {
            moved: self,
            to: self.front.as_fd(),
            shadow,
            done: HashSet::new(),
            brought: Brought::default(),
        };
        return_.fill();
        // From here on nothing is told any more; what was until now is heard.
        for range in return_.ranges() {
            let mut words = [range.start, range.end - range.start];
            let _ = request(self.front.as_fd(), UFFDIO_UNREGISTER, &mut words);
        }
        return_.listen();
        return_.brought
    }

    fn plain_mappings(&self) -> Vec<MapEntry> {
        let mut text = Vec::new();
        let mut piece = vec![0; 64 << 10];
        while let Ok(count @ 1..) = self.maps.read_at(&mut piece, text.len() as u64) {
            text.extend_from_slice(&piece[..count]);
        }
        let mut all = parse_maps(&text);
        all.retain(|m| m.inode == 0 && m.perms.ends_with('p'));
        all
    }
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
}

/// One filling: of the process, or of a child that it forks meanwhile.
struct Return<'a> {
    moved: &'a MovedPages,
    /// The userfaultfd of the memory that is filled.
    to: BorrowedFd<'a>,
    shadow: Shadow,
    /// Pages that are there, or of no use any more. The shadow keeps its content, so that it does not tell.
    done: HashSet<u64>,
    brought: Brought,
}

impl Return<'_> {
    fn fill(&mut self) {
        self.listen();
        for range in self.ranges() {
            self.fill_range(range, range.start);
        }
        self.listen();
    }

    /// The ranges that may have pages in their shadows, each of whose shadows is in one piece.
    fn ranges(&self) -> Vec<Range> {
        let Shadow { of, middle, top } = self.shadow;
        let all = self.moved.plain_mappings();
        let parts = all.iter().flat_map(|m| {
            let end = m.address.0 + m.bytes.0;
            [(0, middle), (middle, top)].map(|(from, to)| Range {
                start: m.address.0.max(from),
                end: end.min(to),
            })
        });
        let has_shadow = |r: &Range| {
            let start = of(r.start);
            let at = all.partition_point(|m| m.address.0 + m.bytes.0 <= start);
            all.get(at)
                .is_some_and(|m| m.address.0 < start + (r.end - r.start))
        };
        parts
            .filter(|r| r.start < r.end)
            .filter(has_shadow)
            .collect()
    }

    /// Brings the pages of a range back, to `to` on.
    fn fill_range(&mut self, range: Range, to: u64) {
        let place = (self.shadow.of)(range.start);
        let end = place + (range.end - range.start);
        let mut at = place;
        while at < end {
            let Ok((runs, next)) = present_runs(&self.moved.pagemap, at, end) else {
                return;
            };
            for (start, stop) in runs {
                for from in (start..stop).step_by(PIECE as usize) {
                    let bytes = PIECE.min(stop - from);
                    self.copy(
                        range.start + (from - place),
                        from,
                        to + (from - place),
                        bytes,
                    );
                }
            }
            at = next;
        }
    }

    /// Copies pages from the shadow on, which belong to `home`, to `to`.
    fn copy(&mut self, home: u64, shadow: u64, to: u64, bytes: u64) {
        let mut content = vec![0u8; bytes as usize];
        let whole = self
            .moved
            .memory
            .read_exact_at(&mut content, shadow)
            .is_ok();
        let mut at = 0;
        while at < bytes {
            let page = home + at;
            let offset = at as usize;
            let one = &mut content[offset..offset + PAGE_BYTES as usize];
            if !self.done.contains(&page)
                && (whole || self.moved.memory.read_exact_at(one, shadow + at).is_ok())
            {
                self.copy_page(
                    page,
                    to + at,
                    &content[offset..offset + PAGE_BYTES as usize],
                );
            }
            at += PAGE_BYTES;
        }
    }

    fn copy_page(&mut self, home: u64, to: u64, content: &[u8]) {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut words = [to, content.as_ptr() as u64, PAGE_BYTES, 0, 0];
            let Err(error) = request(self.to, UFFDIO_COPY, &mut words) else {
                self.brought.pages += 1;
                break;
            };
            let passes = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM));
            // Else it has a page of its own, or is not watched or not there any more.
            if !passes {
                break;
            }
            // Mappings change: whoever changes them goes on when that was heard.
            self.listen();
            if self.done.contains(&home) {
                return;
            }
            if Instant::now() >= until {
                let mut words = [to, PAGE_BYTES, 0, 0];
                let poisoned = request(self.to, UFFDIO_POISON, &mut words).is_ok();
                self.brought.poisoned += u64::from(poisoned);
                break;
            }
            std::thread::sleep(PAUSE);
        }
        self.done.insert(home);
    }

    /// Follows what the kernel says of the memory.
    fn listen(&mut self) {
        let mut message = [0u8; 32];
        while rustix::io::read(self.to, &mut message) == Ok(message.len()) {
            let word = |i: usize| {
                let bytes = message[8 * i..8 * i + 8].try_into();
                u64::from_ne_bytes(bytes.unwrap_or_default())
            };
            let (a, b, c) = (word(1), word(2), word(3));
            match message[0] {
                EVENT_FORK => {
                    // SAFETY: the kernel has made this descriptor for this reader just now.
                    let child = unsafe { OwnedFd::from_raw_fd(a as i32) };
                    let mut filling = Return {
                        moved: self.moved,
                        to: child.as_fd(),
                        shadow: self.shadow,
                        done: self.done.clone(),
                        brought: Brought::default(),
                    };
                    filling.fill();
                    self.brought.poisoned += filling.brought.poisoned;
                }
                EVENT_REMAP => {
                    let from = Range {
                        start: a,
                        end: a.saturating_add(c),
                    };
                    self.fill_range(from, b);
                    self.finish(from);
                }
                EVENT_REMOVE | EVENT_UNMAP => self.finish(Range { start: a, end: b }),
                // Whoever waits for a page is woken when it is there.
                _ => {}
            }
        }
    }

    fn finish(&mut self, range: Range) {
        let place = (self.shadow.of)(range.start);
        let mut at = place;
        let end = place.saturating_add(range.end.saturating_sub(range.start));
        while at < end {
            let Ok((runs, next)) = present_runs(&self.moved.pagemap, at, end) else {
                return;
            };
            for (start, stop) in runs {
                let pages = (start..stop).step_by(PAGE_BYTES as usize);
                self.done.extend(pages.map(|p| range.start + (p - place)));
            }
            at = next;
        }
    }
}

/// A request to a userfaultfd, whose argument is as long as its struct.
fn request(to: BorrowedFd<'_>, number: u64, words: &mut [u64]) -> io::Result<()> {
    // SAFETY: the callers' words are as long as the struct that the request reads and writes, and the addresses in
    // them are those of memory that outlives the call, or of another process.
    let result = unsafe { libc::ioctl(to.as_raw_fd(), number as _, words.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
