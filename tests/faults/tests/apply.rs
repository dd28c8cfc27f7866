//! Plans applied: objects are where the plan says, as the kernel says, and whatever happens to `varve tier apply`, the machine is as it was.
//!
//! Truth is `/proc/PID/pagemap`, read here. The control is the same program under the same limit without the plan: there the pages that are
//! used least recently go, which are those that the plan keeps.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use varve_faults::{marked_processes, patiently, varve_binary};
use varve_truth::Scratch;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// The program whose objects are placed.
fn program() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/bin/placed");
    path.canonicalize().expect("make -C workloads")
}

/// What makes nothing but what is said here: kept and used, in this build or another.
struct Plan<'a> {
    kept_tier: &'a str,
    function: &'a str,
    /// The functions that called it, the innermost first.
    callers: &'a [&'a str],
    part: Option<(u64, u64)>,
}

/// A plan by functions and lines, as of another build.
fn plan(of: &Plan<'_>) -> String {
    let part = of.part.map_or_else(String::new, |(from, to)| {
        format!("[place.part]\nfrom = {from}\nto = {to}\n")
    });
    let frames = |maker: &str| {
        let names = std::iter::once(&maker).chain(of.callers);
        let frames = names.map(|name| {
            format!(
                "[[place.frame]]\nfunction = \"{name}\"\nfile = \"placed.c\"\nline = 1\nmodule = \"placed\"\nbuild_id = \"00\"\noffset = 1\n"
            )
        });
        frames.collect::<String>()
    };
    format!(
        "schema = \"varve-tier-plan/1\"\ntiers = [\"fast=64MiB,80ns\", \"slow=inf,5us\"]\ndefault = \"slow\"\n\
         [program]\ncommand = [\"placed\"]\nexecutable = \"\"\nbuild_id = \"00\"\n\
         [expected]\npolicy = \"objects\"\nslow_share = 0.0\nslow_share_of_first_touch = 0.0\nmodelled_slowdown = 1.0\nmodelled_slowdown_of_first_touch = 1.0\n\
         [[place]]\ntier = \"{}\"\nkind = \"heap\"\nname = \"kept\"\npeak_bytes = 16777216\n{part}{}\
         [[place]]\ntier = \"slow\"\nkind = \"heap\"\nname = \"used\"\npeak_bytes = 100663296\n{}\
         [[place]]\ntier = \"fast\"\nkind = \"static\"\nname = \"table (placed.c:14)\"\npeak_bytes = 16777216\n",
        of.kept_tier,
        frames(of.function),
        frames("make_used"),
    )
}

const AS_MADE: Plan<'_> = Plan {
    kept_tier: "fast",
    function: "make_kept",
    callers: &["work", "main"],
    part: None,
};

/// What the processes of this test have in their environment.
fn mark() -> String {
    format!("apply-{}", std::process::id())
}

/// A program that runs under `apply`; ended when it goes.
struct Running {
    apply: Child,
    lines: BufReader<std::process::ChildStdout>,
    report: PathBuf,
    _folder: Scratch,
}

/// Where something is, as the program said.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    pid: u32,
    what: String,
    address: u64,
    bytes: u64,
}

impl Running {
    fn start(plan: &str, options: &[&str], arguments: &[&str]) -> Running {
        let mut all = vec!["--backend", "swap"];
        all.extend(options);
        Running::start_on(plan, &all, arguments)
    }

    fn start_on(plan: &str, options: &[&str], arguments: &[&str]) -> Running {
        let folder = Scratch::new("apply-").unwrap();
        let file = folder.path().join("plan.toml");
        let report = folder.path().join("report.json");
        fs::write(&file, plan).unwrap();
        let mut apply = Command::new(varve_binary())
            .args(["tier", "apply", "--quiet", "--report"])
            .arg(&report)
            .args(options)
            .arg(&file)
            .arg("--")
            .arg(program())
            .args(arguments)
            .env(varve_faults::MARK, mark())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(apply.stdout.take().unwrap());
        Running {
            apply,
            lines,
            report,
            _folder: folder,
        }
    }

    /// What the program says next.
    fn said(&mut self) -> Said {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let parts: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(parts.len(), 4, "the program ended: {line:?}");
        Said {
            pid: parts[0].parse().unwrap(),
            what: parts[1].to_owned(),
            address: u64::from_str_radix(parts[2], 16).unwrap(),
            bytes: parts[3].parse().unwrap(),
        }
    }

    /// Reads until `count` programs have gone over their memory three times; what they said.
    fn warm(&mut self, count: usize) -> Vec<Said> {
        let mut all = Vec::new();
        while all.iter().filter(|s: &&Said| s.what == "warm").count() < count {
            all.push(self.said());
        }
        all
    }

