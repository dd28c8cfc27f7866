//! `/proc/PID`: what a process is and maps.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use varve_model::{Address, Bytes, Duration, Pid, Tid, Time};

use crate::clock::boot_offset;
use crate::regular::FileIdentity;

/// Room for the mappings of most processes.
const MAPS_BYTES: usize = 32 << 10;

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MapEntry {
    /// Its first address.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// Such as `r-xp`.
    pub perms: String,
    /// The offset in the file, bytes.
    pub offset: u64,
    /// `major:minor`.
    pub device: String,
    /// The inode; 0 for none.
    pub inode: u64,
    /// The file, or the kernel's name, or nothing.
    pub path: String,
}

impl MapEntry {
    /// Which file is mapped; None where the kernel's text says none.
    pub fn identity(&self) -> Option<FileIdentity> {
        FileIdentity::of_text(&self.device, self.inode)
    }

    /// The same as a line of the text.
    pub fn line(&self) -> MapLine<'_> {
        MapLine {
            address: self.address,
            bytes: self.bytes,
            perms: &self.perms,
            offset: self.offset,
            device: &self.device,
            inode: self.inode,
            path: &self.path,
        }
    }
}

/// A line of `/proc/PID/maps` whose words stay in the text; see [`MapEntry`]. The order is that of the addresses, and of the
/// other fields where those are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MapLine<'a> {
    /// Its first address.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// Such as `r-xp`.
    pub perms: &'a str,
    /// The offset in the file, bytes.
    pub offset: u64,
    /// `major:minor`.
    pub device: &'a str,
    /// The inode; 0 for none.
    pub inode: u64,
    /// The file, or the kernel's name, or nothing.
    pub path: &'a str,
}

impl MapLine<'_> {
    /// The same without the text.
    pub fn to_entry(self) -> MapEntry {
        MapEntry {
            address: self.address,
            bytes: self.bytes,
            perms: self.perms.to_owned(),
            offset: self.offset,
            device: self.device.to_owned(),
            inode: self.inode,
            path: self.path.to_owned(),
        }
    }
}

/// Where `/proc` shows what the threads of a process share, such as its memory: at its first thread, or where that has
/// ended and others go on, at one of those (`pthread_exit` in `main`).
pub fn shared_folder(pid: Pid) -> PathBuf {
    let own = PathBuf::from(format!("/proc/{pid}"));
    let has_ended = |folder: &Path| {
        let stat = fs::read(folder.join("stat")).ok();
        let status = stat.and_then(|text| parse_stat(&text).ok());
        status.is_none_or(|status| matches!(status.state, 'Z' | 'X'))
    };
    if !has_ended(&own) {
        return own;
    }
    let threads = fs::read_dir(own.join("task")).into_iter().flatten();
    let mut threads = threads.flatten().map(|thread| thread.path());
    threads.find(|thread| !has_ended(thread)).unwrap_or(own)
}

/// Looks at what the threads of a process share: at its first thread and, only where nothing is there, at one that goes on.
/// Whether the first has ended costs more to find out than most looks.
fn look<T>(
    pid: Pid,
    look: impl Fn(&Path) -> io::Result<T>,
    is_there: impl Fn(&T) -> bool,
) -> io::Result<T> {
    let own = PathBuf::from(format!("/proc/{pid}"));
    let found = look(&own);
    if found.as_ref().is_ok_and(is_there) {
        return found;
    }
    let other = shared_folder(pid);
    if other == own {
        return found;
    }
    look(&other)
}

/// The mappings of a process: all of them, or none where its memory has gone meanwhile, as the kernel hands the list out
/// in pieces.
///
/// # Errors
/// There is no such process, or this one may not look into it.
pub fn maps(pid: Pid) -> io::Result<Vec<MapEntry>> {
    Ok(maps_text(pid)?.lines().map(MapLine::to_entry).collect())
}

/// The same as text, for readers that compare it with what they know already.
///
/// # Errors
/// As [`maps`].
pub fn maps_text(pid: Pid) -> io::Result<MapsText> {
    let read = |folder: &Path| {
        let mut maps = fs::File::open(folder.join("maps"))?;
        let mut text = Vec::with_capacity(MAPS_BYTES);
        maps.read_to_end(&mut text)?;
        Ok((maps, text))
    };
    let (maps, text) = look(pid, read, |(_, text)| !text.is_empty())?;
    // The file shows one memory, and nothing of it from its end on.
    let was_whole = maps.read_at(&mut [0], 0)? > 0;
    Ok(match was_whole {
        true => MapsText::of(text),
        false => MapsText::default(),
    })
}

