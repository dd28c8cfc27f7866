//! Finding what is kept for 2 MiB of address space: a table for each GiB in use, as a page table is.

use std::collections::HashMap;

use varve_model::Pid;

const SLOTS: usize = 512;
const EMPTY: u32 = u32::MAX;

/// For each process and each 2 MiB of its addresses, where something is kept: a position in a list of the caller's.
/// A question costs two loads where the one before it was about the same GiB. 2 KiB for each GiB in use.
#[derive(Default)]
pub struct ChunkIndex {
    tables: Vec<[u32; SLOTS]>,
    regions: HashMap<(Pid, u64), usize>,
    last: Option<((Pid, u64), usize)>,
}

impl ChunkIndex {
    #[inline]
    fn table(&mut self, key: (Pid, u64)) -> Option<usize> {
        if let Some((last, table)) = self.last
            && last == key
        {
            return Some(table);
        }
        let table = *self.regions.get(&key)?;
        self.last = Some((key, table));
        Some(table)
    }

    /// The position noted for a chunk; `number` is its address in units of 2 MiB.
    #[inline]
    pub fn get(&mut self, pid: Pid, number: u64) -> Option<usize> {
        let table = self.table((pid, number / SLOTS as u64))?;
        match self.tables[table][(number % SLOTS as u64) as usize] {
            EMPTY => None,
            position => Some(position as usize),
        }
    }

    /// Notes a position, below 2^32 - 1.
    pub fn set(&mut self, pid: Pid, number: u64, position: usize) {
        let key = (pid, number / SLOTS as u64);
        let table = self.table(key).unwrap_or_else(|| {
            self.tables.push([EMPTY; SLOTS]);
            self.regions.insert(key, self.tables.len() - 1);
            self.tables.len() - 1
        });
        let position = u32::try_from(position).unwrap_or(EMPTY);
        self.tables[table][(number % SLOTS as u64) as usize] = position;
    }

    /// How many GiB, of all processes, have tables.
    pub fn regions(&self) -> usize {
        self.tables.len()
    }

    /// Calls `each` with the positions noted for chunks `first` to `last` of a process.
    pub fn each(&mut self, pid: Pid, first: u64, last: u64, mut each: impl FnMut(usize)) {
        let per_region = SLOTS as u64;
        for region in first / per_region..=last / per_region {
            let Some(table) = self.table((pid, region)) else {
                continue;
            };
            let from = first.max(region * per_region) % per_region;
            let to = last.min(region * per_region + per_region - 1) % per_region;
            let slots = &self.tables[table][from as usize..=to as usize];
            for &position in slots.iter().filter(|&&p| p != EMPTY) {
                each(position as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_by_process_and_chunk() {
        let mut index = ChunkIndex::default();
        for (position, (pid, number)) in
            [(1, 3), (1, 511), (1, 512), (2, 3)].into_iter().enumerate()
        {
            index.set(Pid(pid), number, position);
        }
        assert_eq!(index.get(Pid(1), 3), Some(0));
        assert_eq!(index.get(Pid(2), 3), Some(3));
        assert_eq!(index.get(Pid(2), 4), None);
        assert_eq!(index.get(Pid(3), 3), None);
        assert_eq!(index.regions(), 3);
        let mut found = Vec::new();
        index.each(Pid(1), 4, 600, |position| found.push(position));
        assert_eq!(found, [1, 2]);
        index.each(Pid(1), 511, 511, |position| found.push(position));
        assert_eq!(found, [1, 2, 1]);
    }
}
