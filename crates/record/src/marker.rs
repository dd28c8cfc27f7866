//! Whose a thing in the system is: the mark that a recorder puts on what it would leave behind if it were killed.
//!
//! A name proves nothing: anybody may call a folder `varve-2024-c0ffee`. The mark names the process of the recorder for
//! ever, by its id, the time of its start and the boot, so that a number that was given again is not taken for it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use varve_model::Pid;

/// The name of the mark in a folder.
pub(crate) const FILE: &str = "recorder";
/// Longer marks are nobody's, bytes.
pub(crate) const MAX_BYTES: usize = 256;
const FIRST_WORD: &str = "varve-recorder";

/// A recorder, named for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) pid: Pid,
    /// When it started, in clock ticks since the boot.
    started: u64,
    boot: String,
}

impl Marker {
    /// This process.
    ///
    /// # Errors
    /// Where `/proc` cannot be read.
    pub(crate) fn own() -> io::Result<Marker> {
        let pid = Pid(std::process::id());
        Ok(Marker {
            pid,
            started: varve_sys::start_ticks(pid)?,
            boot: varve_sys::boot_id()?,
        })
    }

    /// Its text; [`Marker::parse`] reads it.
    pub(crate) fn text(&self) -> String {
        format!("{FIRST_WORD} {} {} {}\n", self.pid, self.started, self.boot)
    }

    /// Reads a mark.
    pub(crate) fn parse(text: &[u8]) -> Option<Marker> {
        let text = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
        let mut words = text.split(' ');
        let known = words.next()? == FIRST_WORD;
        let marker = Marker {
            pid: words.next()?.parse().ok().map(Pid)?,
            started: words.next()?.parse().ok()?,
            boot: words.next()?.to_owned(),
        };
        (known && words.next().is_none()).then_some(marker)
    }

    /// Whether that process is no more. One in another PID namespace cannot be seen from here: the locks on
    /// what it made show that it lives.
    pub(crate) fn is_gone(&self) -> bool {
        if varve_sys::boot_id().is_ok_and(|boot| boot != self.boot) {
            return true;
        }
        match varve_sys::start_ticks(self.pid) {
            // Nobody has waited for it yet, which may never happen.
            Ok(started) if started == self.started => {
                varve_sys::status(self.pid).is_ok_and(|s| matches!(s.state, 'Z' | 'X'))
            }
            Ok(_) => true,
            Err(_) => !Path::new(&format!("/proc/{}", self.pid)).exists(),
        }
    }
}

/// Marks a folder that this process has just made.
///
/// # Errors
/// Where the mark cannot be written.
pub(crate) fn mark_folder(folder: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(folder.join(FILE))?;
    file.write_all(Marker::own()?.text().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_one_process() {
        let own = Marker::own().unwrap();
        assert_eq!(Marker::parse(own.text().as_bytes()), Some(own.clone()));
        assert!(!own.is_gone());
        let earlier = Marker {
            started: own.started - 1,
            ..own.clone()
        };
        assert!(earlier.is_gone(), "its number was given again");
        let other_boot = Marker {
            boot: "0".into(),
            ..own.clone()
        };
        assert!(other_boot.is_gone());
        let nobody = Marker {
            // Above the largest process id that Linux has.
            pid: Pid(1 << 23),
            ..own
        };
        assert!(nobody.is_gone());
    }

    #[test]
    fn what_is_no_mark_is_refused() {
        for text in [
            "",
            "varve-recorder 1 2 x",
            "varve 1 2 x\n",
            "varve-recorder 1 x\n",
        ] {
            assert_eq!(Marker::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Marker::parse(b"varve-recorder 1 2 \xff\n"), None);
    }
}