/// Whether the mappings of a process can be read, which takes the right to look into it.
///
/// # Errors
/// What the kernel says to an attempt.
pub fn try_maps(pid: Pid) -> io::Result<()> {
    fs::File::open(shared_folder(pid).join("maps")).map(drop)
}

/// Whether this process may stop another one, by ptrace or otherwise: the kernel asks for the same right before it
/// hands out a descriptor of that process's, and there is none of such a number.
///
/// # Errors
/// What the kernel says to an attempt.
pub fn try_stop(pid: Pid) -> io::Result<()> {
    let process = crate::PidFd::open(pid)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&process));
    // SAFETY: takes three integers; the descriptor is open for the call.
    let done = unsafe { libc::syscall(libc::SYS_pidfd_getfd, fd, i32::MAX, 0) };
    match io::Error::last_os_error() {
        error if done < 0 && error.raw_os_error() != Some(libc::EBADF) => Err(error),
        _ => Ok(()),
    }
}

/// The text of a `maps` file.
#[derive(Clone, Debug, Default)]
pub struct MapsText(String);

impl MapsText {
    fn of(text: Vec<u8>) -> MapsText {
        let lossy = |e: std::string::FromUtf8Error| {
            let bytes = e.into_bytes();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        MapsText(String::from_utf8(text).unwrap_or_else(lossy))
    }

    /// The mappings; lines that are none are left out.
    pub fn lines(&self) -> impl Iterator<Item = MapLine<'_>> {
        self.0.lines().filter_map(parse_map)
    }
}

/// Reads the text of a `maps` file; lines that are none are left out.
pub fn parse_maps(text: &[u8]) -> Vec<MapEntry> {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().filter_map(parse_map);
    lines.map(MapLine::to_entry).collect()
}

fn parse_map(line: &str) -> Option<MapLine<'_>> {
    // Six fields; the path, which may hold spaces, is padded on its left.
    let mut rest = line;
    let mut field = || {
        let (head, tail) = rest.split_once(' ')?;
        rest = tail;
        Some(head)
    };
    let (start, end) = field()?.split_once('-')?;
    let perms = field()?;
    let offset = u64::from_str_radix(field()?, 16).ok()?;
    let device = field()?;
    let (inode, path) = rest.split_once(' ').unwrap_or((rest, ""));
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    Some(MapLine {
        address: Address(start),
        bytes: Bytes(end.checked_sub(start)?),
        perms,
        offset,
        device,
        inode: inode.parse().ok()?,
        path: path.trim_start(),
    })
}

/// Some of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcStatus {
    /// The thread's name.
    pub name: String,
    /// `R`, `S`, `D`, `Z`, ...
    pub state: char,
    /// The parent.
    pub parent: Pid,
    /// How many threads the process has.
    pub threads: u32,
    /// When it started, to the kernel's clock tick (usually 10 ms).
    pub started: Time,
    /// Faults that waited for a disk.
    pub major_faults: u64,
    /// CPU time in the program, in clock ticks.
    pub user: Duration,
    /// CPU time in the kernel on its behalf.
    pub system: Duration,
}

/// Reads `/proc/PID/stat`.
pub fn status(pid: Pid) -> io::Result<ProcStatus> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat"))?)
}

fn parse_stat(text: &[u8]) -> io::Result<ProcStatus> {
    let text = String::from_utf8_lossy(text);
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "the stat line is malformed");
    // The name stands in parentheses and may hold parentheses itself.
    let (open, close) = (text.find('('), text.rfind(')'));
    let (Some(open), Some(close)) = (open, close) else {
        return Err(bad());
    };
    let name = text.get(open + 1..close).ok_or_else(bad)?.to_owned();
    let fields: Vec<&str> = text[close + 1..].split_whitespace().collect();
    let number = |i: usize| -> io::Result<u64> {
        let field = fields.get(i).ok_or_else(bad)?;
        field.parse().map_err(|_| bad())
    };
    // Field numbers of proc(5), less the three before this list.
    let ticks = number(19)?;
    let hertz = rustix::param::clock_ticks_per_second().max(1);
    let time =
        |ticks: u64| Duration((u128::from(ticks) * 1_000_000_000 / u128::from(hertz)) as u64);
    let started = time(ticks);
    Ok(ProcStatus {
        name,
        state: fields
            .first()
            .and_then(|f| f.chars().next())
            .ok_or_else(bad)?,
        parent: Pid(number(1)? as u32),
        threads: number(17)? as u32,
        started: Time(started.0.saturating_sub(boot_offset().0)),
        major_faults: number(9)?,
        user: time(number(11)?),
        system: time(number(12)?),
    })
}

