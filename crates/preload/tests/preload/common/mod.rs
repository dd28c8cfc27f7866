//! Compiles small programs, runs them under the library, and collects what it tells.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use tempfile::TempDir;
use varve_preload_abi::channel::Kind;
use varve_preload_abi::server::{self, Listener, Peer};
use varve_preload_abi::{Event, Frames, Losses, Record, RingReader, StartCause};

/// The library under test: `$VARVE_PRELOAD_LIB`, or that of the build that this test is of. It is not built here: it
/// may be what another test uses at the moment.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = std::env::var_os("VARVE_PRELOAD_LIB").map_or_else(
            || {
                let exe = std::env::current_exe().unwrap();
                let mut above = exe.ancestors();
                let target = above.find(|path| path.ends_with("release")).unwrap();
                target.join("libvarve_preload.so")
            },
            PathBuf::from,
        );
        assert!(
            path.is_file(),
            "there is no library at {}: build it, or name it in VARVE_PRELOAD_LIB",
            path.display()
        );
        path
    })
}

/// One ring, read to its end.
pub struct Ring {
    /// Who asked for it.
    pub pid: u32,
    pub records: Vec<Record<'static>>,
    pub losses: Losses,
    pub unfinished: u64,
}

impl Ring {
    pub fn cause(&self) -> StartCause {
        match self.records[0].event {
            Event::Init { cause, .. } => cause,
            other => panic!("a ring starts with {other:?}"),
        }
    }

    pub fn stacks(&self) -> HashMap<u32, Frames<'static>> {
        let stack = |record: &Record<'static>| match record.event {
            Event::Stack { frames } => Some((record.site, frames)),
            _ => None,
        };
        self.records.iter().filter_map(stack).collect()
    }

    /// Births and deaths as lines, in the order of the ring: `A Malloc 7f00 8192`, `F 7f00`.
    pub fn heap_lines(&self) -> Vec<String> {
        let line = |record: &Record<'_>| match record.event {
            Event::Alloc {
                address,
                bytes,
                kind,
            } => Some(format!("A {kind:?} {address:x} {bytes}")),
            Event::Free { address } => Some(format!("F {address:x}")),
            _ => None,
        };
        self.records.iter().filter_map(line).collect()
    }

    pub fn births(&self) -> impl Iterator<Item = (&Record<'static>, u64, u64)> {
        self.records.iter().filter_map(|record| match record.event {
            Event::Alloc { address, bytes, .. } => Some((record, address, bytes)),
            _ => None,
        })
    }
}

/// A ring that is being read.
type Open = (RingReader, Ring);

/// The setting of a bench for the size of rings, in bytes.
pub const RING_BYTES: &str = "RING_BYTES";

/// When rings are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Every millisecond.
    Steady,
    /// When the program that writes sleeps, as it does while it waits for room.
    Sleepy,
    /// At the end.
    Late,
}

/// A folder for sources, programs and the socket.
pub struct Bench {
    pub folder: TempDir,
    pub settings: Vec<(String, String)>,
    pub reader: Reader,
}

