//! The guardian: a tiny process that outlives a killed recorder.
//!
//! A frozen cgroup stays frozen when whoever froze it dies. The guardian waits for the end of the
//! recorder on a pipe that the recorder alone holds open; if that ends without the word `end`, it lets
//! the target go, moves it back to where it was, writes counts that are not in the trace yet and removes what the recorder left. A recorder that is
//! stopped (SIGSTOP, a debugger, Ctrl-Z) cannot let go either: the guardian thaws the cgroup then.

use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::RecordError;
use crate::stale::recorder_of;

/// How often a recorder is looked at, whether it stands.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// What the guardian was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The cgroup of the target and the one to return to.
    Cgroup(PathBuf, PathBuf),
    /// The folder of rings.
    Rings(PathBuf),
    /// The recorder has cleaned up itself.
    End,
}

/// Reads one line of what a recorder says.
pub fn parse_order(line: &str) -> Option<Order> {
    let mut words = line.split('\t');
    match (words.next()?, words.next(), words.next()) {
        ("cgroup", Some(path), Some(parent)) => Some(Order::Cgroup(path.into(), parent.into())),
        ("rings", Some(path), None) => Some(Order::Rings(path.into())),
        ("end", None, None) => Some(Order::End),
        _ => None,
    }
}

/// The guardian's whole life: `varve guardian` runs this on its standard input.
pub fn guard(orders: impl BufRead + Send + 'static) {
    let mut cgroup = None;
    let mut rings = None;
    let (say, heard) = channel();
    // Ends with the orders, or with this process.
    std::thread::spawn(move || {
        for line in orders.lines().map_while(Result::ok) {
            if say.send(parse_order(&line)).is_err() {
                return;
            }
        }
    });
    loop {
        match heard.recv_timeout(LOOK_EVERY) {
            Ok(Some(Order::Cgroup(path, parent))) => cgroup = Some((path, parent)),
            Ok(Some(Order::Rings(path))) => rings = Some(path),
            Ok(Some(Order::End)) => return,
            Ok(None) => {}
            Err(RecvTimeoutError::Timeout) => {
                if let Some((path, _)) = &cgroup {
                    thaw_if_stopped(path);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let cgroup = cgroup.as_ref().map(|(c, p)| (c.as_path(), p.as_path()));
    varve_sys::clean_up_after(cgroup, None);
    if let Some(rings) = rings {
        crate::salvage::salvage(&rings);
        varve_sys::clean_up_after(None, Some(&rings));
    }
}

/// Lets the target run if the recorder that the cgroup is named after has been stopped.
fn thaw_if_stopped(cgroup: &Path) {
    let name = cgroup.file_name().and_then(|n| n.to_str());
    let Some(recorder) = name.and_then(recorder_of) else {
        return;
    };
    if varve_sys::status(recorder).is_ok_and(|s| matches!(s.state, 'T' | 't')) {
        let _ = std::fs::write(cgroup.join("cgroup.freeze"), "0");
    }
}

/// The recorder's end of it.
pub(crate) struct Guardian {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Guardian {
    pub(crate) fn start() -> Result<Guardian, RecordError> {
        let mut child = Command::new("/proc/self/exe")
            .arg("guardian")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in the terminal must not reach it.
            .process_group(0)
            .spawn()
            .map_err(RecordError::system("start the guardian process"))?;
        let orders = child.stdin.take();
        Ok(Guardian { child, orders })
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        match &mut self.orders {
            Some(pipe) => pipe.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }

    pub(crate) fn watch_cgroup(&mut self, path: &Path, parent: &Path) -> Result<(), RecordError> {
        self.say(&format!(
            "cgroup\t{}\t{}\n",
            path.display(),
            parent.display()
        ))
        .map_err(RecordError::system("tell the guardian of the cgroup"))
    }

    pub(crate) fn watch_rings(&mut self, path: &Path) -> Result<(), RecordError> {
        self.say(&format!("rings\t{}\n", path.display()))
            .map_err(RecordError::system("tell the guardian of the rings"))
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        let _ = self.say("end\n");
        self.orders = None;
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn orders_are_read() {
        assert_eq!(
            parse_order("cgroup\t/a b\t/c"),
            Some(Order::Cgroup("/a b".into(), "/c".into()))
        );
        assert_eq!(parse_order("rings\t/r"), Some(Order::Rings("/r".into())));
        assert_eq!(parse_order("end"), Some(Order::End));
        assert_eq!(parse_order("cgroup\t/a"), None);
        assert_eq!(parse_order(""), None);
    }

    #[test]
    fn a_recorder_that_dies_has_its_rings_removed_and_one_that_ends_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let rings = dir.path().join("rings");
        std::fs::create_dir(&rings).unwrap();
        let orders = format!("rings\t{}\n", rings.display());
        guard(Cursor::new(format!("{orders}end\n")));
        assert!(rings.is_dir());
        guard(Cursor::new(orders));
        assert!(!rings.exists());
    }
}
