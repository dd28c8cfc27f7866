//! Debian's cloud kernels, fetched as packages into `target/kernels` and unpacked there.
//!
//! The mirror is the one that this machine's own apt uses; a private apt configuration folder adds
//! the suites that hold the wanted series. Nothing under /etc/apt or /var/lib/apt is changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Doing, Error, Result, make_dir, read, run, text_of, write};

/// The suites that are searched, in this order, for a kernel of the wanted series.
const SUITES: [&str; 5] = [
    "bookworm",
    "bookworm-backports",
    "trixie",
    "trixie-backports",
    "sid",
];
/// Depends on the newest cloud kernel of its suite.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// The keys of Debian's archives; without this file apt falls back to the keys that it trusts anyway.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// What `uname -r` will say.
    pub(crate) release: String,
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// `lib/modules/RELEASE`.
    modules: PathBuf,
}

/// The newest kernel of a series such as `6.1`, from the cache or from Debian.
pub(crate) fn kernel(target: &Path, series: &str) -> Result<Kernel> {
    let cache = target.join("kernels");
    let unpacked = cache.join(series);
    let mut waits = WAITS.iter();
    while !unpacked.is_dir() {
        let Err(error) = fetch(&cache, series, &unpacked) else {
            break;
        };
        // Mirrors fail now and then; without a network waiting does not help.
        let Some(&seconds) = waits.next().filter(|_| has_network()) else {
            return Err(error);
        };
        eprintln!("the kernel {series} was not fetched; it is tried again in {seconds} s: {error}");
        std::thread::sleep(Duration::from_secs(seconds));
    }
    describe(&unpacked)
}

/// Seconds between attempts to fetch a kernel.
const WAITS: [u64; 3] = [5, 20, 60];

/// Whether there is a default route. Where there is none a mirror elsewhere cannot be reached, whatever its state.
pub(crate) fn has_network() -> bool {
    // Destinations are in hexadecimal; the kernel's own unreachable default of IPv6 is on the loopback device.
    let has_default = |path: &str, destination: usize, device: usize| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let zero = |f: &&str| !f.is_empty() && f.bytes().all(|b| b == b'0');
            fields.get(destination).is_some_and(zero)
                && fields.get(device).is_some_and(|d| *d != "lo")
        })
    };
    has_default("/proc/net/route", 1, 0) || has_default("/proc/net/ipv6_route", 0, 9)
}

fn describe(unpacked: &Path) -> Result<Kernel> {
    let modules = unpacked.join("lib/modules");
    let list = fs::read_dir(&modules).doing(|| format!("list {}", modules.display()))?;
    let Some(entry) = list.flatten().next() else {
        return Err(Error::failed(format!(
            "{} holds no kernel modules",
            modules.display()
        )));
    };
    let release = entry.file_name().to_string_lossy().into_owned();
    let image = unpacked.join(format!("boot/vmlinuz-{release}"));
    Ok(Kernel {
        release,
        image,
        modules: entry.path(),
    })
}

fn fetch(cache: &Path, series: &str, unpacked: &Path) -> Result<()> {
    let mirror = Mirror::of_this_machine()?;
    let prefix = format!("{series}.");
    for suite in SUITES {
        let apt = Apt::new(cache, suite, &mirror)?;
        // A mirror need not carry every suite.
        if apt.update().is_err() {
            continue;
        }
        let Some(package) = apt.newest_kernel(&prefix)? else {
            continue;
        };
        eprintln!("fetching {package} from {suite}");
        let deb = apt.download(&package)?;
        let temporary = tempfile::tempdir_in(cache)
            .doing(|| format!("create a folder in {}", cache.display()))?;
        run(Command::new("dpkg-deb")
            .arg("-x")
            .arg(&deb)
            .arg(temporary.path()))?;
        // Renamed when complete, so that a broken-off fetch is not taken for a kernel; another
        // fetch of the same kernel may have been faster.
        let complete = temporary.keep();
        if fs::rename(&complete, unpacked).is_err() && !unpacked.is_dir() {
            return Err(Error::failed(format!(
                "cannot rename {} to {}",
                complete.display(),
                unpacked.display()
            )));
        }
        return Ok(());
    }
    Err(Error::hinted(
        format!(
            "no reachable Debian suite has a cloud kernel of series {series} (searched {})",
            SUITES.join(", ")
        ),
        "run `apt-get update` and check that this machine reaches its Debian mirror",
    ))
}

