//! Boots a kernel in qemu with this machine's root file system and runs one command in it.
//!
//! The guest sees the host's root over virtiofs, below a tmpfs that takes its writes: programs built
//! here run there unchanged, and nothing they write comes back, save what goes to one shared folder.
//! Debian's cloud kernels have virtiofs but not 9p. Works without KVM: plain emulation boots in seconds.

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::error::{Doing, Error, Result, make_dir, run, write};
use crate::guest::{Guest, Outcome, Output, dying_with_us};
use crate::kernels::{Kernel, Module, kernel};
use crate::{Places, initramfs};

/// A quantity of memory in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mebibytes(pub(crate) u64);

impl std::str::FromStr for Mebibytes {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (digits, factor) = match text.strip_suffix(['G', 'g']) {
            Some(digits) => (digits, 1024),
            None => (text.strip_suffix(['M', 'm']).unwrap_or(text), 1),
        };
        match digits
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(factor))
        {
            Some(n) if n > 0 => Ok(Mebibytes(n)),
            _ => Err(format!("`{text}` is not a size; write 512M or 4G")),
        }
    }
}

/// What the guest swaps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swap {
    /// A file on the host, seen as a disk.
    Disk(Mebibytes),
    /// Compressed memory of the guest.
    Zram(Mebibytes),
}

impl std::str::FromStr for Swap {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once(':') {
            Some(("zram", size)) => Ok(Swap::Zram(size.parse()?)),
            Some(("disk", size)) => Ok(Swap::Disk(size.parse()?)),
            Some((kind, _)) => Err(format!(
                "`{kind}` is not a kind of swap; write disk:SIZE or zram:SIZE"
            )),
            None => Ok(Swap::Disk(text.parse()?)),
        }
    }
}

/// The machine to boot.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Machine {
    /// Kernel series; the newest cloud kernel of that series in Debian is fetched once
    #[arg(long, default_value = "6.12")]
    pub(crate) kernel: String,
    /// Memory; with --numa either the whole, or one size per node: 1G,3G
    #[arg(long, default_value = "4G", value_delimiter = ',')]
    pub(crate) memory: Vec<Mebibytes>,
    /// Processors, all of them on node 0
    #[arg(long, default_value_t = 2)]
    pub(crate) cpus: u32,
    /// Memory nodes; those after the first have no processors and are described as slower
    #[arg(long, default_value_t = 1)]
    pub(crate) numa: u32,
    /// Reserve this many 2 MiB pages
    #[arg(long)]
    pub(crate) hugepages: Option<u32>,
    /// Swap space: 512M, disk:512M or zram:512M
    #[arg(long)]
    pub(crate) swap: Option<Swap>,
    /// Put an ext4 disk of this size at the guest's TMPDIR (else it is a tmpfs)
    #[arg(long)]
    pub(crate) disk: Option<Mebibytes>,
    /// qemu's processor model; add `,la57=off` for four-level page tables
    // With cx16, 3 of 5 boots of 6.12 in qemu 7.2 died; the one looked at had corrupt flags after a
    // cmpxchg16b of the slab allocator. Without it nearly all boot; the cause is not proven.
    #[arg(long, default_value = "max,cx16=off")]
    pub(crate) cpu: String,
    /// Use KVM (not by default: a nested /dev/kvm may exist and yet not run a kernel)
    #[arg(long)]
    pub(crate) kvm: bool,
    /// More words for the kernel's command line
    #[arg(long, default_value = "")]
    pub(crate) append: String,
    /// Also load this kernel module (repeatable)
    #[arg(long = "module")]
    pub(crate) modules: Vec<String>,
    /// Host folder that the guest may write to, at the same path; the command finds it in $VARVE_VM_SHARE
    #[arg(long)]
    pub(crate) share: Option<PathBuf>,
    /// Variables for the command (repeatable): NAME=VALUE
    #[arg(long = "env")]
    pub(crate) env: Vec<String>,
    /// Seconds until a command that has not ended is given up
    #[arg(long, default_value_t = 600)]
    pub(crate) timeout: u64,
    /// Seconds without any output until the machine is taken for lost
    #[arg(long)]
    pub(crate) silence: Option<u64>,
    /// Show the guest's console on stderr, whatever happens
    #[arg(long)]
    pub(crate) console: bool,
}

/// How often a machine is started before it is given up.
const BOOT_ATTEMPTS: u32 = 3;
/// Lines of the console that a failure shows.
const CONSOLE_LINES: usize = 80;
/// The host's PATH and a few more, so that a command finds what it would find on the host.
const PASSED_ON: [&str; 6] = ["PATH", "HOME", "LANG", "TERM", "NO_COLOR", "RUST_BACKTRACE"];