    /// Has the program end by itself, after which the machine is as it was; the report.
    fn end(mut self) -> String {
        drop(self.apply.stdin.take());
        let status = self.apply.wait().unwrap();
        assert!(status.success(), "{status}");
        let others: Vec<String> = zram_devices().into_iter().map(|(name, _)| name).collect();
        let left = || leftovers(self.apply.id(), &others);
        assert!(patiently(|| left().is_empty()), "{:?}", left());
        fs::read_to_string(&self.report).unwrap()
    }
}

/// Pages in memory and in swap, of those that lie in a range as a whole.
fn pages(of: &Said) -> (u64, u64) {
    let map = fs::File::open(format!("/proc/{}/pagemap", of.pid)).unwrap();
    let (first, last) = (of.address.div_ceil(PAGE), (of.address + of.bytes) / PAGE);
    let (mut resident, mut swapped) = (0, 0);
    for page in first..last {
        let mut word = [0; 8];
        map.read_exact_at(&mut word, page * 8).unwrap();
        let word = u64::from_ne_bytes(word);
        resident += word >> 63;
        swapped += word >> 62 & 1;
    }
    (resident, swapped)
}

fn find<'a>(all: &'a [Said], what: &str) -> &'a Said {
    all.iter().find(|s| s.what == what).unwrap()
}

/// What a killed `apply` could leave, of what can be its own: groups, folders, swap devices. Others make and remove devices meanwhile: one
/// without a size may be theirs, unless it stays.
fn leftovers(of: u32, before: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                open.push(entry.path());
                if name.starts_with(&format!("varve-tier-{of}-")) {
                    found.push(entry.path().display().to_string());
                }
            }
        }
    }
    for folder in ["/dev/shm", "/tmp"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&format!("varve-{of}-")) {
                found.push(format!("{folder}/{name}"));
            }
        }
    }
    let devices = zram_devices().into_iter();
    let devices = devices.filter(|(name, size)| {
        *size == own_device().to_string() || (size == "0" && !before.contains(name))
    });
    found.extend(devices.map(|(name, _)| name));
    found
}

/// A size of swap devices that no other program chooses.
fn own_device() -> u64 {
    128 * MIB + PAGE * u64::from(std::process::id() % 4096 + 1)
}

/// The zram devices there are, with the number that the kernel gives a disk once, and their sizes.
fn zram_devices() -> Vec<(String, String)> {
    let entries = fs::read_dir("/sys/block").unwrap().flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with("zram"))
        .filter_map(|name| {
            let read = |what: &str| fs::read_to_string(format!("/sys/block/{name}/{what}"));
            let (size, number) = (read("disksize").ok()?, read("diskseq").ok()?);
            Some((
                format!("{name} ({})", number.trim()),
                size.trim().to_owned(),
            ))
        })
        .collect()
}

fn settings() -> Vec<String> {
    ["swappiness", "overcommit_memory", "page-cluster"]
        .map(|name| fs::read_to_string(format!("/proc/sys/vm/{name}")).unwrap())
        .to_vec()
}

/// Waits until nothing is left of an `apply` that was killed.
fn wait_for_nothing(of: u32, before: &[String], round: usize) {
    let is_clean = patiently(|| leftovers(of, before).is_empty());
    assert!(is_clean, "round {round}: left {:?}", leftovers(of, before));
}

/// Whether this kernel can swap into memory.
fn has_zram() -> bool {
    let has = Path::new("/sys/class/zram-control").exists();
    if !has {
        eprintln!("this kernel has no zram: nothing was tested");
    }
    has
}

const LIMIT: [&str; 4] = ["--memory", "64MiB", "--zram", "256MiB"];

#[test]
fn what_a_plan_keeps_stays_and_without_it_goes() {
    if !has_zram() {
        return;
    }
    let kept_bytes = 16 * MIB;
    let share = |plan: &str| {
        let mut running = Running::start(plan, &LIMIT, &["16", "96"]);
        let said = running.warm(1);
        let kept = pages(find(&said, "kept"));
        let used = pages(find(&said, "used"));
        let report = running.end();
        (kept, used, report)
    };
    let (kept, used, report) = share(&plan(&AS_MADE));
    let all = kept_bytes / PAGE;
    assert!(
        kept.0 >= all - 1 && kept.1 == 0,
        "{kept:?} of {all}\n{report}"
    );
    assert!(used.1 > 96 * MIB / PAGE / 4, "{used:?}\n{report}");
    assert!(report.contains("\"matched\": \"function\""), "{report}");
    assert!(report.contains("\"other_build\": true"), "{report}");
    // The control: nothing is known of it, so that it goes as the least recently used.
    let (kept, _, report) = share(&plan(&Plan {
        function: "another_function",
        ..AS_MADE
    }));
    assert!(kept.1 > all / 2, "{kept:?} of {all}\n{report}");
}

