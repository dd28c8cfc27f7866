//! The emulator's plugin interface, as `qemu-plugin.h` documents it. Debian does not package the header, so what
//! is used of it is declared here.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub(crate) type PluginId = u64;
/// What a memory access was, in the emulator's own words.
pub(crate) type MemInfo = u32;

/// `qemu_info_t`, as far as it is the same everywhere.
#[repr(C)]
pub struct Info {
    target_name: *const c_char,
    pub(crate) version: Versions,
}

/// The versions of the interface that the emulator speaks.
#[repr(C)]
pub(crate) struct Versions {
    minimum: c_int,
    pub(crate) current: c_int,
}

#[repr(C)]
pub(crate) struct Block {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct Instruction {
    _opaque: [u8; 0],
}

/// Callbacks do not look at the processor's registers.
pub(crate) const NO_REGISTERS: c_int = 0;
/// Loads and stores.
pub(crate) const ALL_ACCESSES: c_int = 3;

pub(crate) type OnMemory = extern "C" fn(c_uint, MemInfo, u64, *mut c_void);

unsafe extern "C" {
    pub(crate) fn qemu_plugin_register_vcpu_init_cb(
        id: PluginId,
        callback: extern "C" fn(PluginId, c_uint),
    );
    pub(crate) fn qemu_plugin_register_vcpu_exit_cb(
        id: PluginId,
        callback: extern "C" fn(PluginId, c_uint),
    );
    pub(crate) fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: PluginId,
        callback: extern "C" fn(PluginId, *mut Block),
    );
    pub(crate) fn qemu_plugin_register_vcpu_syscall_cb(
        id: PluginId,
        callback: extern "C" fn(PluginId, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64),
    );
    pub(crate) fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    pub(crate) fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    pub(crate) fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    pub(crate) fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;
    pub(crate) fn qemu_plugin_insn_haddr(instruction: *const Instruction) -> *mut c_void;
    pub(crate) fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        callback: OnMemory,
        flags: c_int,
        access: c_int,
        user_data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_mem_is_store(info: MemInfo) -> bool;
    pub(crate) fn qemu_plugin_mem_size_shift(info: MemInfo) -> c_uint;
    pub(crate) fn qemu_plugin_path_to_binary() -> *const c_char;
    // From the third version of the interface on this copies into a buffer; before, it returns a pointer.
    fn qemu_plugin_insn_data();
}

/// The bytes of an instruction, at most 15 of them.
pub(crate) fn bytes_of(
    version: c_int,
    instruction: *const Instruction,
    into: &mut [u8; 16],
) -> usize {
    // SAFETY: the emulator gave the instruction and is still translating it; the function has the type that
    // its version of the interface documents.
    unsafe {
        let length = qemu_plugin_insn_size(instruction).min(into.len());
        let function = qemu_plugin_insn_data as *const ();
        if version >= 3 {
            type Copy = extern "C" fn(*const Instruction, *mut c_void, usize) -> usize;
            let copy = std::mem::transmute::<*const (), Copy>(function);
            copy(instruction, into.as_mut_ptr().cast(), length).min(length)
        } else {
            type Point = extern "C" fn(*const Instruction) -> *const c_void;
            let point = std::mem::transmute::<*const (), Point>(function);
            let bytes = point(instruction);
            if bytes.is_null() {
                return 0;
            }
            std::ptr::copy_nonoverlapping(bytes.cast(), into.as_mut_ptr(), length);
            length
        }
    }
}

/// Whether the emulator has a function of that name.
pub(crate) fn exports(name: &CStr) -> bool {
    // SAFETY: the name is a string; what is found is not called.
    unsafe { !libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).is_null() }
}