/// Where this machine gets Debian from.
pub(crate) struct Mirror {
    /// The archive's root, without a suite.
    pub(crate) uri: String,
}

impl Mirror {
    /// The first Debian archive among this machine's apt sources.
    pub(crate) fn of_this_machine() -> Result<Self> {
        let targets = text_of(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(ORIGIN)|$(RELEASE)|$(REPO_URI)",
        ]))?;
        for line in targets.lines() {
            let fields: Vec<&str> = line.split('|').collect();
            if let ["Debian", release, uri] = fields[..]
                && !release.ends_with("-security")
            {
                return Ok(Mirror {
                    uri: uri.to_owned(),
                });
            }
        }
        Err(Error::hinted(
            "this machine's apt knows no Debian mirror",
            "run `apt-get update` on a Debian machine",
        ))
    }
}

/// A private apt that knows one suite.
struct Apt {
    home: PathBuf,
    downloads: PathBuf,
}

impl Apt {
    fn new(cache: &Path, suite: &str, mirror: &Mirror) -> Result<Self> {
        let home = cache.join("apt").join(suite);
        let downloads = cache.join("debs");
        for folder in ["lists/partial", "cache/archives/partial"] {
            make_dir(&home.join(folder))?;
        }
        make_dir(&downloads)?;
        let signed = if Path::new(KEYRING).is_file() {
            format!(" signed-by={KEYRING}")
        } else {
            String::new()
        };
        let line = format!("deb [arch=amd64{signed}] {} {suite} main\n", mirror.uri);
        write(&home.join("sources.list"), line)?;
        Ok(Apt { home, downloads })
    }

    fn command(&self, program: &str) -> Command {
        let home = self.home.display();
        let mut command = Command::new(program);
        for option in [
            format!("Dir::Etc::sourcelist={home}/sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={home}/lists"),
            format!("Dir::Cache={home}/cache"),
            "Dir::State::status=/dev/null".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=5".to_owned(),
            // The cache belongs to whoever runs this, not to apt's own user.
            "APT::Sandbox::User=root".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command
    }

    fn update(&self) -> Result<()> {
        run(self.command("apt-get").args(["--error-on=any", "update"])).map(drop)
    }

    /// The package with the newest kernel whose version starts with `prefix`.
    fn newest_kernel(&self, prefix: &str) -> Result<Option<String>> {
        let Ok(text) = text_of(self.command("apt-cache").args(["show", META_PACKAGE])) else {
            return Ok(None);
        };
        // Stanzas come newest first.
        for stanza in text.split("\n\n") {
            let field = |name: &str| {
                stanza
                    .lines()
                    .find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))
            };
            let (Some(version), Some(depends)) = (field("Version"), field("Depends")) else {
                continue;
            };
            if version.starts_with(prefix) {
                let package = depends.split([' ', ',']).next().unwrap_or(depends);
                return Ok(Some(package.to_owned()));
            }
        }
        Ok(None)
    }

    fn download(&self, package: &str) -> Result<PathBuf> {
        run(self
            .command("apt-get")
            .arg("download")
            .arg(package)
            .current_dir(&self.downloads))?;
        let list =
            fs::read_dir(&self.downloads).doing(|| format!("list {}", self.downloads.display()))?;
        let start = format!("{package}_");
        list.flatten()
            .find(|e| e.file_name().to_string_lossy().starts_with(&start))
            .map(|e| e.path())
            .ok_or_else(|| {
                Error::failed(format!(
                    "apt-get download {package} left no file in the cache"
                ))
            })
    }
}