#[test]
fn a_part_of_an_object_is_kept_and_the_rest_is_not() {
    if !has_zram() {
        return;
    }
    let half = 8 * MIB;
    let of = plan(&Plan {
        part: Some((0, half)),
        ..AS_MADE
    });
    let mut running = Running::start(&of, &LIMIT, &["16", "96"]);
    let said = running.warm(1);
    let kept = find(&said, "kept");
    let of = |from: u64, to: u64| {
        pages(&Said {
            address: kept.address + from,
            bytes: to - from,
            ..kept.clone()
        })
    };
    let (first, second) = (of(0, half - PAGE), of(half + PAGE, 16 * MIB));
    let report = running.end();
    assert_eq!(first.1, 0, "{first:?} {second:?}\n{report}");
    assert!(second.1 > half / PAGE / 2, "{first:?} {second:?}\n{report}");
}

#[test]
fn static_data_is_kept() {
    if !has_zram() {
        return;
    }
    let mut running = Running::start(&plan(&AS_MADE), &LIMIT, &["4", "96", "static"]);
    let said = running.warm(1);
    let table = pages(find(&said, "table"));
    let report = running.end();
    assert!(
        table.0 >= 16 * MIB / PAGE - 1 && table.1 == 0,
        "{table:?}\n{report}"
    );
}

#[test]
fn forks_execs_and_threads_have_their_own() {
    if !has_zram() {
        return;
    }
    for (how, count) in [("fork", 1), ("exec", 1), ("threads", 2)] {
        let options = ["--memory", "96MiB", "--zram", "256MiB"];
        // A thread begins in the C library, whose frames do not count.
        let callers: &[&str] = match how {
            "threads" => &["work"],
            _ => &["work", "main"],
        };
        let of = plan(&Plan { callers, ..AS_MADE });
        let mut running = Running::start(&of, &options, &["8", "80", how]);
        let said = running.warm(count);
        let kept: Vec<&Said> = said.iter().filter(|s| s.what == "kept").collect();
        assert_eq!(kept.len(), count, "{how}");
        let found: Vec<(u64, u64)> = kept.iter().map(|s| pages(s)).collect();
        let report = running.end();
        for (resident, swapped) in found {
            assert!(
                resident >= 8 * MIB / PAGE - 1 && swapped == 0,
                "{how}: {resident} {swapped}\n{report}"
            );
        }
    }
}

#[test]
fn what_was_placed_is_undone_with_its_object() {
    if !has_zram() {
        return;
    }
    let running = Running::start(&plan(&AS_MADE), &LIMIT, &["1", "8", "again"]);
    let mut running = running;
    let said = running.warm(1);
    let pid = find(&said, "kept").pid;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let locked = status.lines().find(|l| l.starts_with("VmLck:")).unwrap();
    let kib: u64 = locked.split_whitespace().nth(1).unwrap().parse().unwrap();
    running.end();
    // One object of 1 MiB is there, and the static table of 16 MiB; 2,000 have come and gone.
    let table = 16 << 10;
    assert!((table + 1000..table + 1100).contains(&kib), "{locked}");
}

/// On which nodes pages of a range are, as `move_pages` says: how many on each.
fn nodes(of: &Said) -> std::collections::BTreeMap<i32, u64> {
    let (first, last) = (of.address.div_ceil(PAGE), (of.address + of.bytes) / PAGE);
    let pages: Vec<u64> = (first..last).map(|page| page * PAGE).collect();
    let mut status = vec![-1i32; pages.len()];
    // SAFETY: the arrays are as long as is said, and live for the call, which asks alone.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            of.pid,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let mut found = std::collections::BTreeMap::new();
    for node in status {
        *found.entry(node).or_insert(0) += 1;
    }
    found
}

/// Whether this machine has two nodes of memory.
fn has_two_nodes() -> bool {
    let text = fs::read_to_string("/sys/devices/system/node/has_memory").unwrap();
    text.trim().contains(['-', ','])
}

#[test]
fn objects_are_on_the_nodes_of_their_tiers() {
    if !has_two_nodes() {
        eprintln!("one node of memory: `cargo xtask vm --numa 2` has two");
        return;
    }
    let at = |plan: &str, options: &[&str]| {
        let mut all = vec!["--backend", "numa"];
        all.extend(options);
        let mut running = Running::start_on(plan, &all, &["4", "8"]);
        let said = running.warm(1);
        let found = (nodes(find(&said, "kept")), nodes(find(&said, "used")));
        running.end();
        found
    };
    let all = |of: &std::collections::BTreeMap<i32, u64>, node: i32| {
        let on = of.get(&node).copied().unwrap_or(0);
        let sum: u64 = of.values().sum();
        on + 2 >= sum
    };
    let (kept, used) = at(&plan(&AS_MADE), &[]);
    assert!(all(&kept, 0) && all(&used, 1), "{kept:?} {used:?}");
    // The other way round, as asked.
    let (kept, used) = at(&plan(&AS_MADE), &["--node", "fast=1", "--node", "slow=0"]);
    assert!(all(&kept, 1) && all(&used, 0), "{kept:?} {used:?}");
    // The control: what no place names is in the default tier.
    let other = Plan {
        function: "another_function",
        ..AS_MADE
    };
    let (kept, _) = at(&plan(&other), &[]);
    assert!(all(&kept, 1), "{kept:?}");
}

