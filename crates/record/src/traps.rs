//! The fault backend: the first access to each page in an interval traps.
//!
//! Each process with the preload library has a servant (`agent/src/servant.rs`). While the target is held, and after
//! the accessed bits were read, each servant moves the pages of its process aside; when the target runs on, the first
//! access to a page faults, and the kernel's tracepoints tell of it as of every fault: address, thread, CPU, time,
//! instruction, read or write. The scan goes on as ever and is the safety net: what cannot be moved is still found
//! there.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration as Wait;

use varve_agent_ring::{
    Arm, Armed, DEVICE, MOST_WORDS, QUIT, READY, SERVED, TRAPS_SOCKET, is_chosen,
};
use varve_bpf::{Bitmap, Leaf, Region};
use varve_model::{Address, Bytes, Duration, PAGE_BYTES, Pid, Tid, Time, TouchSource};
use varve_sys::{DescriptorSocket, ServantSocket, monotonic_now};
use varve_trace::TrapsNote;
use varve_trace::tables::TouchRow;

use crate::ranges::Ranges;
use crate::trap_budget::{Budget, Spent};

/// A servant that takes longer is given up: the target stands still meanwhile.
const LONGEST_ANSWER: Wait = Wait::from_secs(2);

/// The same of one that is to end: nothing but two counts is lost.
const LAST_ANSWER: Wait = Wait::from_millis(20);

/// What is armed without a budget.
const EVERY_PAGE: Arm = Arm {
    seed: 0,
    threshold: u64::MAX,
    afresh: false,
};

/// What the events tell that servants must know.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TrapNews {
    /// A thread began, whose control block lies there.
    Thread(Pid, Tid, Address),
    /// A thread ended.
    ThreadEnded(Pid, Tid),
    /// The memory that the process had until then is gone.
    Gone(Pid, Time),
}

/// The servants of all processes.
#[derive(Debug)]
pub(crate) struct Servants {
    socket: DescriptorSocket,
    /// Where servants are to be, so that they are not held with the target.
    refuge: Option<PathBuf>,
    servants: HashMap<Pid, Servant>,
    threads: HashMap<Pid, HashMap<Tid, Address>>,
    /// Where not all pages are to be armed.
    budget: Option<Budget>,
    /// What the interval that runs has cost so far.
    spent: Spent,
    /// What was armed last.
    armed: Arm,
    /// What was done, for the manifest.
    pub(crate) note: TrapsNote,
}

#[derive(Debug)]
struct Servant {
    socket: ServantSocket,
    since: Time,
    is_ready: bool,
    /// The memory to which it moves pages.
    aside: Ranges,
}

impl Servants {
    /// Makes the socket for the processes, whatever their user, in the folder of the rings. `refuge` is the cgroup
    /// beside that of the target.
    pub(crate) fn create(folder: &Path, budget: Option<Budget>) -> io::Result<Servants> {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.join(TRAPS_SOCKET);
        let socket = DescriptorSocket::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        Ok(Servants {
            socket,
            refuge: None,
            servants: HashMap::new(),
            threads: HashMap::new(),
            note: TrapsNote {
                budget: budget.as_ref().map(|b| b.limit),
                ..TrapsNote::default()
            },
            budget,
            spent: Spent::default(),
            armed: EVERY_PAGE,
        })
    }

    /// Tells which cgroup the target is held in.
    pub(crate) fn held_in(&mut self, cgroup: Option<&Path>) {
        self.refuge = cgroup.and_then(Path::parent).map(Path::to_owned);
    }

    /// Takes up servants that were announced, and those that are ready.
    pub(crate) fn refresh(&mut self) {
        while let Ok(Some((pid, fd))) = self.socket.receive() {
            let Ok(socket) = ServantSocket::adopt(fd) else {
                continue;
            };
            if socket.send_device(&[DEVICE]).is_err() {
                continue;
            }
            let servant = Servant {
                socket,
                since: monotonic_now(),
                is_ready: false,
                aside: Ranges::default(),
            };
            if let Some(old) = self.servants.insert(pid, servant) {
                old.quit();
            }
        }
        let refuge = self.refuge.as_deref();
        self.servants
            .retain(|_, servant| servant.is_ready || servant.greet(refuge).is_ok());
    }

    /// Follows what the events told.
    pub(crate) fn learn(&mut self, news: impl IntoIterator<Item = TrapNews>) {
        for one in news {
            match one {
                TrapNews::Thread(pid, tid, address) => {
                    self.threads.entry(pid).or_default().insert(tid, address);
                }
                TrapNews::ThreadEnded(pid, tid) => {
                    if let Some(threads) = self.threads.get_mut(&pid) {
                        threads.remove(&tid);
                    }
                }
                TrapNews::Gone(pid, time) => {
                    // A new program's servant may have been announced before this was heard.
                    if self.servants.get(&pid).is_some_and(|s| s.since < time)
                        && let Some(servant) = self.servants.remove(&pid)
                    {
                        let (served, empty) = servant.quit();
                        self.note.served += served;
                        self.note.served_empty += empty;
                    }
                    self.threads.remove(&pid);
                }
            }
        }
    }