/// A kernel module, ready for the initramfs.
pub(crate) struct Module {
    /// Its name, with `-` as `_`.
    pub(crate) name: String,
    /// The uncompressed object.
    pub(crate) object: Vec<u8>,
}

impl Kernel {
    /// The wanted modules and those they depend on, in loading order. What is built into the kernel
    /// needs no loading and is left out; so is a module of `optional` that this kernel lacks.
    pub(crate) fn modules(&self, required: &[&str], optional: &[&str]) -> Result<Vec<Module>> {
        let builtin =
            String::from_utf8_lossy(&read(&self.modules.join("modules.builtin"))?).into_owned();
        let builtin: Vec<String> = builtin.lines().map(module_name).collect();
        let order =
            String::from_utf8_lossy(&read(&self.modules.join("modules.order"))?).into_owned();
        let loadable: Vec<(String, &str)> = order.lines().map(|l| (module_name(l), l)).collect();
        let mut loading = Loading {
            kernel: self,
            builtin,
            loadable,
            done: Vec::new(),
        };
        for name in required {
            loading.add(&module_name(name), true)?;
        }
        for name in optional {
            loading.add(&module_name(name), false)?;
        }
        Ok(loading.done)
    }

    fn module_object(&self, listed: &str) -> Result<Vec<u8>> {
        // `modules.order` says foo.ko (or foo.o) whatever the file's compression.
        let plain = self.modules.join(listed).with_extension("ko");
        if plain.is_file() {
            return read(&plain);
        }
        for (suffix, program) in [("xz", "xz"), ("zst", "zstd"), ("gz", "gzip")] {
            let packed = PathBuf::from(format!("{}.{suffix}", plain.display()));
            if packed.is_file() {
                return Ok(run(Command::new(program).arg("-dc").arg(&packed))?.stdout);
            }
        }
        Err(Error::failed(format!(
            "the kernel package lists {} but does not hold it",
            plain.display()
        )))
    }
}

struct Loading<'a> {
    kernel: &'a Kernel,
    builtin: Vec<String>,
    loadable: Vec<(String, &'a str)>,
    done: Vec<Module>,
}

impl Loading<'_> {
    fn add(&mut self, name: &str, required: bool) -> Result<()> {
        if self.builtin.iter().any(|b| b == name) || self.done.iter().any(|m| m.name == name) {
            return Ok(());
        }
        let Some(&(_, listed)) = self.loadable.iter().find(|(n, _)| n == name) else {
            if required {
                return Err(Error::failed(format!(
                    "the kernel {} has no module {name}",
                    self.kernel.release
                )));
            }
            return Ok(());
        };
        let object = self.kernel.module_object(listed)?;
        for needed in depends(&object) {
            self.add(&needed, true)?;
        }
        self.done.push(Module {
            name: name.to_owned(),
            object,
        });
        Ok(())
    }
}

/// `kernel/fs/fuse/fuse.ko` -> `fuse`; the kernel takes `-` and `_` for the same.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

/// The modules that an object's `.modinfo` names in its NUL-terminated `depends=` string.
fn depends(object: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = object.windows(KEY.len()).position(|w| w == KEY) else {
        return Vec::new();
    };
    let rest = &object[at + KEY.len()..];
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    let names = String::from_utf8_lossy(&rest[..end]).into_owned();
    names
        .split(',')
        .filter(|n| !n.is_empty())
        .map(module_name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{depends, module_name};

    #[test]
    fn names_of_modules() {
        assert_eq!(
            module_name("kernel/drivers/char/hw_random/virtio-rng.ko"),
            "virtio_rng"
        );
        assert_eq!(module_name("kernel/fs/overlayfs/overlay.ko.xz"), "overlay");
    }

    #[test]
    fn dependencies_are_read_from_modinfo() {
        assert_eq!(
            depends(b"x\0license=GPL\0depends=virtio,virtio-ring\0y"),
            ["virtio", "virtio_ring"]
        );
        assert!(depends(b"x\0depends=\0y").is_empty());
        assert!(depends(b"no modinfo").is_empty());
    }
}