impl Bench {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("varve-preload-test")
            .tempdir_in("/dev/shm")
            .unwrap();
        std::fs::create_dir(folder.path().join("rings")).unwrap();
        Bench {
            folder,
            settings: Vec::new(),
            reader: Reader::Steady,
        }
    }

    pub fn rings(&self) -> PathBuf {
        self.folder.path().join("rings")
    }

    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn read_by(mut self, reader: Reader) -> Self {
        self.reader = reader;
        self
    }

    /// Compiles C (`x.c`) or C++ (`x.cc`) into a program, or a library if it is called `*.so`.
    pub fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (compiler, extension) = if name.ends_with("++") {
            ("g++", "cc")
        } else {
            ("gcc", "c")
        };
        let file = self.folder.path().join(format!("{name}.{extension}"));
        let program = self.folder.path().join(name);
        std::fs::write(&file, format!("{PRELUDE}{source}")).unwrap();
        let mut command = Command::new(compiler);
        command
            .args(["-O2", "-fno-builtin", "-w", "-pthread", "-o"])
            .arg(&program)
            .arg(&file)
            .args(flags);
        if name.ends_with(".so") {
            command.args(["-shared", "-fPIC"]);
        }
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        program
    }

    /// Runs a command under the library while a reader drains its rings.
    pub fn run(&self, command: &mut Command) -> (Output, Vec<Ring>) {
        let _ = std::fs::remove_file(self.rings().join(varve_preload_abi::channel::SOCKET));
        let listener = Listener::bind(&self.rings()).unwrap();
        let identity = server::identity(&self.rings()).unwrap();
        command
            .env("LD_PRELOAD", library())
            .env(varve_preload_abi::DIRECTORY_VARIABLE, self.rings())
            .env(varve_preload_abi::IDENTITY_VARIABLE, identity.to_string());
        for (name, value) in &self.settings {
            command.env(name, value);
        }
        let (answers_over, reads_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let answered = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| self.answer(&listener, &answered, &answers_over));
            let reading = scope.spawn(|| self.read(&answered, &reads_over));
            let output = command.output().unwrap();
            answers_over.store(true, Ordering::Release);
            answering.join().unwrap();
            reads_over.store(true, Ordering::Release);
            (output, reading.join().unwrap())
        })
    }

    /// Bytes of a ring: where a test does not say, more than its program fills, however late its reader is.
    fn ring_bytes(&self) -> usize {
        let asked = self.settings.iter().find(|(name, _)| name == RING_BYTES);
        asked.map_or(32 << 20, |(_, bytes)| bytes.parse().unwrap())
    }

    /// Gives rings to the processes that ask. They wait a tenth of a second for that, then go without one: like a recorder,
    /// this does not stand in a queue with them.
    fn answer(&self, listener: &Listener, answered: &Mutex<Vec<Open>>, over: &AtomicBool) {
        let first = libc::sched_param { sched_priority: 1 };
        // SAFETY: the calling thread, and a parameter that lives for the call.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) } != 0 {
            // SAFETY: numbers alone. Without rights for either it stands in the queue.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
        }
        let mut waiting: Vec<Peer> = Vec::new();
        loop {
            let last = over.load(Ordering::Acquire);
            waiting.extend(std::iter::from_fn(|| listener.accept().unwrap()));
            waiting.retain(|peer| match peer.hello() {
                Ok(None) => true,
                Ok(Some(hello)) if hello.kind == Kind::Ring => {
                    let (reader, memory) = RingReader::create(self.ring_bytes()).unwrap();
                    let bytes = reader.bytes() as u64;
                    let memory = std::os::fd::AsFd::as_fd(&memory);
                    if peer.give(Kind::Ring, bytes, &[memory]).is_ok() {
                        let ring = Ring {
                            pid: peer.pid(),
                            records: Vec::new(),
                            losses: Losses::default(),
                            unfinished: 0,
                        };
                        answered.lock().unwrap().push((reader, ring));
                    }
                    false
                }
                _ => false,
            });
            if last {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn read(&self, answered: &Mutex<Vec<Open>>, over: &AtomicBool) -> Vec<Ring> {
        let mut open: Vec<Open> = Vec::new();
        for turn in 1u64.. {
            let last = over.load(Ordering::Acquire);
            open.append(&mut answered.lock().unwrap());
            for (reader, ring) in &mut open {
                let is_due = match self.reader {
                    Reader::Steady => true,
                    // And often enough that the program does not take it for gone.
                    Reader::Sleepy => sleeps(ring.pid) || turn % 1000 == 0,
                    Reader::Late => false,
                };
                if !is_due && !last {
                    continue;
                }
                let records = &mut ring.records;
                let keep = |record: &Record<'_>| records.push(leaked(record));
                let drained = if last {
                    reader.drain_rest(keep)
                } else {
                    reader.drain(keep)
                }
                .unwrap();
                ring.unfinished += drained.unfinished;
                ring.losses = reader.losses();
            }
            if last {
                break;
            }
            std::thread::sleep(match self.reader {
                Reader::Sleepy => Duration::from_micros(100),
                Reader::Steady | Reader::Late => Duration::from_millis(1),
            });
        }
        open.into_iter().map(|(_, ring)| ring).collect()
    }

    /// Runs a program that must succeed in one process without any loss.
    pub fn run_one(&self, program: &Path) -> (Vec<String>, Ring) {
        let (output, mut rings) = self.run(&mut Command::new(program));
        assert!(
            output.status.success(),
            "{:?} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(rings.len(), 1);
        let ring = rings.remove(0);
        assert_eq!((ring.losses.dropped, ring.losses.unheard), (0, 0));
        assert_eq!(ring.unfinished, 0);
        (lines(&output), ring)
    }
}

/// Whether a process has nothing to do.
fn sleeps(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.contains(") S ")
}

/// A test's records live as long as the test process.
fn leaked(record: &Record<'_>) -> Record<'static> {
    let event = match record.event {
        Event::Stack { frames } => Event::Stack {
            frames: Vec::leak(frames.to_vec()),
        },
        Event::MapsText { text, last } => Event::MapsText {
            text: Vec::leak(text.to_vec()),
            last,
        },
        Event::Unloads {
            start,
            end,
            offset,
            path,
        } => Event::Unloads {
            start,
            end,
            offset,
            path: Vec::leak(path.to_vec()),
        },
        Event::Init { pid, parent, cause } => Event::Init { pid, parent, cause },
        Event::Alloc {
            address,
            bytes,
            kind,
        } => Event::Alloc {
            address,
            bytes,
            kind,
        },
        Event::Free { address } => Event::Free { address },
        Event::Sampled { address, bytes } => Event::Sampled { address, bytes },
        Event::PageOwner { page } => Event::PageOwner { page },
        Event::ThreadStack { low, bytes, guard } => Event::ThreadStack { low, bytes, guard },
        Event::Map {
            operation,
            address,
            bytes,
            old_address,
            old_bytes,
            protection,
            flags,
            fd,
            offset,
        } => Event::Map {
            operation,
            address,
            bytes,
            old_address,
            old_bytes,
            protection,
            flags,
            fd,
            offset,
        },
        Event::PreloadMapping {
            address,
            bytes,
            purpose,
        } => Event::PreloadMapping {
            address,
            bytes,
            purpose,
        },
    };
    Record {
        time_ns: record.time_ns,
        tid: record.tid,
        site: record.site,
        event,
    }
}

pub fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// `say` is printf that never allocates.
const PRELUDE: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <stdio.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>
#include <malloc.h>
#include <errno.h>
#include <signal.h>
#include <pthread.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <sys/time.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/prctl.h>
static void say(const char *format, ...) {
    char text[256]; va_list list; va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list); va_end(list);
    if (write(1, text, length) != length) _exit(99);
}
static void *born(const char *kind, void *object, size_t bytes) {
    say("A %s %lx %zu\n", kind, (unsigned long)object, bytes); return object;
}
static void dies(void *object) { say("F %lx\n", (unsigned long)object); }
"#;