    /// Has the pages of these processes, which are held, moved aside. `waited` is how long they waited for trapped
    /// accesses since the last time.
    pub(crate) fn arm(&mut self, pids: &[Pid], waited: Duration) {
        self.note.waited_ns = self.note.waited_ns + waited;
        self.spent.waited = waited;
        let arm = match &mut self.budget {
            Some(budget) => budget.next(monotonic_now(), std::mem::take(&mut self.spent)),
            None => EVERY_PAGE,
        };
        self.armed = arm;
        let ready = |(pid, servant): &(&Pid, &mut Servant)| servant.is_ready && pids.contains(pid);
        let mut gone = Vec::new();
        // All at once, then all answers.
        for (pid, servant) in self.servants.iter_mut().filter(ready) {
            let mut words = arm.encode().to_vec();
            let threads = self.threads.get(pid).into_iter().flat_map(|t| t.values());
            words.extend(threads.map(|a| a.0).take(MOST_WORDS - Arm::WORDS));
            if servant.socket.send(&words).is_err() {
                gone.push(*pid);
            }
        }
        let mut words = vec![0; MOST_WORDS];
        for (pid, servant) in self.servants.iter_mut().filter(ready) {
            if gone.contains(pid) {
                continue;
            }
            match servant.answer(&mut words) {
                Some(armed) => add(&mut self.note, &armed),
                None => gone.push(*pid),
            }
        }
        for pid in gone {
            // Its socket is closed: it puts everything back and ends.
            self.servants.remove(&pid);
            self.note.given_up += 1;
        }
        let share = self.budget.as_ref().map_or(1.0, Budget::share);
        let boundaries = self.note.boundaries as f64;
        self.note.sampling_rate =
            (self.note.sampling_rate * boundaries + share) / (boundaries + 1.0);
        self.note.boundaries += 1;
    }

    /// How long the target was held at the last boundary.
    pub(crate) fn held(&mut self, held: Duration) {
        self.spent.held = held;
    }

    /// What was armed last.
    pub(crate) fn armed(&self) -> Arm {
        self.armed
    }

    /// Takes the places aside out of what a walk found: they are not the target's memory.
    pub(crate) fn hide(&self, pid: Pid, regions: &mut Vec<Region>) {
        let Some(servant) = self.servants.get(&pid) else {
            return;
        };
        regions.retain_mut(|region| hide(&servant.aside, region));
    }

    /// The places aside of each process.
    pub(crate) fn asides(&self) -> impl Iterator<Item = (Pid, &Ranges)> {
        self.servants.iter().map(|(pid, s)| (*pid, &s.aside))
    }
}

/// Takes the places aside out of a region; whether it has anything else.
pub(crate) fn hide(aside: &Ranges, region: &mut Region) -> bool {
    let aside = aside.pages_of(region.base);
    if region.leaf != Leaf::Small {
        return aside == [0; 8];
    }
    let bits = [
        &mut region.accessed,
        &mut region.young,
        &mut region.referenced,
        &mut region.pinned,
        &mut region.sticky,
    ];
    let mut any = 0;
    for bits in bits {
        for (word, aside) in bits.iter_mut().zip(&aside) {
            *word &= !aside;
            any |= *word;
        }
    }
    any != 0
}

/// Adds rows of touched pages to the counts.
pub(crate) fn count(note: &mut TrapsNote, rows: &[TouchRow]) {
    for row in rows {
        let pages = u64::from(row.pages);
        if row.source == TouchSource::Fault {
            note.trapped_touches += pages;
        } else {
            note.scanned_touches += pages;
        }
    }
}

fn add(note: &mut TrapsNote, armed: &Armed) {
    note.moved_pages += armed.moved;
    note.immovable_pages += armed.stuck;
    note.most_refused_bytes = note.most_refused_bytes.max(Bytes(armed.refused_bytes));
    note.served += armed.served;
    note.served_empty += armed.empty;
    note.moving_ns = note.moving_ns + Duration(armed.took_ns);
}

impl Servant {
    /// Looks whether it has its userfaultfd by now.
    fn greet(&mut self, refuge: Option<&Path>) -> io::Result<()> {
        let mut words = [0; MOST_WORDS];
        let Some(said) = self.socket.receive(&mut words, Wait::ZERO)? else {
            return Ok(());
        };
        let (Some(pid), Some(descriptor)) = (said.pid, said.descriptor) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if words[0] != READY {
            return Err(io::ErrorKind::InvalidData.into());
        }
        varve_sys::begin_traps(descriptor)?;
        if let Some(refuge) = refuge {
            std::fs::write(refuge.join("cgroup.procs"), pid.to_string())?;
        }
        varve_sys::prefer(pid);
        self.is_ready = true;
        Ok(())
    }

