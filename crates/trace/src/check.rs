//! Whether a trace can be read as a whole.

use varve_model::Capability;

use crate::tables::*;
use crate::{Trace, TraceError};

impl Trace {
    /// Reads every row of every table that a finished trace has.
    ///
    /// # Errors
    /// The first table that is damaged, or is no regular file.
    pub fn check(&self) -> Result<(), TraceError> {
        self.read_through::<IntervalRow>()?;
        self.read_through::<TouchRow>()?;
        self.read_through::<FaultRow>()?;
        self.read_through::<SampleRow>()?;
        self.read_through::<CountRow>()?;
        self.read_through::<ObjectRow>()?;
        self.read_through::<SiteRow>()?;
        self.read_through::<SymbolRow>()?;
        self.read_through::<MappingRow>()?;
        self.read_through::<ThreadRow>()?;
        self.read_through::<ProcessRow>()?;
        self.read_through::<CounterRow>()?;
        self.read_through::<LossRow>()?;
        if self.has_operations() {
            self.read_through::<OperationRow>()?;
            self.read_through::<OperationTimeRow>()?;
            self.read_through::<OperationChargeRow>()?;
            self.read_through::<HeapMemoryRow>()?;
            self.read_through::<SampledBlockRow>()?;
            self.read_through::<HeapPagesRow>()?;
            self.read_through::<SparsePagesRow>()?;
            self.read_through::<SharedLineRow>()?;
            self.read_through::<BlockChoiceRow>()?;
        }
        Ok(())
    }

    /// Whether it has the tables of allocator operations.
    #[must_use]
    pub fn has_operations(&self) -> bool {
        let has = &self.manifest.capabilities;
        has.contains(&Capability::AllocatorOperations)
    }

    fn read_through<R: Row>(&self) -> Result<(), TraceError> {
        self.batches::<R>()?.try_for_each(|batch| batch.map(drop))
    }
}
