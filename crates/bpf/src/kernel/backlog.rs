//! Records that wait outside the ring

/// Records that were taken out of the ring and not handed out yet, each behind its length
#[derive(Default)]
pub(super) struct Backlog {
    bytes: Vec<u8>,
}

impl Backlog {
    /// Bytes above which no more is taken out; the ring comes on top
    const MAX: usize = 4 << 20;

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= Backlog::MAX
    }

    pub(super) fn put(&mut self, record: &[u8]) {
        self.bytes.extend((record.len() as u64).to_ne_bytes());
        self.bytes.extend(record);
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (length, tail) = rest.split_first_chunk()?;
            let (record, tail) = tail.split_at_checked(u64::from_ne_bytes(*length) as usize)?;
            rest = tail;
            Some(record)
        })
    }
}
