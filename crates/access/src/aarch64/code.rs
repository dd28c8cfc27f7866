//! A stretch of code, and where a thread in it accesses memory.

use std::ops::Range;

use varve_model::Address;

use super::evaluate::step;
use super::flags::holds;
use super::history::History;
use super::instruction::{Condition, Flow, Instruction};
use super::memory::Memory;
use super::registers::Registers;
use crate::{Access, Located, Place, Steps, Undecoded};

/// Instructions up to the next access that are looked at.
const AHEAD: usize = 48;
/// Instructions before the thread's that registers are computed from.
const BACK: usize = 64;

/// Decoded code: a function, or a piece of one.
#[derive(Debug)]
pub struct Code {
    /// What is no instruction is none: data may lie between functions.
    instructions: Vec<Option<Instruction>>,
    /// Where branches and calls within the code go, sorted.
    targets: Vec<u64>,
    range: Range<u64>,
}

impl Code {
    /// Decodes bytes that lie at an address, which is a multiple of four; bytes beyond the last whole word do not count.
    pub fn decode(bytes: &[u8], address: Address) -> Code {
        let (words, _) = bytes.as_chunks::<4>();
        let at = |position: usize| address.0.wrapping_add(4 * position as u64);
        let instructions: Vec<Option<Instruction>> = words
            .iter()
            .enumerate()
            .map(|(position, word)| Instruction::decode(u32::from_le_bytes(*word), at(position)))
            .collect();
        let range = address.0..at(words.len()).max(address.0);
        let mut targets: Vec<u64> = instructions
            .iter()
            .flatten()
            .filter_map(|i| match i.flow() {
                Flow::Jump(target) | Flow::Branch(target, _) => Some(target),
                Flow::Away => i.call(),
                Flow::Next => None,
            })
            .filter(|target| range.contains(target))
            .collect();
        targets.sort_unstable();
        targets.dedup();
        Code {
            instructions,
            targets,
            range,
        }
    }

    /// The addresses that it covers.
    pub fn range(&self) -> Range<Address> {
        Address(self.range.start)..Address(self.range.end)
    }

    fn position(&self, ip: u64) -> Option<usize> {
        let from = ip.checked_sub(self.range.start)?;
        (ip < self.range.end && from.is_multiple_of(4)).then_some(from as usize / 4)
    }

    fn at(&self, position: usize) -> Option<&Instruction> {
        self.instructions.get(position)?.as_ref()
    }

    fn is_target(&self, ip: u64) -> bool {
        self.targets.binary_search(&ip).is_ok()
    }

    /// Finds the access that a thread which stands before the instruction at `ip` waits for.
    ///
    /// # Errors
    /// Why there is no answer that is certain.
    pub fn locate(
        &self,
        ip: Address,
        registers: &Registers,
        steps: Steps,
    ) -> Result<Located, Undecoded> {
        let at = self.position(ip.0).ok_or(Undecoded::Invalid)?;
        self.at(at).ok_or(Undecoded::Invalid)?;
        if steps != Steps::NotBehind
            && let Some(found) = self.behind(at, registers, steps)
        {
            // It is known what the thread waited for, even where it is not known where that lies: the next access is not it.
            return found.map(|access| located(Place::Behind, access));
        }
        self.ahead(at, registers)
    }

    /// The access of the instruction that ran last, where it is certain which that was.
    fn behind(
        &self,
        at: usize,
        registers: &Registers,
        steps: Steps,
    ) -> Option<Result<Access, Undecoded>> {
        let last = self.fallen_from(at, steps)?;
        let operand = match Memory::of(&last) {
            Memory::Known(operand) => operand,
            Memory::Unknown(why) => return Some(Err(why)),
            Memory::None | Memory::Opaque => return None,
        };
        let mut block = vec![last];
        let mut first = at - 1;
        while block.len() < BACK
            && let Some(before) = self.fallen_from(first, steps)
        {
            block.push(before);
            first -= 1;
        }
        block.reverse();
        let before = History::new(&block, registers).before_last();
        Some(operand.access(&before).ok_or(Undecoded::Overwritten))
    }

    /// The instruction before a position, if that one surely ran before it.
    fn fallen_from(&self, position: usize, steps: Steps) -> Option<Instruction> {
        let here = self.at(position)?;
        let before = self.at(position.checked_sub(1)?)?;
        let falls = matches!(before.flow(), Flow::Next | Flow::Branch(..));
        let may_come = steps != Steps::Blind && self.is_target(here.address);
        (falls && !may_come).then_some(*before)
    }

    /// The next access.
    fn ahead(&self, at: usize, registers: &Registers) -> Result<Located, Undecoded> {
        let mut registers = registers.clone();
        let mut position = at;
        for distance in 0..AHEAD {
            let i = self.at(position).ok_or(Undecoded::Path)?;
            match Memory::of(i) {
                Memory::Known(operand) => {
                    let access = operand.access(&registers).ok_or(Undecoded::Register)?;
                    let place = if distance == 0 {
                        Place::At
                    } else {
                        Place::Ahead
                    };
                    return Ok(located(place, access));
                }
                Memory::Unknown(why) => return Err(why),
                Memory::Opaque => return Err(Undecoded::Invalid),
                Memory::None => {}
            }
            let next = match i.flow() {
                Flow::Next => i.next(),
                Flow::Jump(target) => target,
                Flow::Branch(target, condition) => {
                    if is_taken(condition, &registers).ok_or(Undecoded::Path)? {
                        target
                    } else {
                        i.next()
                    }
                }
                Flow::Away => return Err(Undecoded::Path),
            };
            step(i, &mut registers);
            position = self.position(next).ok_or(Undecoded::Path)?;
        }
        Err(Undecoded::Path)
    }
}

fn is_taken(condition: Condition, registers: &Registers) -> Option<bool> {
    match condition {
        Condition::Flags(code) => Some(holds(code, registers.flags?)),
        Condition::Zero {
            register,
            mask,
            zero,
        } => {
            let value = match register {
                None => 0,
                Some(number) => registers.get(number)?,
            };
            Some((value & mask == 0) == zero)
        }
        Condition::Unknown => None,
    }
}

fn located(place: Place, access: Access) -> Located {
    Located {
        place,
        accesses: vec![access],
    }
}
