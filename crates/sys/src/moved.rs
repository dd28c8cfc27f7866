//! Bringing back the pages that a fault handler had moved when it ended.
//!
//! A fault handler moves pages of its process to a shadow address, and its userfaultfd makes the process wait at each until
//! it is back. The registration of that memory outlives the handler where somebody else holds the userfaultfd too: then the
//! process waits, and reads no zeroes. [`MovedPages`] holds what it takes to let it go on without the handler.
//!
//! Only a process that shares the memory may move pages (`UFFDIO_MOVE`), so they are copied: read from the shadow
//! (`/proc/PID/mem`) and put where they belong (`UFFDIO_COPY`). The files are opened while the recorder may, and need no right
//! afterwards; they stay those of the very memory that they were opened of, whatever becomes of the process.
//!
//! The process goes on meanwhile, and may move, unmap and fork. [`Homes`] follows that in the order in which it happened: the
//! kernel refuses copies from a change of mappings until it was heard, so what was copied before it moves with it.
//! ABI: `linux/userfaultfd.h`, `linux/fs.h`; semantics: `Documentation/admin-guide/mm/userfaultfd.rst`.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use varve_model::{PAGE_BYTES, Pid};
use varve_preload_abi::journal::{Change, HEARD, Journal, WAITING};

use crate::homes::{EVENT_FORK, Homes, Piece, Shadow, range_of};
use crate::userfault::present_runs;
use crate::{MapEntry, PidFd, parse_maps};

const UFFDIO_COPY: u64 = 0xc028_aa03;
const UFFDIO_POISON: u64 = 0xc020_aa08;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;

/// The function of the kernel (`fs/userfaultfd.c`) in which a thread waits for a page.
const WAITS_FOR_PAGE: &[u8] = b"handle_userfault";

/// Bytes that are copied at once.
const PIECE: u64 = 64 * PAGE_BYTES;
/// How long one page is tried: mappings change, or memory is short.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_micros(100);
/// Forked children that wait to be filled, at most.
const MAX_CHILDREN: usize = 256;
/// How often mappings are given up again because they changed meanwhile.
const MAX_ROUNDS: usize = 100;

/// What was brought back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Pages.
    pub pages: u64,
    /// Pages that could not be: an access to one ends the process, and reads no zeroes.
    pub poisoned: u64,
}

impl std::ops::AddAssign for Brought {
    fn add_assign(&mut self, other: Brought) {
        self.pages += other.pages;
        self.poisoned += other.poisoned;
    }
}

/// What it takes to bring the pages of one process back.
#[derive(Debug)]
pub struct MovedPages {
    front: OwnedFd,
    memory: File,
    pagemap: File,
    maps: File,
    handler: PidFd,
    /// The handler's number, which stays; none where it had ended before.
    handler_pid: Option<Pid>,
    /// Where the handler notes what it has heard.
    journal: u64,
}

impl MovedPages {
    /// How many descriptors it consists of.
    pub const DESCRIPTORS: usize = 5;

