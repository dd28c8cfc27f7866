//! What a watchdog does.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use varve_model::Pid;
use varve_preload_abi::shadow;
use varve_sys::{CgroupMark, MovedPages, PidFd, Shadow, SharedStops, ZramDevice};

use super::order::{Came, Incoming, Order, made_bytes};
use crate::leftovers::LeftFolder;
use crate::marker::Marker;

/// How often a watchdog looks whether the recorder is stopped, and whether fault handlers have ended.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// How often a watchdog looks whether a fault handler waits for itself: its process stands still meanwhile, which costs nothing but time.
const STUCK_EVERY: Duration = Duration::from_secs(1);
/// How long fault handlers may take to bring everything back when their recorder is gone.
const MAX_RETURN: Duration = Duration::from_secs(60);
/// How long the second watchdog waits for the first to clean up.
const MAX_FIRST: Duration = Duration::from_secs(60);

/// The pages of a process that has a fault handler.
struct Moved {
    pages: Arc<MovedPages>,
    /// Who brings them back, once the handler has ended.
    work: Option<JoinHandle<()>>,
    /// Whether that was done once.
    is_back: bool,
    /// When it was looked last whether the handler waits for itself.
    looked: Instant,
}

impl Moved {
    fn new(pages: MovedPages) -> Moved {
        Moved {
            pages: Arc::new(pages),
            work: None,
            is_back: false,
            looked: Instant::now(),
        }
    }

    /// Whether process and handler are gone.
    fn is_over(&self) -> bool {
        self.work.is_none() && self.pages.is_over() && self.pages.handler_has_ended()
    }

    /// Brings the pages back where the handler has ended, or is to be ended. Large memory takes a while, and others wait.
    fn refresh(&mut self) {
        if self.looked.elapsed() >= STUCK_EVERY && !self.pages.handler_has_ended() {
            self.pages.end_stuck_handler();
            self.looked = Instant::now();
        }
        if let Some(work) = self.work.take_if(|work| work.is_finished()) {
            let _ = work.join();
            self.is_back = true;
        }
        let is_due = self.work.is_none()
            && self.pages.handler_has_ended()
            && (!self.is_back || self.pages.has_events());
        if is_due {
            let pages = Arc::clone(&self.pages);
            self.work = Some(std::thread::spawn(move || {
                pages.bring_back(Shadow {
                    of: shadow::shadow_of,
                    middle: shadow::MIDDLE,
                    top: shadow::TOP,
                });
            }));
        }
    }

    /// Whether all pages are back.
    fn is_done(&mut self) -> bool {
        self.is_back && self.work.is_none()
    }
}

/// What a watchdog cares for.
#[derive(Default)]
struct Duties {
    recorder: Option<Pid>,
    /// What it says about its stops.
    stops: Option<SharedStops>,
    /// The first watchdog, where this is the second.
    first: Option<PidFd>,
    moved: Vec<Moved>,
    made: Vec<(PathBuf, PathBuf)>,
    found: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    limited: Vec<(PathBuf, PathBuf)>,
    zrams: Vec<ZramDevice>,
    /// Those that it has made, and of which the recorder has not said that it knows.
    unknown: Vec<ZramDevice>,
}

impl Duties {
    /// Lets the target run if the recorder is stopped.
    fn thaw_if_stopped(&mut self) {
        let Some(recorder) = self.recorder else {
            return;
        };
        if !varve_sys::status(recorder).is_ok_and(|s| matches!(s.state, 'T' | 't')) {
            return;
        }
        // Only the recorder can let go what it traces; where a debugger has stopped it, it is the debugger's.
        if let (Some(stops), false) = (&self.stops, self.is_spare()) {
            stops.have_let_go(recorder);
        }
        for (path, _) in &self.made {
            varve_sys::thaw(path);
        }
        for path in self.found.iter().filter(|p| self.is_held(p)) {
            varve_sys::thaw(path);
        }
    }

    /// Whether the recorder holds a group of somebody else's at the moment: if not, and it is frozen, somebody else
    /// froze it.
    fn is_held(&self, group: &Path) -> bool {
        match varve_sys::cgroup_mark(group) {
            CgroupMark::Says(text) => Marker::parse(&text).map(|m| m.pid) == self.recorder,
            _ => false,
        }
    }

    /// Lets the target run: its recorder is gone.
    fn thaw(&self) {
        for (path, _) in &self.made {
            varve_sys::thaw(path);
        }
        for path in self.found.iter().filter(|p| self.is_held(p)) {
            varve_sys::thaw(path);
        }
    }

    /// Whether another watchdog does the work.
    fn is_spare(&self) -> bool {
        self.first.as_ref().is_some_and(|first| !first.has_ended())
    }

    /// What is to be done again and again.
    fn refresh(&mut self) {
        self.thaw_if_stopped();
        self.moved.retain_mut(|moved| !moved.is_over());
        if !self.is_spare() {
            self.moved.iter_mut().for_each(Moved::refresh);
        }
    }