/// Boots the machine, runs `command` in it, and ends it.
pub(crate) fn run_in(
    places: &Places,
    machine: &Machine,
    command: &[String],
    output: &mut Output<'_>,
) -> Result<Outcome> {
    let kernel = kernel(&places.target, &machine.kernel)?;
    let modules = wanted_modules(&kernel, machine)?;
    let init = initramfs::init_program(&places.repository, &places.target)?;
    let archive = initramfs::build(&init, &modules, &settings(machine, command)?)?;
    let mut attempt = 1;
    loop {
        let mut booted = false;
        let result = run_once(places, machine, &kernel, &archive, output, &mut booted);
        match result {
            // Emulation is not perfect: now and then a boot of 6.12 ends before init has started.
            // Nothing of the command has run by then, so another attempt hides nothing of it.
            Err(error) if !booted && attempt < BOOT_ATTEMPTS => {
                eprintln!(
                    "{} did not boot ({error}); attempt {} follows",
                    machine.kernel,
                    attempt + 1
                );
                attempt += 1;
            }
            result => return result,
        }
    }
}

fn run_once(
    places: &Places,
    machine: &Machine,
    kernel: &Kernel,
    archive: &[u8],
    output: &mut Output<'_>,
    booted: &mut bool,
) -> Result<Outcome> {
    let folder = tempfile::Builder::new().prefix("varve-vm-").tempdir();
    let folder = folder.doing(|| "create a temporary folder".to_owned())?;
    write(&folder.path().join("initramfs"), archive)?;
    let listener =
        UnixListener::bind(folder.path().join("port")).doing(|| "listen on a socket".to_owned())?;
    let mut guest = Guest::new(folder.path().join("console"));
    guest.share_root(places, folder.path())?;
    if let Some(share) = &machine.share {
        make_dir(share)?;
        guest.share_folder(share, &folder.path().join("share.sock"))?;
    }
    make_disks(machine, folder.path())?;
    let started = Instant::now();
    guest.start(qemu(machine, kernel, folder.path())?)?;
    let result = guest.follow(&listener, machine, started, output, booted);
    if machine.console || result.is_err() {
        guest.show_console(if machine.console {
            usize::MAX
        } else {
            CONSOLE_LINES
        });
    }
    result
}

fn wanted_modules(kernel: &Kernel, machine: &Machine) -> Result<Vec<Module>> {
    let mut required = vec!["virtio_pci", "virtio_console", "virtiofs", "overlay"];
    let mut optional = Vec::new();
    if machine.disk.is_some() || matches!(machine.swap, Some(Swap::Disk(_))) {
        required.extend(["virtio_blk", "ext4"]);
        // ext4 asks for its checksum by an alias, which no modprobe answers here.
        optional.extend(["crc32c_generic", "crc32c_intel"]);
    }
    if matches!(machine.swap, Some(Swap::Zram(_))) {
        optional.extend(["lzo", "lzo_rle"]);
        required.push("zram");
    }
    // Compressors and checksums must be there before what uses them.
    let mut loaded = kernel.modules(&[], &optional)?;
    required.extend(machine.modules.iter().map(String::as_str));
    for module in kernel.modules(&required, &[])? {
        if !loaded.iter().any(|m| m.name == module.name) {
            loaded.push(module);
        }
    }
    Ok(loaded)
}

/// The lines of vm.conf, see init.c.
fn settings(machine: &Machine, command: &[String]) -> Result<Vec<String>> {
    let cwd = std::env::current_dir().doing(|| "find the current folder".to_owned())?;
    let mut lines = vec![format!("cwd={}", cwd.display())];
    let mut disk = 'a';
    if machine.disk.is_some() {
        lines.push(format!("disk=/dev/vd{disk}"));
        disk = 'b';
    }
    match machine.swap {
        Some(Swap::Disk(_)) => lines.push(format!("swap=/dev/vd{disk}")),
        Some(Swap::Zram(size)) => lines.push(format!("swap=zram:{}M", size.0)),
        None => {}
    }
    lines.extend(machine.hugepages.map(|n| format!("hugepages={n}")));
    lines.extend(
        PASSED_ON
            .iter()
            .filter_map(|n| Some(format!("env={n}={}", std::env::var(n).ok()?))),
    );
    lines.push("env=TMPDIR=/run/tmp".to_owned());
    lines.push(format!("env=VARVE_VM={}", machine.kernel));
    if let Some(share) = &machine.share {
        let share = std::path::absolute(share).doing(|| format!("find {}", share.display()))?;
        lines.push(format!("share={}", share.display()));
        lines.push(format!("env=VARVE_VM_SHARE={}", share.display()));
    }
    lines.extend(machine.env.iter().map(|e| format!("env={e}")));
    lines.extend(command.iter().map(|a| format!("arg={a}")));
    if let Some(line) = lines.iter().find(|l| l.contains('\0')) {
        return Err(Error::failed(format!(
            "a NUL byte in `{}`",
            line.escape_default()
        )));
    }
    Ok(lines)
}

