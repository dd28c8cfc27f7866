//! What is asked of the emulator while it translates a piece of code.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use iced_x86::{Code, Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic, OpAccess};

use crate::api::{self, Block, OnMemory, PluginId};
use crate::control::LENGTH;
use crate::count::{ATOMIC, EITHER, READ, WRITE, narrow, wide};
use crate::follow;

static VERSION: AtomicI32 = AtomicI32::new(1);
static INTERVALS: AtomicBool = AtomicBool::new(false);

/// Notes what does not change while the program runs.
pub(crate) fn prepare(version: c_int) {
    VERSION.store(version, Ordering::Relaxed);
    INTERVALS.store(LENGTH.load(Ordering::Relaxed) > 0, Ordering::Relaxed);
}

/// The widest operand that counts as one access: a vector register.
const WIDEST_OPERAND: usize = 64;
/// The emulator makes accesses of up to this many bytes in one piece.
const ONE_PIECE: usize = 8;

/// What an instruction does with memory.
struct Accesses {
    /// One of the kinds of `count`.
    kind: usize,
    /// Length of an operand that comes in pieces; 0 where none does.
    wide: usize,
}

/// The emulator is translating `block`.
pub(crate) extern "C" fn block(_: PluginId, block: *mut Block) {
    let version = VERSION.load(Ordering::Relaxed);
    let mut factory = InstructionInfoFactory::new();
    let mut bytes = [0; 16];
    // SAFETY: the emulator gave the block, which lives until this returns.
    let count = unsafe { api::qemu_plugin_tb_n_insns(block) };
    for i in 0..count {
        // SAFETY: as above, and the index is one of the block's.
        let instruction = unsafe { api::qemu_plugin_tb_get_insn(block, i) };
        follow::learn_base(instruction);
        let length = api::bytes_of(version, instruction, &mut bytes);
        let Some(does) = decode(&mut factory, &bytes[..length]) else {
            continue;
        };
        let in_pieces = does.wide > 0;
        let callback = if INTERVALS.load(Ordering::Relaxed) {
            callback::<true>(does.kind, in_pieces)
        } else {
            callback::<false>(does.kind, in_pieces)
        };
        // SAFETY: the instruction is the block's; the callback lives as long as the process.
        unsafe {
            api::qemu_plugin_register_vcpu_mem_cb(
                instruction,
                callback,
                api::NO_REGISTERS,
                api::ALL_ACCESSES,
                does.wide as *mut _,
            );
        }
    }
}

fn callback<const INTERVALS: bool>(kind: usize, in_pieces: bool) -> OnMemory {
    match (kind, in_pieces) {
        (READ, false) => narrow::<READ, INTERVALS>,
        (READ, true) => wide::<READ, INTERVALS>,
        (WRITE, false) => narrow::<WRITE, INTERVALS>,
        (WRITE, true) => wide::<WRITE, INTERVALS>,
        (ATOMIC, false) => narrow::<ATOMIC, INTERVALS>,
        (ATOMIC, true) => wide::<ATOMIC, INTERVALS>,
        (_, false) => narrow::<EITHER, INTERVALS>,
        (_, true) => wide::<EITHER, INTERVALS>,
    }
}

/// What an instruction may do; `None` where it touches no memory. Asking for less than everything makes those that do nothing
/// cheaper: the emulator computes floating-point numbers in functions, and prepares each for accesses that somebody
/// asked for.
fn decode(factory: &mut InstructionInfoFactory, bytes: &[u8]) -> Option<Accesses> {
    let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    if instruction.code() == Code::INVALID {
        // The emulator may know it.
        return Some(Accesses {
            kind: EITHER,
            wide: 0,
        });
    }
    let (mut reads, mut writes, mut odd) = (false, false, false);
    let mut wide = 0;
    for memory in factory.info(&instruction).used_memory() {
        match memory.access() {
            OpAccess::None | OpAccess::NoMemAccess => continue,
            OpAccess::Read | OpAccess::CondRead => reads = true,
            OpAccess::Write | OpAccess::CondWrite => writes = true,
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => (reads, writes) = (true, true),
        }
        let bytes = memory.memory_size().size();
        // The state of the processor, of which the emulator may read one part and write another.
        odd |= bytes == 0 || bytes > WIDEST_OPERAND;
        if (ONE_PIECE + 1..=WIDEST_OPERAND).contains(&bytes) {
            wide = bytes;
        }
    }
    let swaps = instruction.mnemonic() == Mnemonic::Xchg;
    let kind = match (reads, writes) {
        (false, false) => return None,
        (true, true) if instruction.has_lock_prefix() || swaps => ATOMIC,
        _ if odd => EITHER,
        (true, false) => READ,
        (false, true) => WRITE,
        (true, true) => EITHER,
    };
    Some(Accesses { kind, wide })
}