    /// Of the memory that a verified handler shares with its process; `front` is the handler's userfaultfd, `journal` where its
    /// [`Journal`] lies.
    ///
    /// # Errors
    /// Where the handler's files cannot be opened, or it is not a handler of that process any more.
    pub fn open(
        handler: Pid,
        process: Pid,
        front: OwnedFd,
        journal: u64,
    ) -> io::Result<MovedPages> {
        let open = |pid: Pid, name: &str| {
            crate::rights::with_any_file(|| File::open(crate::shared_folder(pid).join(name)))
        };
        let (memory, pagemap) = (open(handler, "mem")?, open(handler, "pagemap")?);
        // The kernel lists mappings only for as long as the process lives by whose number they were opened.
        let maps = open(process, "maps")?;
        // Whatever had this number when the files were opened, it shares the memory of the process now: a program that it
        // runs since, or another process, would not.
        let verified = crate::verify_handler(handler, process)?;
        let opened = MovedPages {
            front,
            memory,
            pagemap,
            maps,
            handler: verified,
            handler_pid: Some(handler),
            journal,
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
    pub fn from_descriptors(all: [OwnedFd; MovedPages::DESCRIPTORS], journal: u64) -> MovedPages {
        let [front, memory, pagemap, maps, handler] = all;
        let handler = PidFd::from(handler);
        MovedPages {
            front,
            memory: memory.into(),
            pagemap: pagemap.into(),
            maps: maps.into(),
            handler_pid: handler.pid(),
            handler,
            journal,
        }
    }

    /// Where the handler's journal lies.
    pub fn journal(&self) -> u64 {
        self.journal
    }

    /// Changes of mappings that the handler has heard and may not have followed, in their order.
    fn unfollowed(&self) -> Vec<Change> {
        let read = |at: u64, count: usize| -> Option<Vec<u64>> {
            let mut bytes = vec![0; count * 8];
            self.memory.read_exact_at(&mut bytes, at).ok()?;
            let words = bytes.as_chunks::<8>().0.iter();
            Some(words.map(|word| u64::from_ne_bytes(*word)).collect())
        };
        let Some(head) = read(self.journal, Journal::HEAD_WORDS) else {
            return Vec::new();
        };
        let change = |words: &[u64]| Change {
            event: words[0],
            words: [words[1], words[2], words[3]],
        };
        let (heard, counts) = head.split_at(4 * HEARD);
        let count = (counts[1] as usize).min(WAITING);
        let waiting = (0..count).map_while(|index| {
            let place = counts[0].wrapping_add(index as u64) % WAITING as u64;
            let at = self.journal + 8 * Journal::HEAD_WORDS as u64 + 32 * place;
            Some(change(&read(at, 4)?))
        });
        let heard = heard.chunks_exact(4).map(change);
        waiting.chain(heard).filter(|c| c.event != 0).collect()
    }

    /// Whether the handler has ended.
    pub fn handler_has_ended(&self) -> bool {
        self.handler.has_ended()
    }

    /// Ends the handler where it waits at a page that it has moved: nothing else would ever bring that page back.
    /// None of a handler's own instructions accesses such a page; but a program can change the instructions.
    /// Where the kernel does not show what a process waits for (`/proc/PID/wchan`, `proc(5)`), the handler stays.
    pub fn end_stuck_handler(&self) {
        let Some(pid) = self.handler_pid else {
            return;
        };
        let waits_for = std::fs::read(format!("/proc/{pid}/wchan")).unwrap_or_default();
        // The number was the handler's when that was read, if the handler is there still.
        if waits_for.starts_with(WAITS_FOR_PAGE) && !self.handler.has_ended() {
            let _ = self.handler.signal(libc::SIGKILL);
        }
    }

    /// Whether the process is gone. Others may share its memory.
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
        let mut front = Filling::new(
            self,
            self.front.as_fd(),
            Homes::new(shadow, &self.plain_mappings()),
        );
        for change in self.unfollowed() {
            front.homes.follow(change);
        }
        let mut brought = front.fill_all();
        // What was changed before its mapping was given up is heard; what it concerned may be watched still.
        for _ in 0..MAX_ROUNDS {
            for range in self.plain_mappings().iter().map(range_of) {
                let mut words = [range.start, range.end - range.start];
                let _ = request(self.front.as_fd(), UFFDIO_UNREGISTER, &mut words);
            }
            if !self.has_events() {
                break;
            }
            brought += front.fill_all();
        }
        brought
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

/// One filling: of the process, or of a child that it forks meanwhile.
struct Filling<'a> {
    moved: &'a MovedPages,
    /// The userfaultfd of the memory that is filled.
    to: Descriptor<'a>,
    homes: Homes,
    /// Since when a page could not be copied.
    stuck: Option<Instant>,
    brought: Brought,
}

/// What became of a page.
enum Copied {
    Done,
    /// There is nothing to copy it to.
    NotThere,
    /// That is to be tried again.
    NotNow,
}

enum Descriptor<'a> {
    OfProcess(BorrowedFd<'a>),
    OfChild(OwnedFd),
}

impl AsFd for Descriptor<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Descriptor::OfProcess(borrowed) => *borrowed,
            Descriptor::OfChild(owned) => owned.as_fd(),
        }
    }
}

