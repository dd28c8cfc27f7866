//! The processes of one virtual machine, and what it says.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::Places;
use crate::error::{Doing, Error, Result, make_dir};
use crate::vm::Machine;

/// Seconds from qemu's start to the command's start, at most: some five on a quiet machine, so that this is a guard only.
const BOOT_SECONDS: u64 = 240;
/// Seconds that the programs around the guest have to open their sockets, a guard too.
const SOCKET_SECONDS: u64 = 120;
const VIRTIOFSD: [&str; 3] = [
    "/usr/lib/qemu/virtiofsd",
    "/usr/libexec/virtiofsd",
    "/usr/lib/virtiofsd",
];

/// How a command in the guest ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// As a shell says it: 128 + signal if one ended it.
    pub(crate) code: u32,
    /// From qemu's start to the command's start.
    pub(crate) boot: Duration,
    /// The command's run.
    pub(crate) ran: Duration,
}

/// Where the command's output goes.
pub(crate) struct Output<'a> {
    /// Receives standard output.
    pub(crate) out: &'a mut dyn Write,
    /// Receives standard error.
    pub(crate) err: &'a mut dyn Write,
}

/// A program that the kernel kills when this one ends, however it ends.
pub(crate) fn dying_with_us(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", program])
        .stdin(Stdio::null());
    command
}

/// The processes of one machine; they end with this value.
pub(crate) struct Guest {
    children: Vec<(String, Child)>,
    console: PathBuf,
}

