//! A swap device in compressed memory, for as long as it is needed.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use varve_model::Bytes;

/// Where the kernel makes and removes them.
const CONTROL: &str = "/sys/class/zram-control";
/// Of the kernel's `include/linux/swap.h`.
const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";
const PAGE: usize = 4096;
const PREFER: i32 = 0x8000;
const MAX_PRIORITY: i32 = 0x7fff;

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum ZramError {
    /// The kernel has no zram.
    #[error("this kernel has no zram ({CONTROL} is not there)")]
    Absent,
    /// A step failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl ZramError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            ZramError::Absent => "load its module (modprobe zram), or use a swap device or file",
            ZramError::Io { .. } => "making a swap device takes root",
        }
    }
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> ZramError {
    move |source| ZramError::Io { action, source }
}

/// A zram device of ours. The kernel gives a number again as soon as it is free, so that the number alone does not say whose a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZramDevice {
    /// Its number.
    pub number: u32,
    /// The number of the disk, which the kernel gives once (Linux 5.15); 0 where it has none.
    pub sequence: u64,
}

impl ZramDevice {
    /// Whether this kernel can make one.
    ///
    /// # Errors
    /// Where it cannot.
    pub fn check() -> Result<(), ZramError> {
        match Path::new(CONTROL).is_dir() {
            true => Ok(()),
            false => Err(ZramError::Absent),
        }
    }

    /// Makes one, without a size. Nobody removes it where the process ends then.
    ///
    /// # Errors
    /// Where the kernel has none, or this process may not.
    pub fn make() -> io::Result<ZramDevice> {
        let made = fs::read_to_string(format!("{CONTROL}/hot_add"))?;
        let number = made
            .trim()
            .parse()
            .map_err(|_| io::Error::other("the kernel gave it no number"))?;
        Ok(ZramDevice {
            number,
            sequence: sequence(number).unwrap_or(0),
        })
    }

    /// Brings back what was swapped to it and removes it; silently. Another device that has its number by now is left alone.
    pub fn remove(self) {
        let device = self.path();
        let path = c_string(&device);
        for _ in 0..50 {
            if sequence(self.number).unwrap_or(0) != self.sequence {
                return;
            }
            // A process that is ending still has pages there, and a busy machine lets it take a while.
            if let Ok(path) = &path {
                // SAFETY: a C string.
                unsafe { libc::swapoff(path.as_ptr()) };
            }
            let _ = fs::write(self.setting("reset"), "1");
            if fs::write(format!("{CONTROL}/hot_remove"), self.number.to_string()).is_ok()
                || !device.exists()
            {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn setting(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}/{name}", self.number))
    }

    fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.number))
    }
}

fn sequence(number: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/block/zram{number}/diskseq")).ok()?;
    text.trim().parse().ok()
}

/// A zram device that is swapped to; removed on drop.
#[derive(Debug)]
pub struct ZramSwap {
    device: ZramDevice,
}

impl ZramSwap {
    /// Gives a new device its size and swaps to it before all others.
    ///
    /// # Errors
    /// Where this process may not.
    pub fn begin(device: ZramDevice, bytes: Bytes) -> Result<ZramSwap, ZramError> {
        let swap = ZramSwap { device };
        let bytes = bytes.0.next_multiple_of(PAGE as u64).max(64 << 10);
        fs::write(device.setting("disksize"), bytes.to_string())
            .map_err(failed("give a zram device its size"))?;
        let file = OpenOptions::new().write(true).open(device.path());
        file.and_then(|file| file.write_all_at(&header(bytes), 0))
            .map_err(failed("write to a zram device"))?;
        let path = c_string(&device.path()).map_err(failed("swap to a zram device"))?;
        // SAFETY: a C string.
        match unsafe { libc::swapon(path.as_ptr(), PREFER | MAX_PRIORITY) } {
            0 => Ok(swap),
            _ => Err(failed("swap to a zram device")(io::Error::last_os_error())),
        }
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        self.device.remove();
    }
}

/// The first page of a swap device.
fn header(bytes: u64) -> [u8; PAGE] {
    let mut page = [0u8; PAGE];
    let last = u32::try_from(bytes / PAGE as u64 - 1).unwrap_or(u32::MAX);
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last.to_ne_bytes());
    page[PAGE - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    page
}

fn c_string(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// What can be swapped to, and how much of it is free.
pub fn free_swap() -> Bytes {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("SwapFree:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    Bytes(kib.unwrap_or(0) << 10)
}
