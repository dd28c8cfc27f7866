//! From records of births and deaths to whole lives, without holding either.

use varve_model::{ObjectId, Time};
use varve_trace::tables::{BirthRow, DeathRow};
use varve_trace::{Row, Trace, TraceError};

/// Objects whose deaths are held at a time, 8 MiB of them.
const WINDOW: u64 = 1 << 20;
/// Stands for the end of an object that has none.
const NEVER: Time = Time(u64::MAX);

/// When objects died. The deaths of a window of objects are gathered at a time: deaths are written as they
/// happen, in no order of objects, and there may be more of them than fit into memory.
pub struct Deaths<'a> {
    trace: &'a Trace,
    window: u64,
    /// By the distance of an object from the window's first.
    died: Vec<Time>,
    /// The object after the last that was asked for.
    next: ObjectId,
    /// No object of an honest trace has a number like this or above.
    limit: u64,
}

impl<'a> Deaths<'a> {
    /// Deaths of a trace whose births and deaths are still raw.
    ///
    /// # Errors
    /// Births that cannot be counted.
    pub fn new(trace: &'a Trace) -> Result<Self, TraceError> {
        Ok(Deaths {
            trace,
            window: u64::MAX,
            died: Vec::new(),
            next: ObjectId(0),
            limit: trace.count::<BirthRow>()?.saturating_add(WINDOW),
        })
    }

    /// When an object died; `None` where it outlived the recording. Objects are asked for in the order
    /// of their numbers, which is the order of their births.
    ///
    /// # Errors
    /// Deaths that cannot be read, and numbers that no recorder gives: they would have the deaths read
    /// again and again.
    pub fn of(&mut self, birth: &BirthRow) -> Result<Option<Time>, TraceError> {
        let object = birth.object;
        if object < self.next || object.0 >= self.limit {
            return Err(TraceError::BadTable {
                path: self.trace.folder().join("parts").join(BirthRow::TABLE.name),
                message: format!("object {} is out of order", object.0),
            });
        }
        self.next = ObjectId(object.0 + 1);
        if self.window != object.0 / WINDOW {
            self.gather(object.0 / WINDOW)?;
        }
        let died = self.died.get((object.0 % WINDOW) as usize);
        // Clocks are read before and after what they report.
        Ok(died
            .filter(|d| **d != NEVER)
            .map(|d| (*d).max(birth.born_ns)))
    }

    fn gather(&mut self, window: u64) -> Result<(), TraceError> {
        self.window = window;
        self.died.clear();
        let first = window * WINDOW;
        let numbers = first..=first + (WINDOW - 1);
        for rows in self
            .trace
            .batches_among::<DeathRow>("object", numbers.clone())?
        {
            for row in rows?.iter().filter(|r| numbers.contains(&r.object.0)) {
                let at = (row.object.0 - first) as usize;
                if at >= self.died.len() {
                    self.died.resize(at + 1, NEVER);
                }
                // The first counts, should there be two.
                self.died[at] = self.died[at].min(row.died_ns);
            }
        }
        Ok(())
    }
}
