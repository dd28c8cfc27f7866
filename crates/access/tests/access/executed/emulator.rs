//! Programs, made and run one instruction at a time under Debian's `qemu-user`, which tells the registers before each
//! instruction and, through a plugin, every access: an account that knows nothing of the decoders that are tested.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use varve_access::{aarch64, x86};
use varve_model::Address;

use super::judge::{Executed, Made};

/// Where the sources lie.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/access/executed")
}

fn run(command: &mut Command) {
    let what = format!("{command:?}");
    let status = command
        .status()
        .unwrap_or_else(|e| panic!("{what}: {e}; `scripts/setup test` installs what is needed"));
    assert!(status.success(), "{what}: {status}");
}

/// Builds a program with a compiler.
pub(crate) fn build(compiler: &str, source: &str, options: &[&str], folder: &Path) -> PathBuf {
    let program = folder.join(format!("{source}.out"));
    run(Command::new(compiler)
        .args(options)
        .args(["-static", "-o"])
        .arg(&program)
        .arg(sources().join(source)));
    program
}

/// The functions of a program: address and bytes.
pub(crate) fn functions(program: &Path) -> Vec<(u64, Vec<u8>)> {
    let file = std::fs::read(program).expect("the program was built");
    let file = object::File::parse(&*file).expect("an ELF file");
    let mut found: Vec<(u64, Vec<u8>)> = file
        .symbols()
        .filter(|s| s.kind() == SymbolKind::Text && s.size() > 0)
        .filter_map(|s| {
            let section = file.section_by_index(s.section_index()?).ok()?;
            let bytes = section.data_range(s.address(), s.size()).ok()??;
            Some((s.address(), bytes.to_vec()))
        })
        .collect();
    found.sort();
    found.dedup_by_key(|(address, _)| *address);
    found
}

/// The function around an address, of a sorted list.
pub(crate) fn around<C>(known: &[(std::ops::Range<Address>, C)], ip: u64) -> Option<&C> {
    let after = known.partition_point(|(range, _)| range.start.0 <= ip);
    let (range, code) = known[..after].last()?;
    (ip < range.end.0).then_some(code)
}

/// Registers that are read from a log.
pub(crate) trait Logged: Default {
    /// Whether a line begins the registers of the next instruction.
    fn begins(line: &str) -> bool;
    /// Takes what a line tells; gives the address of the instruction where it names one.
    fn take(&mut self, line: &str) -> Option<u64>;
}

/// Runs a program and gives what it executed, at most so many instructions.
pub(crate) fn trace<R: Logged + Clone>(
    emulator: &str,
    program: &Path,
    most: usize,
) -> Vec<Executed<R>> {
    let folder = program.parent().expect("a folder");
    let plugin = folder.join("accesses.so");
    run(Command::new("gcc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&plugin)
        .arg(sources().join("accesses.c")));
    // Its log goes to the error stream. The program must have the same environment everywhere.
    let mut child = Command::new(emulator)
        .args([
            "-cpu",
            "max",
            "-B",
            "0",
            "-singlestep",
            "-d",
            "cpu,nochain,plugin",
            "-plugin",
        ])
        .arg(&plugin)
        .arg(program)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{emulator}: {e}; `scripts/setup test` installs it"));
    let log = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut all: Vec<Executed<R>> = Vec::new();
    let (mut registers, mut ip): (R, Option<u64>) = (R::default(), None);
    let mut made = Vec::new();
    for line in log.lines() {
        let Ok(line) = line else { break };
        if let Some(access) = line.strip_prefix("@ ") {
            made.push(access_in(access));
            continue;
        }
        if R::begins(&line) {
            if let Some(ip) = ip.take() {
                all.push(Executed {
                    ip,
                    registers: registers.clone(),
                    made: std::mem::take(&mut made),
                });
            }
            if all.len() == most {
                break;
            }
        }
        ip = registers.take(&line).or(ip);
    }
    // One that was cut off is not waited for.
    if all.len() == most {
        let _ = child.kill();
    }
    let status = child.wait().expect("our child");
    assert!(
        status.success() || all.len() == most,
        "{emulator}: {status} after {} instructions",
        all.len()
    );
    assert!(all.iter().any(|s| !s.made.is_empty()), "nothing was logged");
    all
}

fn access_in(text: &str) -> Made {
    let mut words = text.split(' ');
    let mut word = || words.next().expect("four words");
    let write = word() == "W";
    let address = u64::from_str_radix(word(), 16).expect("an address");
    let bytes = word().parse().expect("a length");
    let contents = word().as_bytes().chunks(2).map(|pair| {
        let digits = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(digits, 16).expect("a byte")
    });
    Made {
        write,
        address,
        bytes,
        contents: contents.collect(),
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// What follows a name in a line.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let from = line.find(name)? + name.len();
    line[from..].split(' ').next()
}

/// Registers of AArch64, all known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arm(pub(crate) aarch64::Registers);

impl Default for Arm {
    fn default() -> Self {
        Arm(aarch64::Registers {
            general: [None; 31],
            sp: None,
            flags: None,
        })
    }
}

impl Logged for Arm {
    fn begins(line: &str) -> bool {
        line.starts_with(" PC=")
    }

    fn take(&mut self, line: &str) -> Option<u64> {
        if let Some(state) = line.strip_prefix("PSTATE=") {
            self.0.flags = hex(state.split(' ').next()?);
            return None;
        }
        for word in line.split_ascii_whitespace() {
            let Some((name, value)) = word.split_once('=') else {
                continue;
            };
            let number = name.strip_prefix('X').and_then(|n| n.parse::<usize>().ok());
            match number {
                Some(number) => self.0.general[number] = hex(value),
                None if name == "SP" => self.0.sp = hex(value),
                None => {}
            }
        }
        field(line, " PC=").and_then(hex)
    }
}

/// Registers of x86-64, all known but for the vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct X86(pub(crate) x86::Registers);

impl Default for X86 {
    fn default() -> Self {
        X86(x86::Registers {
            general: [None; 16],
            flags: None,
            fs_base: None,
            gs_base: None,
            vectors: None,
        })
    }
}

impl Logged for X86 {
    fn begins(line: &str) -> bool {
        line.starts_with("RAX=")
    }

    fn take(&mut self, line: &str) -> Option<u64> {
        const NAMES: [&str; 16] = [
            "RAX=", "RCX=", "RDX=", "RBX=", "RSP=", "RBP=", "RSI=", "RDI=", "R8 =", "R9 =", "R10=",
            "R11=", "R12=", "R13=", "R14=", "R15=",
        ];
        if let Some(segment) = line.strip_prefix("FS =") {
            self.0.fs_base = segment.split(' ').nth(1).and_then(hex);
        } else if let Some(segment) = line.strip_prefix("GS =") {
            self.0.gs_base = segment.split(' ').nth(1).and_then(hex);
        } else if line.starts_with('R') {
            for (number, name) in NAMES.iter().enumerate() {
                if let Some(value) = field(line, name) {
                    self.0.general[number] = hex(value);
                }
            }
            if let Some(flags) = field(line, "RFL=") {
                self.0.flags = hex(flags);
            }
            return field(line, "RIP=").and_then(hex);
        }
        None
    }
}
