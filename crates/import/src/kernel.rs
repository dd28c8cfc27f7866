//! Whether the kernel of a recording is the one that runs here.
//!
//! Names of its functions are known for that one alone: another build has others, and the same build lies elsewhere after each start.

use varve_symbols::BuildId;

/// What a recording says of its kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// The symbol whose address the recording has, such as `_text`.
    pub(crate) symbol: String,
    pub(crate) address: u64,
    pub(crate) build_id: Option<String>,
}

impl Kernel {
    /// From the path and the offset of the mapping as which perf tells of the kernel: `[kernel.kallsyms]_text`.
    pub(crate) fn of_mapping(path: &str, offset: u64) -> Option<Kernel> {
        Some(Kernel {
            symbol: path.strip_prefix(Kernel::MODULE)?.to_owned(),
            address: offset,
            build_id: None,
        })
    }

    /// What perf calls the file of the kernel.
    pub(crate) const MODULE: &str = "[kernel.kallsyms]";

    /// Whether it runs here, since the same start.
    pub(crate) fn runs_here(&self) -> bool {
        let notes = std::fs::read("/sys/kernel/notes").unwrap_or_default();
        let id = build_id(&notes).map(|id| id.to_string());
        id.is_some()
            && id == self.build_id
            && std::fs::read_to_string("/proc/kallsyms").is_ok_and(|text| self.is_in(&text))
    }

    /// Whether `/proc/kallsyms` has the symbol at that address.
    fn is_in(&self, kallsyms: &str) -> bool {
        let is_it = |line: &str| {
            let mut fields = line.split_whitespace();
            let address = fields.next().and_then(|a| u64::from_str_radix(a, 16).ok());
            // Whoever may not see addresses sees zeros.
            address == Some(self.address)
                && self.address != 0
                && fields.nth(1) == Some(self.symbol.as_str())
        };
        kallsyms.lines().any(is_it)
    }
}

/// The build id among the kernel's notes, which follow each other: the sizes of name and content, the type, the two.
fn build_id(notes: &[u8]) -> Option<BuildId> {
    const BUILD_ID: u32 = 3;
    let mut rest = notes;
    loop {
        let (head, behind) = rest.split_at_checked(12)?;
        let word = |at: usize| {
            let bytes = head.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_ne_bytes(bytes))
        };
        let (name_bytes, bytes) = (word(0)? as usize, word(4)? as usize);
        let (name, behind) = behind.split_at_checked(name_bytes.checked_next_multiple_of(4)?)?;
        if word(8)? == BUILD_ID && name.starts_with(b"GNU\0") {
            return Some(BuildId(behind.get(..bytes)?.to_vec()));
        }
        rest = behind.get(bytes.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, content.len() as u32, kind] {
            bytes.extend(word.to_ne_bytes());
        }
        for part in [name, content] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_build_id_stands_among_other_notes() {
        let notes = [
            note(b"Xen\0", 6, b"linux"),
            note(b"GNU\0", 1, &[1; 16]),
            note(b"GNU\0", 3, &[0xab; 20]),
        ]
        .concat();
        let id = build_id(&notes).map(|id| id.to_string());
        assert_eq!(id, Some("ab".repeat(20)));
        for cut in [0, 5, 20, notes.len() - 1] {
            assert_eq!(build_id(&notes[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn a_kernel_is_known_by_where_it_lies() {
        let kernel = Kernel::of_mapping("[kernel.kallsyms]_text", 0xffff_ffff_8100_0000).unwrap();
        let line = |address: u64, name: &str| format!("{address:016x} T {name}\n");
        assert!(kernel.is_in(&line(kernel.address, "_text")));
        assert!(!kernel.is_in(&line(kernel.address + 0x20_0000, "_text")));
        assert!(!kernel.is_in(&line(kernel.address, "_stext")));
        let hidden = Kernel {
            address: 0,
            ..kernel.clone()
        };
        assert!(!hidden.is_in(&line(0, "_text")));
        // Without a build id nothing says that it is this one.
        assert!(!kernel.runs_here());
        assert_eq!(Kernel::of_mapping("/usr/bin/true", 1), None);
    }
}