fn make_disks(machine: &Machine, folder: &Path) -> Result<()> {
    let sparse = |name: &str, size: Mebibytes| -> Result<PathBuf> {
        let path = folder.join(name);
        let file = File::create(&path).doing(|| format!("create {}", path.display()))?;
        file.set_len(size.0 << 20)
            .doing(|| format!("size {}", path.display()))?;
        Ok(path)
    };
    if let Some(size) = machine.disk {
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-E", "lazy_itable_init=1"])
            .arg(sparse("disk", size)?))?;
    }
    if let Some(Swap::Disk(size)) = machine.swap {
        let path = sparse("swap", size)?;
        run(Command::new("mkswap").arg(&path))?;
    }
    Ok(())
}

/// Sizes of the nodes.
fn node_sizes(machine: &Machine) -> Result<Vec<u64>> {
    let nodes = u64::from(machine.numa.max(1));
    match machine.memory[..] {
        [whole] => Ok((0..nodes).map(|_| whole.0 / nodes).collect()),
        ref each if each.len() as u64 == nodes => Ok(each.iter().map(|m| m.0).collect()),
        ref each => Err(Error::failed(format!(
            "--memory names {} sizes, --numa {nodes} nodes",
            each.len()
        ))),
    }
}

fn qemu(machine: &Machine, kernel: &Kernel, folder: &Path) -> Result<Command> {
    let sizes = node_sizes(machine)?;
    let at = |name: &str| folder.join(name).display().to_string();
    let mut arguments: Vec<String> = Vec::new();
    let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);

    add(
        "-accel",
        if machine.kvm {
            "kvm"
        } else {
            "tcg,thread=multi,tb-size=512"
        }
        .to_owned(),
    );
    add(
        "-machine",
        format!("q35{}", if sizes.len() > 1 { ",hmat=on" } else { "" }),
    );
    add("-cpu", machine.cpu.clone());
    add("-smp", machine.cpus.to_string());
    add("-m", format!("{}M", sizes.iter().sum::<u64>()));
    for (node, size) in sizes.iter().enumerate() {
        // Shared, because virtiofsd writes into the guest's memory.
        add(
            "-object",
            format!("memory-backend-memfd,id=m{node},size={size}M,share=on"),
        );
        let first = node == 0;
        let cpus = if first {
            format!(",cpus=0-{}", machine.cpus - 1)
        } else {
            String::new()
        };
        let initiator = if sizes.len() > 1 { ",initiator=0" } else { "" };
        add(
            "-numa",
            format!("node,nodeid={node},memdev=m{node}{cpus}{initiator}"),
        );
    }
    if sizes.len() > 1 {
        for node in 0..sizes.len() {
            // A CXL-like ratio; only the order matters to the kernel's memory tiers.
            let (latency, bandwidth) = if node == 0 {
                (80, "100G")
            } else {
                (250, "20G")
            };
            let lb = format!("hmat-lb,initiator=0,target={node},hierarchy=memory");
            add(
                "-numa",
                format!("{lb},data-type=access-latency,latency={latency}"),
            );
            add(
                "-numa",
                format!("{lb},data-type=access-bandwidth,bandwidth={bandwidth}"),
            );
        }
        for node in 1..sizes.len() {
            add("-numa", format!("dist,src=0,dst={node},val=20"));
        }
    }
    add("-kernel", kernel.image.display().to_string());
    add("-initrd", at("initramfs"));
    // The kernel's check of its timer expects ticks within a time that an emulated processor on a busy machine may not get.
    add(
        "-append",
        format!(
            "console=ttyS0 loglevel=4 panic=-1 oops=panic no_timer_check {}",
            machine.append
        ),
    );
    add("-serial", format!("file:{}", at("console")));
    add("-chardev", format!("socket,id=run,path={}", at("port")));
    add("-device", "virtio-serial-pci".to_owned());
    add(
        "-device",
        "virtserialport,chardev=run,name=varve.run".to_owned(),
    );
    add(
        "-chardev",
        format!("socket,id=host,path={}", at("root.sock")),
    );
    add(
        "-device",
        "vhost-user-fs-pci,chardev=host,tag=host".to_owned(),
    );
    if machine.share.is_some() {
        add(
            "-chardev",
            format!("socket,id=share,path={}", at("share.sock")),
        );
        add(
            "-device",
            "vhost-user-fs-pci,chardev=share,tag=share".to_owned(),
        );
    }
    for name in ["disk", "swap"]
        .into_iter()
        .filter(|n| folder.join(n).is_file())
    {
        add(
            "-drive",
            format!("file={},if=virtio,format=raw,cache=unsafe", at(name)),
        );
    }
    let mut command = dying_with_us("qemu-system-x86_64");
    command
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(arguments);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::{Mebibytes, Swap};

    #[test]
    fn sizes() {
        assert_eq!("4G".parse(), Ok(Mebibytes(4096)));
        assert_eq!("512M".parse(), Ok(Mebibytes(512)));
        assert!("0".parse::<Mebibytes>().is_err());
        assert!("4T".parse::<Mebibytes>().is_err());
        assert_eq!("zram:1G".parse(), Ok(Swap::Zram(Mebibytes(1024))));
        assert_eq!("512M".parse(), Ok(Swap::Disk(Mebibytes(512))));
        assert!("tape:1G".parse::<Swap>().is_err());
    }
}
