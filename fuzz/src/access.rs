use varve_access::{Copies, Steps, aarch64, x86};
use varve_model::Address;

/// Bytes of registers before the code.
const REGISTERS: usize = 8 * 16;

/// Asks where a thread accesses memory, with every instruction of the code as the one at which it stands
pub(crate) fn run(bytes: &[u8]) {
    let Some((registers, code)) = bytes.split_at_checked(REGISTERS) else {
        return;
    };
    // Long code is decoded like short code.
    let code = &code[..code.len().min(512)];
    let values: Vec<Option<u64>> = registers
        .as_chunks::<8>()
        .0
        .iter()
        // Some are not known.
        .map(|v| Some(u64::from_le_bytes(*v)).filter(|v| v % 7 != 0))
        .collect();
    let at = Address(values[0].unwrap_or(0) & !3);
    let x86_registers = x86::Registers {
        general: std::array::from_fn(|n| values[n]),
        flags: values[1],
        fs_base: values[2],
        gs_base: values[3],
        vectors: None,
    };
    let arm_registers = aarch64::Registers {
        general: std::array::from_fn(|n| values[n % 16]),
        sp: values[4],
        flags: values[5],
    };
    // Some of the stack lies where some registers point.
    let parts = [(Address(values[4].unwrap_or(0)), code)];
    let stack = Copies { parts: &parts };
    let (x86_code, arm_code) = (x86::Code::decode(code, at), aarch64::Code::decode(code, at));
    for offset in 0..code.len() as u64 {
        let ip = Address(at.0.wrapping_add(offset));
        for steps in [Steps::All, Steps::NotBehind] {
            let _ = x86_code.locate(ip, &x86_registers, &stack, steps);
            if let Ok(found) = arm_code.locate(ip, &arm_registers, steps) {
                assert!(found.accesses.iter().all(|a| (1..=64).contains(&a.bytes.0)));
            }
        }
    }
    let _ = x86::boundary_before(code);
}