/// When a process started, in clock ticks since the boot: with the process id and [`boot_id`] it names a process for
/// ever (`/proc/PID/stat`, field 22).
///
/// # Errors
/// A process that is gone.
pub fn start_ticks(pid: Pid) -> io::Result<u64> {
    let text = fs::read(format!("/proc/{pid}/stat"))?;
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let close = text.iter().rposition(|b| *b == b')').ok_or_else(bad)?;
    let fields = String::from_utf8_lossy(&text[close + 1..]).into_owned();
    // Behind the name come fields 3 and up.
    let field = fields.split_whitespace().nth(19).ok_or_else(bad)?;
    field.parse().map_err(|_| bad())
}

/// What the kernel names this boot.
///
/// # Errors
/// Where `/proc` is not mounted.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// A thread of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadInfo {
    /// Its id.
    pub tid: Tid,
    /// Its name.
    pub name: String,
    /// When it started, to the kernel's clock tick.
    pub started: Time,
}

/// The threads of a process; those that end meanwhile are left out.
pub fn threads(pid: Pid) -> io::Result<Vec<ThreadInfo>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = entry?.file_name();
        let Some(tid) = name.to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let stat = fs::read(format!("/proc/{pid}/task/{tid}/stat"));
        if let Some(status) = stat.ok().and_then(|s| parse_stat(&s).ok()) {
            threads.push(ThreadInfo {
                tid: Tid(tid),
                name: status.name,
                started: status.started,
            });
        }
    }
    Ok(threads)
}

/// How many threads of a process run or want to at this moment; none where it is gone.
pub fn runnable_threads_of(pid: Pid) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let is_runnable = |thread: &fs::DirEntry| {
        let stat = fs::read(thread.path().join("stat"));
        let status = stat.ok().and_then(|s| parse_stat(&s).ok());
        status.is_some_and(|s| s.state == 'R')
    };
    threads.flatten().filter(is_runnable).count() as u64
}

/// A process's number, and the name of what it runs where that is known: `1234 (make)`.
pub fn named(pid: Pid) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim_end() {
        "" => pid.to_string(),
        name => format!("{pid} ({})", varve_model::visible(name)),
    }
}

/// Whether a process runs: whether any of its threads has memory still, and none has been killed. A process that ends
/// loses its memory first, and only later can its end be waited for. Where nothing can be learned, it runs.
pub fn is_running(pid: Pid) -> bool {
    let is_gone = |e: &io::Error| {
        e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH)
    };
    let threads = match fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(threads) => threads,
        Err(error) => return !is_gone(&error),
    };
    threads.into_iter().any(|thread| {
        let status = thread.and_then(|t| fs::read(t.path().join("status")));
        match status {
            Ok(text) => has_memory(&String::from_utf8_lossy(&text)),
            Err(error) => !is_gone(&error),
        }
    })
}

/// What the text of a `/proc/.../status` says under a name.
pub(crate) fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim())
}

/// Whether the text of `/proc/PID/task/TID/status` is that of a thread that has memory and shall not end.
fn has_memory(status: &str) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let is_killed = |name| {
        let pending = status_field(status, name).and_then(|set| u64::from_str_radix(set, 16).ok());
        pending.is_some_and(|set| set & KILL != 0)
    };
    status_field(status, "VmSize").is_some() && !is_killed("SigPnd") && !is_killed("ShdPnd")
}

/// The direct children of a process, all its threads' together.
pub fn children_of(pid: Pid) -> Vec<Pid> {
    let mut children = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return children;
    };
    for task in tasks.flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(
            text.split_whitespace()
                .filter_map(|c| c.parse().ok().map(Pid)),
        );
    }
    children
}

/// The command line's words.
pub fn cmdline(pid: Pid) -> io::Result<Vec<String>> {
    let text = look(pid, |p| fs::read(p.join("cmdline")), |t| !t.is_empty())?;
    Ok(command_words(&text))
}

/// The words of a command line, a zero byte behind each.
pub fn command_words(text: &[u8]) -> Vec<String> {
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    if text.is_empty() {
        return Vec::new();
    }
    let words = text.split(|b| *b == 0);
    let mut words: Vec<String> = words
        .map(|w| String::from_utf8_lossy(w).into_owned())
        .collect();
    // A program that gives itself a title writes it over its words, and zeros over the rest of them (setproctitle(3bsd)).
    if words[0].contains(' ') && words[1..].iter().all(String::is_empty) {
        words.truncate(1);
    }
    words
}

/// The executable.
pub fn exe(pid: Pid) -> io::Result<PathBuf> {
    look(pid, |p| fs::read_link(p.join("exe")), |_| true)
}

