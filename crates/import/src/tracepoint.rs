//! The fields of a tracepoint, as the kernel that recorded it describes them.

use std::collections::HashMap;

use crate::lines::text;
use crate::numbers::decimal;
use varve_perf::Bytes;

/// Where the fields of a tracepoint's raw records are.
#[derive(Debug)]
pub(crate) struct Tracepoint {
    id: u64,
    /// Offset and size, by name.
    fields: HashMap<String, (usize, usize)>,
}

impl Tracepoint {
    /// Finds the description in a file's tracing data, which holds the kernel's `format` files word for word.
    pub(crate) fn find(tracing: &[u8], name: &str) -> Option<Tracepoint> {
        let begin = format!("name: {name}\n");
        let at = memchr::memmem::find(tracing, begin.as_bytes())? + begin.len();
        let rest = &tracing[at..];
        let end = memchr::memmem::find(rest, b"print fmt:").unwrap_or(rest.len());
        let mut found = Tracepoint {
            id: u64::MAX,
            fields: HashMap::new(),
        };
        for line in rest[..end].split(|b| *b == b'\n') {
            if let Some(id) = line.strip_prefix(b"ID: ") {
                found.id = decimal(id.trim_ascii())?;
            }
            let Some(field) = line.trim_ascii().strip_prefix(b"field:") else {
                continue;
            };
            let mut parts = field.split(|b| *b == b';').map(|p| p.trim_ascii());
            let declared = parts.next()?;
            let number = |part: Option<&[u8]>, key: &[u8]| {
                usize::try_from(decimal(part?.strip_prefix(key)?)?).ok()
            };
            let offset = number(parts.next(), b"offset:")?;
            let size = number(parts.next(), b"size:")?;
            let word = declared.rsplit(|b| b.is_ascii_whitespace()).next()?;
            found.fields.insert(text(word), (offset, size));
        }
        Some(found).filter(|t| t.id != u64::MAX)
    }

    /// Whether a raw record is of this tracepoint.
    pub(crate) fn is(&self, raw: &[u8], big: bool) -> bool {
        Bytes::new(raw, big).u16().map(u64::from) == Some(self.id)
    }

    /// A field of a raw record; none where it has none, or is too short.
    pub(crate) fn field(&self, raw: &[u8], name: &str, big: bool) -> Option<u64> {
        let (offset, size) = *self.fields.get(name)?;
        let bytes = raw.get(offset..offset.checked_add(size)?)?;
        match size {
            1..=8 => Bytes::new(bytes, big).number(size),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "x\0name: damon_aggregated\nID: 700\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\tfield:unsigned long target_id;\toffset:8;\tsize:8;\tsigned:0;\n\tfield:unsigned int nr_accesses;\toffset:40;\tsize:4;\tsigned:0;\n\nprint fmt: \"target_id=%lu\"\n";

    #[test]
    fn fields_are_found_in_either_byte_order() {
        let tracepoint = Tracepoint::find(FORMAT.as_bytes(), "damon_aggregated").unwrap();
        let mut raw = vec![0; 44];
        raw[..2].copy_from_slice(&700u16.to_le_bytes());
        raw[8..16].copy_from_slice(&0xffff_8881_0000_0000u64.to_le_bytes());
        raw[40..44].copy_from_slice(&3u32.to_le_bytes());
        assert!(tracepoint.is(&raw, false));
        assert!(!tracepoint.is(&raw, true));
        assert_eq!(
            tracepoint.field(&raw, "target_id", false),
            Some(0xffff_8881_0000_0000)
        );
        assert_eq!(tracepoint.field(&raw, "nr_accesses", false), Some(3));
        assert_eq!(tracepoint.field(&raw[..43], "nr_accesses", false), None);
        assert_eq!(tracepoint.field(&raw, "age", false), None);
        assert!(Tracepoint::find(FORMAT.as_bytes(), "damon").is_none());
    }
}
