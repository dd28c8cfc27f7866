//! Whether the unwind tables of a program can be evaluated in bounded time.
//!
//! Unwind tables may hold DWARF expressions, which have jumps: three bytes are an endless loop. The unwinder,
//! `framehop`, evaluates them without a bound. So whoever unwinds asks here first, and unwinds no further where the
//! answer is no. No compiler writes an expression with a jump into unwind tables, so nothing that is not hostile or
//! damaged is refused. What is looked at is what the unwinder would find, by the same search.
//!
//! Nothing here allocates memory: the preload library asks while its program allocates.

#![no_std]

use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame,
    EhFrameHdr, EndianSlice, FrameDescriptionEntry, LittleEndian, Operation, UnwindOffset,
    UnwindSection,
};

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// What describes one function is not longer than this. The rules are found by reading it from its beginning, so that a
/// long one costs its length at every frame.
const MAX_ENTRY_BYTES: usize = 64 << 10;

/// All entries of a table together are so many times as long as it at most, counting what they share with each.
const MAX_SHARED_READS: usize = 8;

/// The unwind tables of a module that has an index of them, and where these lie in its own addresses.
#[derive(Clone, Copy, Debug)]
pub struct Indexed<'a> {
    /// `.eh_frame_hdr`.
    pub index: &'a [u8],
    /// The address of it.
    pub index_address: u64,
    /// `.eh_frame`.
    pub frames: &'a [u8],
    /// The address of it.
    pub frames_address: u64,
    /// The address of `.text`, 0 where it is not known.
    pub text_address: u64,
    /// The address of `.got`, 0 where it is not known.
    pub got_address: u64,
}

impl Indexed<'_> {
    /// Whether unwinding at an address of the module ends. True where nothing is found there.
    pub fn is_bounded_at(&self, address: u64) -> bool {
        self.entry_is_bounded(address).unwrap_or(true)
    }

    /// None where the unwinder finds nothing.
    fn entry_is_bounded(&self, address: u64) -> Option<bool> {
        let bases = BaseAddresses::default()
            .set_eh_frame(self.frames_address)
            .set_eh_frame_hdr(self.index_address)
            .set_text(self.text_address)
            .set_got(self.got_address);
        let header = EhFrameHdr::new(self.index, LittleEndian)
            .parse(&bases, 8)
            .ok()?;
        let table = header.table()?;
        let found = table.lookup(address, &bases).ok()?;
        let offset = table.pointer_to_offset(found).ok()?;
        let frames = eh_frame(self.frames);
        let entry = frames
            .fde_from_offset(&bases, offset, EhFrame::cie_from_offset)
            .ok()?;
        Some(is_bounded(&frames, &bases, &entry))
    }
}

/// Whether unwinding by a `.eh_frame` without an index ends, wherever in the module.
pub fn is_eh_frame_bounded(frames: &[u8], bases: &BaseAddresses) -> bool {
    are_all_bounded(&eh_frame(frames), bases, frames.len())
}

/// Whether unwinding by a `.debug_frame` ends, wherever in the module.
pub fn is_debug_frame_bounded(frames: &[u8], bases: &BaseAddresses) -> bool {
    let mut section = DebugFrame::new(frames, LittleEndian);
    section.set_address_size(8);
    are_all_bounded(&section, bases, frames.len())
}

pub use gimli::BaseAddresses as Addresses;

fn eh_frame(frames: &[u8]) -> EhFrame<Bytes<'_>> {
    let mut frames = EhFrame::new(frames, LittleEndian);
    frames.set_address_size(8);
    frames
}

fn are_all_bounded<'a, S: UnwindSection<Bytes<'a>>>(
    frames: &S,
    bases: &BaseAddresses,
    bytes: usize,
) -> bool {
    // Functions share what they have in common, which is short; a long one would be read for each of them.
    let mut budget = MAX_SHARED_READS * bytes + MAX_ENTRY_BYTES;
    let mut entries = frames.entries(bases);
    // The unwinder makes its own index in this way, and does without one where an entry cannot be read.
    let mut last: Option<CommonInformationEntry<Bytes<'a>>> = None;
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let entry = partial.parse(|frames, bases, offset| {
            if let Some(known) = &last
                && known.offset() == UnwindOffset::into(offset)
            {
                return Ok(known.clone());
            }
            let found = frames.cie_from_offset(bases, offset)?;
            last = Some(found.clone());
            Ok(found)
        });
        let Ok(entry) = entry else {
            return true;
        };
        let cost = entry.entry_len().saturating_add(entry.cie().entry_len());
        match budget.checked_sub(cost) {
            Some(rest) if is_bounded(frames, bases, &entry) => budget = rest,
            _ => return false,
        }
    }
    true
}

