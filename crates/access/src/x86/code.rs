//! A stretch of code, and where a thread in it accesses memory.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpKind};
use varve_model::Address;

use super::evaluate::{holds, step};
use super::history::History;
use super::operands::{accesses, touches_memory};
use super::registers::Registers;
use crate::{Located, Memory, Place, Steps, Undecoded};

/// Instructions up to the next access that are looked at.
const AHEAD: usize = 48;
/// Instructions before the thread's that registers are computed from.
const BACK: usize = 64;

/// Decoded code: a function, or a piece of one whose first byte begins an instruction.
#[derive(Debug)]
pub struct Code {
    instructions: Vec<Instruction>,
    /// Where branches within the code go, sorted.
    targets: Vec<u64>,
    range: Range<u64>,
}

impl Code {
    /// Decodes bytes that lie at an address, up to the first that are no instruction.
    pub fn decode(bytes: &[u8], address: Address) -> Code {
        let mut instructions = Vec::with_capacity(bytes.len() / 4);
        let mut decoder = Decoder::with_ip(64, bytes, address.0, DecoderOptions::NONE);
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                break;
            }
            instructions.push(instruction);
        }
        let end = instructions.last().map_or(address.0, Instruction::next_ip);
        let mut targets: Vec<u64> = instructions
            .iter()
            .filter(|i| {
                matches!(
                    i.flow_control(),
                    FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
                )
            })
            .map(Instruction::near_branch_target)
            .filter(|target| (address.0..end).contains(target))
            .collect();
        targets.sort_unstable();
        targets.dedup();
        Code {
            instructions,
            targets,
            range: address.0..end,
        }
    }

    /// The addresses that it covers.
    pub fn range(&self) -> Range<Address> {
        Address(self.range.start)..Address(self.range.end)
    }

    /// Whether an instruction begins at the address.
    pub fn has_instruction_at(&self, ip: Address) -> bool {
        self.position(ip.0).is_some()
    }

    fn position(&self, ip: u64) -> Option<usize> {
        self.instructions
            .binary_search_by_key(&ip, Instruction::ip)
            .ok()
    }

    fn is_target(&self, ip: u64) -> bool {
        self.targets.binary_search(&ip).is_ok()
    }

    /// Finds the access that a thread which stands before the instruction at `ip` waits for. `memory` is what the thread's
    /// memory held when it stood there.
    ///
    /// # Errors
    /// Why there is no answer that is certain.
    pub fn locate(
        &self,
        ip: Address,
        registers: &Registers,
        memory: &dyn Memory,
        steps: Steps,
    ) -> Result<Located, Undecoded> {
        let at = self.position(ip.0).ok_or(Undecoded::Invalid)?;
        if steps != Steps::NotBehind
            && let Some(found) = self.behind(at, registers, memory, steps)
        {
            // It is known what the thread waited for, even where it is not known where that lies: the next access is not it.
            return found;
        }
        self.ahead(at, registers)
    }

    /// The access of the instruction that ran last, where it is certain which that was.
    fn behind(
        &self,
        at: usize,
        registers: &Registers,
        memory: &dyn Memory,
        steps: Steps,
    ) -> Option<Result<Located, Undecoded>> {
        let is_target = |ip: u64| steps != Steps::Blind && self.is_target(ip);
        let mut factory = InstructionInfoFactory::new();
        let last = self.instructions.get(at.checked_sub(1)?)?;
        let ip = self.instructions[at].ip();
        // A branch may have led here instead.
        if !falls_through(last) || last.next_ip() != ip || is_target(ip) {
            return None;
        }
        if !touches_memory(last, &mut factory) {
            return None;
        }
        // How often it ran, if at all, is gone with its counter.
        if last.is_string_instruction() && (last.has_rep_prefix() || last.has_repne_prefix()) {
            return None;
        }
        let mut first = at - 1;
        while first > 0 && at - first < BACK {
            let before = &self.instructions[first - 1];
            let here = self.instructions[first].ip();
            if is_target(here) || !falls_through(before) || before.next_ip() != here {
                break;
            }
            first -= 1;
        }
        let block = &self.instructions[first..at];
        let before = History::new(block, registers, memory, steps).before_last();
        match accesses(last, &before, &mut factory) {
            Ok(accesses) if accesses.is_empty() => None,
            Ok(accesses) => Some(Ok(Located {
                place: Place::Behind,
                accesses,
            })),
            // The address came from registers, and what they held then is not known.
            Err(Undecoded::Register) => Some(Err(Undecoded::Overwritten)),
            Err(why) => Some(Err(why)),
        }
    }

    /// The next access.
    fn ahead(&self, at: usize, registers: &Registers) -> Result<Located, Undecoded> {
        let mut factory = InstructionInfoFactory::new();
        let mut registers = registers.clone();
        let mut position = at;
        for distance in 0..AHEAD {
            let instruction = self.instructions.get(position).ok_or(Undecoded::Path)?;
            if touches_memory(instruction, &mut factory) {
                let accesses = accesses(instruction, &registers, &mut factory)?;
                if !accesses.is_empty() {
                    return Ok(Located {
                        place: if distance == 0 {
                            Place::At
                        } else {
                            Place::Ahead
                        },
                        accesses,
                    });
                }
            }
            let next = match instruction.flow_control() {
                FlowControl::Next => instruction.next_ip(),
                FlowControl::UnconditionalBranch if is_direct(instruction) => {
                    instruction.near_branch_target()
                }
                FlowControl::ConditionalBranch => {
                    let flags = registers.flags.ok_or(Undecoded::Path)?;
                    match holds(instruction.condition_code(), flags) {
                        Some(true) => instruction.near_branch_target(),
                        Some(false) => instruction.next_ip(),
                        None => return Err(Undecoded::Path),
                    }
                }
                _ => return Err(Undecoded::Path),
            };
            step(instruction, &mut registers, &mut factory);
            position = self.position(next).ok_or(Undecoded::Path)?;
        }
        Err(Undecoded::Path)
    }
}

fn is_direct(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::NearBranch64
}

/// Whether the instruction after this one is surely what runs next, if no branch is taken.
fn falls_through(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Next | FlowControl::ConditionalBranch
    )
}
