//! The plugin for qemu-user that counts every access of a program.
//!
//! The recorder starts the target under Debian's `qemu-user` with this library as its plugin. While the emulator
//! translates a piece of code, [`translate`] asks to be called after each load and store; [`count`] then finds
//! the page's entry in the calling thread's own table and adds one. Tables lie in a shared file
//! (`varve-qemu-counter-abi`), so that whatever ends the program loses nothing.
//!
//! It runs inside the target's process, so:
//! - It keeps no file descriptor and prints nothing while the program runs; a target that closes descriptors, or has
//!   run out of them, is not in its way.
//! - Its memory for tables is reserved before it is written: a full disk is counted, it does not end the target.
//! - A thread counts in memory of its own, without locks. The emulator runs signal handlers between instructions,
//!   never inside a call of this library, so that no table is seen half changed.
//!
//! What an access is: one operand that an instruction reads or writes, however wide. Of an atomic operation the reading
//! and the writing count once each, of a repeated string instruction each repetition. Instructions that save or load the
//! whole state of the processor (`fxsave`, `xsave` and their kin) count once for each piece that the emulator makes of them.
//! Instruction fetches do not count, nor does what the kernel reads or writes on the program's behalf.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod api;
mod control;
mod count;
mod file;
mod follow;
mod slots;
mod translate;

use std::ffi::{CStr, c_char, c_int};

/// The emulator looks at this before anything else: the version of the interface that is spoken here.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static mut qemu_plugin_version: c_int = 1;

#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn() = choose_version;

/// Runs when the library is loaded, before the emulator reads the version. Emulators with scoreboards refuse the
/// first version of the interface, older ones refuse the second; what is used here is alike in both.
extern "C" fn choose_version() {
    if api::exports(c"qemu_plugin_scoreboard_new") {
        // SAFETY: nobody else runs in this library yet.
        unsafe { qemu_plugin_version = 2 };
    }
}

/// The emulator's call at its start.
///
/// # Safety
/// As the interface says: `info` and `argv` are valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: api::PluginId,
    info: *const api::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let (mut folder, mut identity) = (None, None);
    for i in 0..argc.max(0) as usize {
        // SAFETY: the emulator gives `argc` strings.
        let argument = unsafe { CStr::from_ptr(*argv.add(i)) };
        if let Some(value) = argument.to_bytes().strip_prefix(b"folder=") {
            folder = Some(value.to_vec());
        } else if let Some(value) = argument.to_bytes().strip_prefix(b"identity=") {
            identity = Some(value.to_vec());
        }
    }
    let (Some(folder), Some(identity)) = (folder, identity) else {
        eprintln!("varve: the plugin was not given its folder");
        return 1;
    };
    // SAFETY: `info` is valid.
    let version = unsafe { (*info).version.current };
    match file::begin(&folder, &identity) {
        // The recorder was killed: a program that began before runs this one, which is not to fail for that.
        // Nobody would read its counts.
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return 0,
        // The program runs as it would, uncounted, as where it has no descriptor left: the recorder knows whom it gave none,
        // and who did not begin with its own. What it runs is counted again.
        Err(_) | Ok(()) => {}
    }
    follow::prepare(&folder, &identity);
    translate::prepare(version);
    // SAFETY: the functions have the types that the interface asks for, and live as long as the process.
    unsafe {
        libc::pthread_atfork(None, None, Some(file::begin_in_child));
        api::qemu_plugin_register_vcpu_init_cb(id, slots::vcpu_changes);
        api::qemu_plugin_register_vcpu_exit_cb(id, slots::vcpu_changes);
        api::qemu_plugin_register_vcpu_tb_trans_cb(id, translate::block);
        api::qemu_plugin_register_vcpu_syscall_cb(id, follow::system_call);
    }
    0
}