fn is_bounded<'a, S: UnwindSection<Bytes<'a>>>(
    frames: &S,
    bases: &BaseAddresses,
    entry: &FrameDescriptionEntry<Bytes<'a>>,
) -> bool {
    let common = entry.cie();
    if entry.entry_len().saturating_add(common.entry_len()) > MAX_ENTRY_BYTES {
        return false;
    }
    let mut both = [
        common.instructions(frames, bases),
        entry.instructions(frames, bases),
    ];
    both.iter_mut().all(|instructions| {
        // What cannot be read ends the unwinder's reading too.
        while let Ok(Some(instruction)) = instructions.next() {
            let (CallFrameInstruction::DefCfaExpression { expression }
            | CallFrameInstruction::Expression { expression, .. }
            | CallFrameInstruction::ValExpression { expression, .. }) = instruction
            else {
                continue;
            };
            let Ok(expression) = expression.get(frames) else {
                continue;
            };
            let mut operations = expression.operations(common.encoding());
            while let Ok(Some(operation)) = operations.next() {
                // A jump forward may lead into the middle of an operation, and so anywhere.
                if let Operation::Bra { .. } | Operation::Skip { .. } = operation {
                    return false;
                }
            }
        }
        true
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    const TEXT: u64 = 0x1000;
    const FRAMES: u64 = 0x2000;
    const INDEX: u64 = 0x3000;

    /// A table with one function of 16 bytes at `TEXT`, whose rule begins with these instructions.
    fn frames(instructions: &[u8]) -> Vec<u8> {
        let entry = |body: &[u8]| {
            let mut entry = Vec::from((body.len() as u32).to_le_bytes());
            entry.extend(body);
            entry
        };
        // Version 1, "zR", code by 1, data by -8, return address in 16, pointers absolute, 8 bytes.
        let common = entry(b"\0\0\0\0\x01zR\0\x01\x78\x10\x01\x04\x0c\x07\x08\x90\x01\0\0\0\0");
        let mut body = Vec::from((common.len() as u32 + 4).to_le_bytes());
        body.extend(TEXT.to_le_bytes());
        body.extend(16_u64.to_le_bytes());
        body.push(0);
        body.extend(instructions);
        let mut all = common;
        all.extend(entry(&body));
        all.extend([0; 4]);
        all
    }

    /// The index of it: `.eh_frame_hdr` with absolute 8-byte pointers.
    fn index(first: u64) -> Vec<u8> {
        let mut index = std::vec![1, 4, 3, 4];
        index.extend(FRAMES.to_le_bytes());
        index.extend(1_u32.to_le_bytes());
        index.extend(TEXT.to_le_bytes());
        index.extend((FRAMES + first).to_le_bytes());
        index
    }

    fn verdicts(instructions: &[u8]) -> [bool; 2] {
        let frames = frames(instructions);
        let first = 4 + u64::from(frames[0]);
        let index = index(first);
        let indexed = Indexed {
            index: &index,
            index_address: INDEX,
            frames: &frames,
            frames_address: FRAMES,
            text_address: TEXT,
            got_address: 0,
        };
        assert!(
            indexed.entry_is_bounded(TEXT + 4).is_some(),
            "the test's own table cannot be read"
        );
        let bases = BaseAddresses::default().set_eh_frame(FRAMES);
        [
            indexed.is_bounded_at(TEXT + 4),
            is_eh_frame_bounded(&frames, &bases),
        ]
    }

    #[test]
    fn what_compilers_write_is_bounded() {
        // DW_CFA_def_cfa_offset 16, DW_CFA_advance_loc 1.
        assert_eq!(verdicts(&[0x0e, 16, 0x41]), [true; 2]);
        // The linker's expression for a PLT: breg7 8, breg16 0, lit15, and, lit11, ge, lit3, shl, plus.
        let plt = [
            0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
        ];
        assert_eq!(verdicts(&plt), [true; 2]);
    }

    #[test]
    fn jumps_are_not_bounded() {
        // DW_CFA_def_cfa_expression of DW_OP_skip -3.
        assert_eq!(verdicts(&[0x0f, 3, 0x2f, 0xfd, 0xff]), [false; 2]);
        // DW_CFA_val_expression of register 6: lit1, DW_OP_bra -4.
        assert_eq!(verdicts(&[0x16, 6, 4, 0x31, 0x28, 0xfc, 0xff]), [false; 2]);
        // DW_CFA_expression of register 16, after another instruction.
        assert_eq!(verdicts(&[0x41, 0x10, 16, 3, 0x2f, 0xfd, 0xff]), [false; 2]);
    }

    #[test]
    fn an_endless_entry_is_not_bounded() {
        assert_eq!(verdicts(&std::vec![0x41; MAX_ENTRY_BYTES]), [false; 2]);
    }

    #[test]
    fn what_is_cut_says_nothing() {
        let frames = frames(&[0x0f, 3, 0x2f, 0xfd, 0xff]);
        let bases = BaseAddresses::default().set_eh_frame(FRAMES);
        for cut in 0..frames.len() {
            // It must not panic; a cut table has no entry to refuse before its end is there.
            let _ = is_eh_frame_bounded(&frames[..cut], &bases);
        }
    }
}
