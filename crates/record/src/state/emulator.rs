//! Programs that run under the emulator, which the kernel takes for the program.

use varve_model::Pid;
use varve_sys::MapLine;

/// The emulator, as Debian names it.
pub(crate) const EMULATOR: &str = "qemu-x86_64";

/// Leaves the program's mappings. The emulator is loaded where the kernel loads programs, high up, with its libraries above
/// it; it maps the program's memory from 256 GiB upwards, and programs with an address of their own lie below.
pub(crate) fn leave_out(pid: Pid, lines: &mut Vec<MapLine<'_>>) {
    let Ok(emulator) = varve_sys::exe(pid) else {
        return;
    };
    let emulator = emulator.to_string_lossy();
    let own = lines.iter().filter(|line| line.path == emulator);
    if let Some(lowest) = own.map(|line| line.address).min() {
        lines.retain(|line| line.address < lowest);
    }
}

/// What the kernel calls a thread that runs a program: the file's name, 15 bytes of it at most.
pub(crate) fn comm(exe: &str) -> String {
    let name = exe.rsplit('/').next().unwrap_or(exe);
    let end = (0..=name.len().min(15))
        .rev()
        .find(|end| name.is_char_boundary(*end));
    name[..end.unwrap_or(0)].to_owned()
}

/// The program that an emulator runs, and its command line: `EMULATOR OPTIONS -0 NAME PROGRAM ARGUMENTS`.
pub(crate) fn program(arguments: &[String]) -> Option<(String, String)> {
    let at = arguments.iter().position(|w| w == "-0")?;
    let (name, program) = (arguments.get(at + 1)?, arguments.get(at + 2)?);
    let rest = arguments[at + 3..].iter();
    let command = [name].into_iter().chain(rest).cloned();
    Some((program.clone(), command.collect::<Vec<_>>().join(" ")))
}