/// `PF_KTHREAD` of the kernel's `sched.h`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Whether a process is a thread of the kernel: it has no memory of its own. A process that is ending has none either, and is
/// none: so the kernel's own mark is asked for, not the executable.
pub fn is_kernel_thread(pid: Pid) -> bool {
    let stat = look(pid, |p| fs::read(p.join("stat")), |_| true);
    stat.ok()
        .and_then(|stat| flags(&stat))
        .is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// The ninth field of a stat line: proc(5).
fn flags(stat: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(stat);
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_who_is_about_to_end_are_whole_or_none() {
        let pid = Pid(std::process::id());
        let (mut whole, mut ended) = (0, 0);
        for _ in 0..400 {
            let own = maps(pid).unwrap().len();
            // SAFETY: the child ends at once.
            let child = match unsafe { libc::fork() } {
                // SAFETY: takes an integer.
                0 => unsafe { libc::_exit(0) },
                child => Pid(child as u32),
            };
            // Until the end; nobody has reaped it.
            loop {
                let found = maps(child).unwrap().len();
                if found == 0 {
                    break ended += 1;
                }
                // Other tests map memory meanwhile.
                assert!(found * 2 > own, "{found} of {own}");
                whole += 1;
            }
            // SAFETY: the test's own child; its status is not asked for.
            unsafe { libc::waitpid(child.0 as i32, std::ptr::null_mut(), 0) };
        }
        assert!(whole > 0 && ended == 400);
    }

    #[test]
    fn a_title_has_no_empty_words() {
        let words = |text: &[u8]| super::command_words(text);
        assert_eq!(
            words(b"redis-server *:6379\0\0\0\0"),
            ["redis-server *:6379"]
        );
        assert_eq!(
            words(b"redis-server\0--save\0\0"),
            ["redis-server", "--save", ""]
        );
        assert_eq!(words(b""), [""; 0]);
    }

    #[test]
    fn a_path_with_spaces_is_whole() {
        let line = "7f00-8000 r--p 00001000 08:01 42                         /tmp/a b (deleted)";
        let entry = parse_map(line).unwrap();
        assert_eq!(entry.path, "/tmp/a b (deleted)");
        assert_eq!(entry.bytes, Bytes(0x100));
        assert_eq!((entry.offset, entry.inode), (0x1000, 42));
        assert_eq!(parse_map("1000-2000 rw-p 0 00:00 0").unwrap().path, "");
        assert_eq!(entry.to_entry().line(), entry);
        assert!(entry < parse_map("8000-9000 ---p 0 00:00 0").unwrap());
        assert!(parse_map("garbage").is_none());
    }

    #[test]
    fn a_name_with_parentheses_is_whole() {
        let mut line = String::from("12 (a) R (b) S 7");
        for i in 0..40 {
            line.push_str(&format!(" {i}"));
        }
        let status = parse_stat(line.as_bytes()).unwrap();
        assert_eq!(
            (status.name.as_str(), status.state, status.parent),
            ("a) R (b", 'S', Pid(7))
        );
        assert!(parse_stat(b"12 (a").is_err());
    }

    #[test]
    fn a_process_that_has_ended_is_no_kernel_thread() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id());
        while exe(pid).is_ok() {
            std::thread::yield_now();
        }
        let is_one = is_kernel_thread(pid);
        child.wait().unwrap();
        assert!(!is_one && !is_kernel_thread(Pid(std::process::id())));
        let line = "2 (a) b) S 0 0 0 0 -1 2129984 0 0";
        assert_eq!(flags(line.as_bytes()), Some(2_129_984));
        assert_ne!(2_129_984 & KERNEL_THREAD, 0);
        assert_eq!(flags(b"2 (a"), None);
    }

    #[test]
    fn a_process_that_ends_does_not_run() {
        assert!(is_running(Pid(std::process::id())));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid(child.id());
        assert!(is_running(pid));
        child.kill().unwrap();
        // Killed, without its memory, a zombie: however far it has come, it does not run.
        assert!(!is_running(pid));
        child.wait().unwrap();
        assert!(!is_running(pid));
        let status = "State:\tR (running)\nVmSize:\t   1 kB\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\n";
        assert!(has_memory(status));
        assert!(!has_memory(&status.replace("4000", "4100")));
        assert!(!has_memory(
            &status.replace("SigPnd:\t00000000000000", "SigPnd:\t00000000000001")
        ));
        assert!(!has_memory(&status.replace("VmSize", "Threads")));
        assert!(!has_memory(""));
    }

    #[test]
    fn this_process_is_seen() {
        let me = Pid(std::process::id());
        assert!(maps(me).unwrap().iter().any(|m| m.path == "[stack]"));
        assert!(!threads(me).unwrap().is_empty());
        assert!(status(me).unwrap().started <= crate::monotonic_now());
    }
}