impl<'a> Filling<'a> {
    fn new(moved: &'a MovedPages, front: BorrowedFd<'a>, homes: Homes) -> Filling<'a> {
        Filling {
            moved,
            to: Descriptor::OfProcess(front),
            homes,
            stuck: None,
            brought: Brought::default(),
        }
    }

    /// Fills it, and the children that are forked meanwhile.
    fn fill_all(&mut self) -> Brought {
        let mut children = VecDeque::new();
        self.fill(&mut children);
        let mut brought = std::mem::take(&mut self.brought);
        while let Some(mut child) = children.pop_front() {
            child.fill(&mut children);
            brought += child.brought;
        }
        brought
    }

    fn fill(&mut self, children: &mut VecDeque<Filling<'a>>) {
        loop {
            // Mappings change: whoever changes them goes on when that was heard.
            self.listen(children);
            match self.homes.pop() {
                None => return,
                Some(piece) if !piece.is_present => self.look(piece),
                Some(piece) => self.copy(piece),
            }
        }
    }

    /// Finds the pages of a piece.
    fn look(&mut self, piece: Piece) {
        let end = piece.shadow + piece.bytes;
        // Else the memory is gone.
        if let Ok((runs, next)) = present_runs(&self.moved.pagemap, piece.shadow, end) {
            if next < end {
                self.homes.push(piece.part(next, end));
            }
            for (start, stop) in runs.into_iter().rev() {
                self.homes.push(Piece {
                    is_present: true,
                    ..piece.part(start, stop)
                });
            }
        }
    }

    /// Copies the first pages of a piece. Those that it does not come to are to be brought back still.
    fn copy(&mut self, piece: Piece) {
        let bytes = piece.bytes.min(PIECE);
        let (from, end) = (piece.shadow, piece.shadow + piece.bytes);
        if bytes < piece.bytes {
            self.homes.push(piece.part(from + bytes, end));
        }
        let mut content = vec![0u8; bytes as usize];
        let memory = &self.moved.memory;
        let whole = memory.read_exact_at(&mut content, from).is_ok();
        for (index, page) in content.chunks_exact_mut(PAGE_BYTES as usize).enumerate() {
            let offset = index as u64 * PAGE_BYTES;
            if !whole && memory.read_exact_at(page, from + offset).is_err() {
                continue;
            }
            match self.copy_page(piece.home + offset, page) {
                Copied::Done => {}
                Copied::NotThere => {
                    let page = from + offset;
                    self.homes.pass(piece.part(page, page + PAGE_BYTES));
                }
                Copied::NotNow => {
                    self.homes.push(piece.part(from + offset, from + bytes));
                    std::thread::sleep(PAUSE);
                    return;
                }
            }
        }
    }

    /// Copies a page.
    fn copy_page(&mut self, to: u64, content: &[u8]) -> Copied {
        let mut words = [to, content.as_ptr() as u64, PAGE_BYTES, 0, 0];
        match request(self.to.as_fd(), UFFDIO_COPY, &mut words) {
            Ok(()) => self.brought.pages += 1,
            // Mappings change, or memory is short.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM)) => {
                let since = *self.stuck.get_or_insert_with(Instant::now);
                if since.elapsed() < PATIENCE {
                    return Copied::NotNow;
                }
                let mut words = [to, PAGE_BYTES, 0, 0];
                let poisoned = request(self.to.as_fd(), UFFDIO_POISON, &mut words).is_ok();
                self.brought.poisoned += u64::from(poisoned);
            }
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            // It is not watched or not there any more, or has moved and the kernel is about to say so.
            Err(_) => {
                self.stuck = None;
                return Copied::NotThere;
            }
        }
        self.stuck = None;
        Copied::Done
    }

    /// Hears what the kernel says of the memory. All pages that are to be brought back are in `homes`.
    fn listen(&mut self, children: &mut VecDeque<Filling<'a>>) {
        let mut message = [0u8; 32];
        while rustix::io::read(&self.to, &mut message) == Ok(message.len()) {
            let word = |i: usize| {
                let bytes = message[8 * i..8 * i + 8].try_into();
                u64::from_ne_bytes(bytes.unwrap_or_default())
            };
            let change = Change {
                event: word(0),
                words: [word(1), word(2), word(3)],
            };
            match change.event as u8 {
                EVENT_FORK => {
                    let mut child = Filling {
                        moved: self.moved,
                        // SAFETY: the kernel has made this descriptor for this reader just now.
                        to: Descriptor::OfChild(unsafe { OwnedFd::from_raw_fd(word(1) as i32) }),
                        homes: self.homes.clone(),
                        stuck: None,
                        brought: Brought::default(),
                    };
                    if children.len() < MAX_CHILDREN {
                        children.push_back(child);
                    } else {
                        self.brought += child.fill_all();
                    }
                }
                // Whoever waits for a page is woken when it is there.
                _ => self.homes.follow(change),
            }
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