    /// Waits until all pages are where they belong, or nobody's any more: the recorder is gone, so that the handlers end.
    fn see_pages_back(&mut self) {
        let until = Instant::now() + MAX_RETURN;
        while Instant::now() < until {
            self.refresh();
            if self.moved.iter_mut().all(|moved| moved.is_done()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The recorder is gone.
    fn clean_up(&self) {
        for path in self.found.iter().filter(|p| self.is_held(p)) {
            varve_sys::thaw(path);
            let _ = varve_sys::mark_cgroup(path, None);
        }
        for (path, parent) in &self.made {
            varve_sys::dissolve(path, parent);
        }
        for (path, home) in &self.limited {
            varve_sys::dissolve_limited(path, home);
        }
        // What is swapped has to find room: without the limit.
        self.zrams.iter().copied().for_each(ZramDevice::remove);
        for folder in &self.folders {
            if crate::probes::counts::recovery::recover_into_trace(
                folder,
                crate::probes::counts::recovery::PATIENCE,
            ) {
                // The recorder itself named it, perhaps before it could mark it.
                let _ = LeftFolder::open(folder).map(LeftFolder::remove);
            }
        }
    }
}

/// A watchdog's whole life: `varve watchdog` runs this on its standard input, a socket. `is_second` is for the one that waits
/// for the first to fail, `swaps` for those that may have a swap device to remove.
pub fn watch(socket: OwnedFd, is_second: bool, swaps: bool) {
    crate::rights::keep_for_watchdog(swaps);
    if is_second {
        let own = || std::process::id().to_ne_bytes();
        if varve_sys::detach().is_err() || rustix::io::write(&socket, &own()).is_err() {
            return;
        }
    }
    // It holds what leads into the target's memory.
    crate::rights::hide();
    let Ok(back) = socket.try_clone().map(UnixStream::from) else {
        return;
    };
    let (incoming, came) = Incoming::new(socket);
    follow(BufReader::new(incoming), &came, |bytes| {
        // Where nobody hears it, the recorder is gone.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = rustix::net::send(&back, bytes, flags);
    });
}

/// Follows orders until they end; `answer` goes to who gives them.
fn follow(mut orders: impl BufRead + Send + 'static, came: &Came, answer: impl Fn(&[u8])) {
    let mut duties = Duties::default();
    let (say, heard) = channel();
    // Ends with the orders, or with this process.
    std::thread::spawn(move || {
        while let Some(order) = Order::read(&mut orders) {
            if say.send(order).is_err() {
                return;
            }
        }
    });
    let mut refreshed = Instant::now();
    let is_ended = loop {
        match heard.recv_timeout(CHECK_EVERY) {
            Ok(Order::Recorder(pid)) => {
                duties.recorder = Some(pid);
                duties.stops = came.take_stops();
            }
            Ok(Order::First(pid)) => duties.first = PidFd::open(pid).ok(),
            Ok(Order::Made(path, parent)) => duties.made.push((path, parent)),
            Ok(Order::Found(path)) => duties.found.push(path),
            Ok(Order::RunFolder(path)) => duties.folders.push(path),
            Ok(Order::Moved(journal)) => duties.moved.extend(came.take(journal).map(Moved::new)),
            Ok(Order::Limited(path, home)) => duties.limited.push((path, home)),
            Ok(Order::MakeZram) => {
                let made = ZramDevice::make();
                duties.unknown.extend(made.as_ref().ok().copied());
                answer(&made_bytes(&made));
            }
            Ok(Order::Zram(device)) => {
                duties.unknown.retain(|made| *made != device);
                duties.zrams.push(device);
            }
            Ok(Order::End) => break true,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break false,
        }
        if refreshed.elapsed() >= CHECK_EVERY {
            refreshed = Instant::now();
            duties.refresh();
        }
    };
    if !is_ended {
        duties.thaw();
    }
    let until = Instant::now() + MAX_FIRST;
    while duties.is_spare() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    // Before the cgroup is dissolved and after it was let go, so that handlers can do their work.
    duties.see_pages_back();
    if !is_ended {
        duties.clean_up();
    }
    duties.unknown.into_iter().for_each(ZramDevice::remove);
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::Cursor;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn any_path_survives() {
        let odd = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let orders = [
            Order::Recorder(Pid(7)),
            Order::Made(odd(b"/a\tb\nc d\xff"), odd(b"/")),
            Order::Found(odd(b"e\n")),
            Order::Moved(1 << 46),
            Order::RunFolder(odd(b"")),
            Order::Limited(odd(b"/a"), odd(b"/")),
            Order::MakeZram,
            Order::Zram(ZramDevice {
                number: 3,
                sequence: u64::MAX,
            }),
            Order::End,
        ];
        let bytes: Vec<u8> = orders.iter().flat_map(Order::encode).collect();
        let mut stream = Cursor::new(&bytes);
        for order in &orders {
            assert_eq!(Order::read(&mut stream).as_ref(), Some(order));
        }
        assert_eq!(Order::read(&mut stream), None);
        // A recorder that was killed in the middle of an order has not given it.
        let cut = Order::Made(odd(b"/a"), odd(b"/b")).encode();
        for end in 0..cut.len() {
            assert_eq!(Order::read(&mut Cursor::new(&cut[..end])), None);
        }
    }

    #[test]
    fn a_recorder_that_dies_has_its_folder_removed_and_one_that_ends_does_not() {
        let watch = |orders: Vec<u8>| follow(Cursor::new(orders), &Came::default(), |_| {});
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        std::fs::create_dir(&folder).unwrap();
        crate::marker::mark_folder(&folder).unwrap();
        let order = Order::RunFolder(folder.clone()).encode();
        watch([order.clone(), Order::End.encode()].concat());
        assert!(folder.is_dir());
        watch(order.clone());
        assert!(!folder.exists());
        // What no recorder makes stays.
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("thesis.tex"), "").unwrap();
        watch(order);
        assert!(folder.join("thesis.tex").exists());
    }
}