    /// What it did; nothing where it ended or takes too long.
    fn answer(&mut self, words: &mut [u64]) -> Option<Armed> {
        let said = self.socket.receive(words, LONGEST_ANSWER).ok()??;
        let (armed, ranges) = Armed::decode(words.get(..said.words)?)?;
        for range in ranges.chunks_exact(2) {
            self.aside.insert(Address(range[0]), Bytes(range[1]));
        }
        Some(armed)
    }

    /// Ends it at once: the memory is of no use any more. What it has served since the last boundary, and of that
    /// accesses to pages without content.
    fn quit(self) -> (u64, u64) {
        let mut words = [0; 3];
        // If it does not hear it, it hears the end of the connection.
        if self.socket.send(&[QUIT]).is_err() || !self.is_ready {
            return (0, 0);
        }
        match self.socket.receive(&mut words, LAST_ANSWER) {
            Ok(Some(said)) if said.words == 3 && words[0] == SERVED => (words[1], words[2]),
            _ => (0, 0),
        }
    }
}

/// Which pages trapped in an interval.
#[derive(Debug, Default)]
pub(crate) struct Trapped {
    /// What was armed for it: other pages may trap as well, and do not count.
    pub(crate) armed: Option<Arm>,
    regions: HashMap<(Pid, Address), Bits>,
}

#[derive(Debug, Default)]
struct Bits {
    any: Bitmap,
    wrote: Bitmap,
}

impl Trapped {
    /// A fault told of an access; the first to a page counts.
    pub(crate) fn note(&mut self, pid: Pid, address: Address, is_write: bool) {
        let region = Address(address.0 & !(512 * PAGE_BYTES - 1));
        let page = (address.0 - region.0) / PAGE_BYTES;
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        let bits = self.regions.entry((pid, region)).or_default();
        if bits.any[word] & bit == 0 {
            bits.any[word] |= bit;
            if is_write {
                bits.wrote[word] |= bit;
            }
        }
    }

    /// Of the 512 pages from `base` on: those that trapped, and those of them whose first access was a write.
    pub(crate) fn of(&self, pid: Pid, base: Address) -> (Bitmap, Bitmap) {
        let Some(bits) = self.regions.get(&(pid, base)) else {
            return ([0; 8], [0; 8]);
        };
        let Some(arm) = self.armed.filter(|a| a.threshold != u64::MAX) else {
            return (bits.any, bits.wrote);
        };
        let chosen = std::array::from_fn(|i| {
            let bit = |b: u64| {
                let page = base.page().0 + i as u64 * 64 + b;
                u64::from(is_chosen(page, arm.seed, arm.threshold)) << b
            };
            (0..64).map(bit).sum::<u64>()
        });
        let and = |a: &Bitmap, b: &Bitmap| std::array::from_fn(|i| a[i] & b[i]);
        (and(&bits.any, &chosen), and(&bits.wrote, &chosen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_aside_is_not_the_targets() {
        let mut aside = Ranges::default();
        aside.insert(Address(4 << 21), Bytes(3 * PAGE_BYTES));
        let region = |base: u64, leaf| Region {
            base: Address(base),
            leaf,
            hugetlb: false,
            accessed: [0b11, 0, 0, 0, 0, 0, 0, 0],
            young: [0; 8],
            referenced: [0; 8],
            pinned: [0; 8],
            sticky: [0b100, 0, 0, 0, 0, 0, 0, 0],
            written: [0; 8],
            intact: [0; 8],
            present: 3,
        };
        assert!(!hide(&aside, &mut region(4 << 21, Leaf::Small)));
        assert!(!hide(&aside, &mut region(4 << 21, Leaf::Huge2M)));
        let mut beyond = region(4 << 21, Leaf::Small);
        beyond.accessed[1] = 1;
        assert!(hide(&aside, &mut beyond));
        assert_eq!(beyond.touched(), [0, 1, 0, 0, 0, 0, 0, 0]);
        let mut other = region(6 << 21, Leaf::Small);
        assert!(hide(&aside, &mut other));
        assert_eq!(other.touched()[0], 0b111);
    }

    #[test]
    fn the_first_access_says_whether_it_was_a_write() {
        let mut trapped = Trapped::default();
        let base = 7 << 21;
        let at = |page: u64| Address(base + page * PAGE_BYTES + 5);
        trapped.note(Pid(1), at(0), false);
        trapped.note(Pid(1), at(0), true);
        trapped.note(Pid(1), at(65), true);
        trapped.note(Pid(1), at(65), false);
        let (any, wrote) = trapped.of(Pid(1), Address(base));
        assert_eq!((any[0], any[1]), (1, 2));
        assert_eq!((wrote[0], wrote[1]), (0, 2));
        assert_eq!(trapped.of(Pid(2), Address(base)).0, [0; 8]);
    }
}