impl Guest {
    /// A machine with nothing started yet, whose serial console qemu will write to `console`.
    pub(crate) fn new(console: PathBuf) -> Self {
        Guest {
            children: Vec::new(),
            console,
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        for (_, child) in self.children.iter_mut().rev() {
            // Fails only if it has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Guest {
    /// Starts one of the machine's programs.
    pub(crate) fn start(&mut self, mut command: Command) -> Result<()> {
        let name = crate::error::shown(&command);
        // What these print belongs to a failure's story, so it goes where the console goes.
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.console.with_extension("log"));
        let log = log.doing(|| "create a log file".to_owned())?;
        command
            .stdout(log.try_clone().doing(|| "share a log file".to_owned())?)
            .stderr(log);
        let child = command.spawn().doing(|| format!("start `{name}`"))?;
        self.children.push((name, child));
        Ok(())
    }

    /// Serves the host's root, and the file system that holds the repository if that is another one,
    /// from a private mount namespace in which they are read-only.
    pub(crate) fn share_root(&mut self, places: &Places, folder: &Path) -> Result<()> {
        let view = folder.join("root");
        make_dir(&view)?;
        let script = r#"
            set -e
            mount --bind / "$1"
            mount -o remount,bind,ro "$1"
            if [ "$(stat -c %d /)" != "$(stat -c %d "$2")" ]; then
                mount --bind "$2" "$1$2"
                mount -o remount,bind,ro "$1$2"
            fi
            exec "$3" --socket-path="$4" -o source="$1",sandbox=chroot,cache=always,no_writeback,xattr,log_level=warn"#;
        let mut command = dying_with_us("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]);
        command
            .arg(&view)
            .arg(&places.repository)
            .arg(virtiofsd()?)
            .arg(folder.join("root.sock"));
        self.start(command)?;
        self.wait_for(&folder.join("root.sock"))
    }

    /// Serves a folder that the guest may write to.
    pub(crate) fn share_folder(&mut self, share: &Path, socket: &Path) -> Result<()> {
        let mut command = dying_with_us(virtiofsd()?);
        command.arg(format!("--socket-path={}", socket.display()));
        command.arg("-o").arg(format!(
            "source={},sandbox=chroot,cache=auto,xattr,log_level=warn",
            share.display()
        ));
        self.start(command)?;
        self.wait_for(socket)
    }

    fn wait_for(&mut self, socket: &Path) -> Result<()> {
        for _ in 0..SOCKET_SECONDS * 100 {
            if socket.exists() {
                return Ok(());
            }
            self.check_alive()?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(Error::failed(format!(
            "virtiofsd did not create {}",
            socket.display()
        )))
    }

    fn check_alive(&mut self) -> Result<()> {
        for (name, child) in self.children.iter_mut().rev() {
            if let Some(status) = child.try_wait().doing(|| format!("wait for `{name}`"))? {
                let program = match name.split(' ').nth(3) {
                    Some("unshare") => "virtiofsd for the root",
                    Some(other) => other,
                    None => name,
                };
                return Err(Error::hinted(
                    format!("{program} ended early ({status})"),
                    "its messages and the guest's console are above; a kernel panic ends qemu",
                ));
            }
        }
        Ok(())
    }

    /// Forwards the command's output until it has ended. Sets `booted` once another attempt to boot
    /// makes no sense.
    pub(crate) fn follow(
        &mut self,
        listener: &UnixListener,
        machine: &Machine,
        started: Instant,
        output: &mut Output<'_>,
        booted: &mut bool,
    ) -> Result<Outcome> {
        let (frames, _stream) = self.connect(listener)?;
        let mut boot = None;
        let mut spoke = Instant::now();
        loop {
            let limit = match boot {
                None => Duration::from_secs(BOOT_SECONDS),
                Some(boot) => boot + Duration::from_secs(machine.timeout),
            };
            let elapsed = started.elapsed();
            if elapsed >= limit {
                return Err(match boot {
                    None => {
                        Error::failed(format!("the guest did not boot within {BOOT_SECONDS} s"))
                    }
                    Some(_) => Error::hinted(
                        format!("the command did not end within {} s", machine.timeout),
                        "--timeout gives it more",
                    ),
                });
            }
            if let Some(silence) = machine.silence.map(Duration::from_secs)
                && spoke.elapsed() >= silence
            {
                return Err(Error::hinted(
                    format!("the guest has said nothing for {} s", silence.as_secs()),
                    "its console is above; emulated machines of several processors lock up now and then",
                ));
            }
            let frame = frames.recv_timeout((limit - elapsed).min(Duration::from_millis(200)));
            if frame.is_ok() {
                spoke = Instant::now();
            }
            match frame {
                Ok(Frame { kind: b'b', .. }) => {
                    boot = Some(started.elapsed());
                    *booted = true;
                }
                Ok(Frame { kind: b'o', data }) => output
                    .out
                    .write_all(&data)
                    .doing(|| "pass on output".to_owned())?,
                Ok(Frame { kind: b'e', data }) => output
                    .err
                    .write_all(&data)
                    .doing(|| "pass on output".to_owned())?,
                Ok(Frame { kind: b'x', data }) => {
                    let boot = boot.unwrap_or_default();
                    let code = data.try_into().map_or(255, u32::from_le_bytes);
                    return Ok(Outcome {
                        code,
                        boot,
                        ran: started.elapsed().saturating_sub(boot),
                    });
                }
                Ok(Frame { data, .. }) => {
                    // Another attempt would fail the same way.
                    *booted = true;
                    return Err(Error::failed(format!(
                        "in the guest: {}",
                        String::from_utf8_lossy(&data)
                    )));
                }
                Err(RecvTimeoutError::Timeout) => self.check_alive()?,
                Err(RecvTimeoutError::Disconnected) => {
                    // The reason follows the closed socket by a moment.
                    std::thread::sleep(Duration::from_millis(300));
                    self.check_alive()?;
                    return Err(Error::failed("the guest closed its connection"));
                }
            }
        }
    }

    fn connect(&mut self, listener: &UnixListener) -> Result<(Receiver<Frame>, UnixStream)> {
        listener
            .set_nonblocking(true)
            .doing(|| "prepare a socket".to_owned())?;
        let deadline = Instant::now() + Duration::from_secs(SOCKET_SECONDS);
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(e)
                    if e.kind() != std::io::ErrorKind::WouldBlock || Instant::now() > deadline =>
                {
                    return Err(e).doing(|| "get qemu's connection".to_owned());
                }
                Err(_) => self.check_alive()?,
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        stream
            .set_nonblocking(false)
            .doing(|| "prepare a socket".to_owned())?;
        let mut reader = stream.try_clone().doing(|| "prepare a socket".to_owned())?;
        let (sender, receiver) = channel();
        // Ends when qemu does, or when nobody wants frames any more.
        std::thread::spawn(move || {
            while let Ok(frame) = Frame::read(&mut reader) {
                if sender.send(frame).is_err() {
                    break;
                }
            }
        });
        Ok((receiver, stream))
    }

    /// Prints the ends of what the programs and the guest's console said.
    pub(crate) fn show_console(&self, lines: usize) {
        for (title, path) in [
            ("programs", self.console.with_extension("log")),
            ("console", self.console.clone()),
        ] {
            let text = fs::read(&path).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let all: Vec<&str> = text.lines().collect();
            let tail = &all[all.len().saturating_sub(lines)..];
            if !tail.is_empty() {
                eprintln!(
                    "--- {title}, last {} of {} lines\n{}\n---",
                    tail.len(),
                    all.len(),
                    tail.join("\n")
                );
            }
        }
    }
}

/// One message from the guest, see init.c.
struct Frame {
    kind: u8,
    data: Vec<u8>,
}

impl Frame {
    fn read(stream: &mut impl Read) -> std::io::Result<Self> {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let mut data = Vec::new();
        let length = u64::from(u32::from_le_bytes(length));
        stream.take(length).read_to_end(&mut data)?;
        if data.len() as u64 != length {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Frame { kind, data })
    }
}

fn virtiofsd() -> Result<&'static str> {
    VIRTIOFSD
        .into_iter()
        .find(|p| Path::new(p).is_file())
        .ok_or_else(|| {
            Error::hinted(
                "virtiofsd is not installed",
                "apt-get install qemu-system-x86 (or virtiofsd, from Debian 13 on)",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::Frame;

    #[test]
    fn a_truncated_frame_is_no_frame() {
        let whole = [b'o', 2, 0, 0, 0, b'h', b'i'];
        assert_eq!(Frame::read(&mut &whole[..]).expect("a frame").data, b"hi");
        assert!(Frame::read(&mut &whole[..6]).is_err());
        assert!(Frame::read(&mut &whole[..3]).is_err());
    }
}