#[test]
fn fifty_kills_leave_the_machine_as_it_was() {
    if !has_zram() {
        return;
    }
    let before: Vec<String> = zram_devices().into_iter().map(|(name, _)| name).collect();
    let set = settings();
    adopt_orphans();
    let size = own_device().to_string();
    let mut seed = 7u64;
    let options = ["--memory", "32MiB", "--zram", &size];
    // Kills come from the first moment on to well after the program has begun, however fast this machine is.
    let began = Instant::now();
    let mut first = Running::start(&plan(&AS_MADE), &options, &["4", "48"]);
    first.said();
    let longest = 2 * began.elapsed().as_millis() as u64 + 50;
    first.end();
    let mut killed = Vec::new();
    let mut survivors = 0;
    for round in 0..50 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut running = Running::start(&plan(&AS_MADE), &options, &["4", "48"]);
        // Every fifth while the program runs for certain.
        if round % 5 == 0 {
            running.said();
        } else {
            std::thread::sleep(Duration::from_millis((seed >> 33) % longest));
        }
        let pid = running.apply.id();
        let mut programs = children_of(pid);
        programs
            .retain(|p| fs::read_link(format!("/proc/{p}/exe")).is_ok_and(|exe| exe == program()));
        running.apply.kill().unwrap();
        running.apply.wait().unwrap();
        wait_for_nothing(pid, &before, round);
        assert_eq!(settings(), set, "round {round}");
        // The program ends as its input does, and finds in its memory what it wrote.
        drop(running.apply.stdin.take());
        for program in programs {
            survivors += 1;
            assert_eq!(exit_status(program), Some(0), "round {round}");
        }
        killed.push(pid);
    }
    assert!(survivors >= 10, "of {survivors} programs none was harmed");
    // No process is left that could make something late.
    let mark = mark();
    assert!(patiently(|| marked_processes(&mark).is_empty()));
    killed
        .iter()
        .for_each(|pid| wait_for_nothing(*pid, &before, 50));
}

/// Has processes whose parents end become this one's, so that it learns how they ended.
fn adopt_orphans() {
    // SAFETY: numbers alone.
    let done = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    assert_eq!(done, 0);
}

/// How a process ended: its exit status; none where a signal ended it.
fn exit_status(pid: u32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the status is this function's.
    let waited = unsafe { libc::waitpid(pid.cast_signed(), &raw mut status, 0) };
    assert_eq!(waited, pid.cast_signed());
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

fn children_of(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|p| p.parse().ok())
        .collect()
}

#[test]
fn what_cannot_work_is_said_in_a_sentence() {
    let folder = Scratch::new("apply-").unwrap();
    let file = folder.path().join("plan.toml");
    let said = |text: &str, options: &[&str]| {
        fs::write(&file, text).unwrap();
        let done = Command::new(varve_binary())
            .args(["tier", "apply"])
            .args(options)
            .arg(&file)
            .args(["--", "/bin/true"])
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(125));
        assert!(done.stdout.is_empty());
        String::from_utf8(done.stderr).unwrap()
    };
    let good = plan(&AS_MADE);
    let swap = |memory: &'static str| ["--backend", "swap", "--memory", memory];
    assert!(said(&good, &swap("1MiB")).contains("too small a limit"));
    assert!(said("schema = 3", &swap("64MiB")).contains("is no plan: line 1"));
    assert!(said(&good, &["--backend", "swap"]).contains("how much memory"));
    assert!(
        said(
            &good,
            &["--backend", "swap", "--memory", "64MiB", "--node", "fast=0"]
        )
        .contains("--backend numa")
    );
    if fs::read_dir("/sys/devices/system/node")
        .unwrap()
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("node"))
        .count()
        == 1
    {
        assert!(said(&good, &["--backend", "numa"]).contains("one node of memory"));
    }
    if !has_zram() {
        return;
    }
    let missing = Command::new(varve_binary())
        .args([
            "tier",
            "apply",
            "--backend",
            "swap",
            "--memory",
            "64MiB",
            "--zram",
            "128MiB",
            "--quiet",
        ])
        .arg(&file)
        .args(["--", "/no/such/program"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(127));
}
