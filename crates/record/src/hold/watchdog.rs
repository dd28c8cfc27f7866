//! The watchdog: a tiny process that outlives a killed recorder.
//!
//! A frozen cgroup stays frozen when whoever froze it dies. The watchdog waits for the end of the recorder on a pipe
//! that the recorder alone holds open. If the pipe ends without the order to end, the watchdog lets the target go, empties and
//! removes the cgroup that the recorder made, writes counts that are not in the trace yet and removes the run
//! folder. A recorder that is stopped (SIGSTOP, a debugger, Ctrl-Z) cannot let go either: the watchdog thaws then.
//!
//! An order is a letter and its fields, each ended by a zero byte: any path can be said so.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use varve_model::Pid;
use varve_sys::CgroupMark;
use varve_sys::rights::without_gain;

use crate::RecordError;
use crate::leftovers::LeftFolder;
use crate::marker::Marker;

/// How often the watchdog checks whether the recorder is stopped.
const CHECK_EVERY: Duration = Duration::from_millis(300);
/// How long the recorder waits for the watchdog's end.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the watchdog is to care for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The process of the recorder.
    Recorder(Pid),
    /// A cgroup that the recorder makes, and the one to which its processes return.
    Made(PathBuf, PathBuf),
    /// A cgroup of somebody else's, which the recorder freezes now and then, and has marked while it does.
    Found(PathBuf),
    /// The run folder.
    RunFolder(PathBuf),
    /// The recorder has cleaned up itself.
    End,
}

impl Order {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let number;
        let (letter, fields): (u8, Vec<&OsStr>) = match self {
            Order::Recorder(pid) => {
                number = OsString::from(pid.to_string());
                (b'p', vec![&number])
            }
            Order::Made(path, parent) => (b'm', vec![path.as_os_str(), parent.as_os_str()]),
            Order::Found(path) => (b'f', vec![path.as_os_str()]),
            Order::RunFolder(path) => (b'r', vec![path.as_os_str()]),
            Order::End => (b'e', Vec::new()),
        };
        let mut bytes = vec![letter];
        for field in fields {
            bytes.extend_from_slice(field.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    /// Reads the next order; none at the end, and where the stream ends in the middle of one.
    pub fn read(orders: &mut impl BufRead) -> Option<Order> {
        let mut letter = [0];
        orders.read_exact(&mut letter).ok()?;
        let mut field = || {
            let mut bytes = Vec::new();
            orders.read_until(0, &mut bytes).ok()?;
            (bytes.pop()? == 0).then(|| PathBuf::from(OsString::from_vec(bytes)))
        };
        match letter[0] {
            b'p' => Some(Order::Recorder(Pid(field()?.to_str()?.parse().ok()?))),
            b'm' => Some(Order::Made(field()?, field()?)),
            b'f' => Some(Order::Found(field()?)),
            b'r' => Some(Order::RunFolder(field()?)),
            b'e' => Some(Order::End),
            _ => None,
        }
    }
}

/// What a watchdog cares for.
#[derive(Debug, Default)]
struct Care {
    recorder: Option<Pid>,
    made: Vec<(PathBuf, PathBuf)>,
    found: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Care {
    /// Lets the target run if the recorder is stopped.
    fn thaw_if_stopped(&self) {
        let state = self.recorder.and_then(|pid| varve_sys::status(pid).ok());
        if !state.is_some_and(|s| matches!(s.state, 'T' | 't')) {
            return;
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

    /// The recorder is gone.
    fn clean_up(&self) {
        for path in self.found.iter().filter(|p| self.is_held(p)) {
            varve_sys::thaw(path);
            let _ = varve_sys::mark_cgroup(path, None);
        }
        for (path, parent) in &self.made {
            varve_sys::dissolve(path, parent);
        }
        for folder in &self.folders {
            if crate::probes::counts::recovery::salvage(
                folder,
                crate::probes::counts::recovery::PATIENCE,
            ) {
                // The recorder itself named it, perhaps before it could mark it.
                let _ = LeftFolder::open(folder).map(LeftFolder::remove);
            }
        }
    }
}

/// The watchdog's whole life: `varve watchdog` runs this on its standard input.
pub fn watch(mut orders: impl BufRead + Send + 'static) {
    crate::rights::settle_watchdog();
    let mut care = Care::default();
    let (say, heard) = channel();
    // Ends with the orders, or with this process.
    std::thread::spawn(move || {
        while let Some(order) = Order::read(&mut orders) {
            if say.send(order).is_err() {
                return;
            }
        }
    });
    loop {
        match heard.recv_timeout(CHECK_EVERY) {
            Ok(Order::Recorder(pid)) => care.recorder = Some(pid),
            Ok(Order::Made(path, parent)) => care.made.push((path, parent)),
            Ok(Order::Found(path)) => care.found.push(path),
            Ok(Order::RunFolder(path)) => care.folders.push(path),
            Ok(Order::End) => return,
            Err(RecvTimeoutError::Timeout) => care.thaw_if_stopped(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    care.clean_up();
}

/// The recorder's end of it.
pub(crate) struct Watchdog {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Watchdog {
    pub(crate) fn start() -> Result<Watchdog, RecordError> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("watchdog")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in the terminal must not reach it.
            .process_group(0);
        // By that it knows that a recorder started it, not a person whom the program's file gave rights.
        let mut child = without_gain(&mut command)
            .spawn()
            .map_err(RecordError::system("start the watchdog process"))?;
        let orders = child.stdin.take();
        let mut watchdog = Watchdog { child, orders };
        watchdog.order(&Order::Recorder(Pid(std::process::id())))?;
        Ok(watchdog)
    }

    fn send(&mut self, order: &Order) -> io::Result<()> {
        match &mut self.orders {
            Some(pipe) => pipe.write_all(&order.encode()),
            None => Ok(()),
        }
    }

    /// Gives it something to care for, before it exists.
    pub(crate) fn order(&mut self, order: &Order) -> Result<(), RecordError> {
        self.send(order)
            .map_err(RecordError::system("speak to the watchdog process"))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.send(&Order::End);
        self.orders = None;
        // It ends at once, unless somebody has stopped it: a target of the same user can.
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn any_path_survives() {
        let odd = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let orders = [
            Order::Recorder(Pid(7)),
            Order::Made(odd(b"/a\tb\nc d\xff"), odd(b"/")),
            Order::Found(odd(b"e\n")),
            Order::RunFolder(odd(b"")),
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
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        std::fs::create_dir(&folder).unwrap();
        crate::marker::mark_folder(&folder).unwrap();
        let order = Order::RunFolder(folder.clone()).encode();
        watch(Cursor::new([order.clone(), Order::End.encode()].concat()));
        assert!(folder.is_dir());
        watch(Cursor::new(order.clone()));
        assert!(!folder.exists());
        // What no recorder makes stays.
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("thesis.tex"), "").unwrap();
        watch(Cursor::new(order));
        assert!(folder.join("thesis.tex").exists());
    }
}
