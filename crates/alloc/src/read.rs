//! The tables, read once.

use std::collections::HashMap;

use varve_model::{Loss, Pid, SiteId, Tid, Time};
use varve_trace::tables::{
    BlockChoiceRow, HeapMemoryRow, HeapPagesRow, OperationChargeRow, OperationRow,
    OperationTimeRow, ProcessRow, SharedLineRow, SiteRow, ThreadRow,
};
use varve_trace::{Trace, TraceError};

/// What a judgement is made of.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) operations: Vec<OperationRow>,
    pub(crate) times: Vec<OperationTimeRow>,
    pub(crate) charges: Vec<OperationChargeRow>,
    /// Charges of the work of counting.
    pub(crate) counting: Vec<OperationChargeRow>,
    pub(crate) memory: Vec<HeapMemoryRow>,
    pub(crate) pages: Vec<HeapPagesRow>,
    pub(crate) lines: Vec<SharedLineRow>,
    pub(crate) choices: Vec<BlockChoiceRow>,
    /// Changes of mappings that were not seen.
    pub(crate) lost_mappings: u64,
    pub(crate) sites: HashMap<SiteId, SiteRow>,
    pub(crate) threads: HashMap<(Pid, Tid), String>,
    pub(crate) processes: HashMap<Pid, String>,
    /// Processes into which the preload library did not come: their programs, and the words for why.
    pub(crate) unreached: Vec<(Pid, String, String)>,
    /// The command's own process, and that word, where it came not into the last program that this ran.
    pub(crate) unreached_command: Option<(Pid, String)>,
    /// When processes ended.
    pub(crate) ends: HashMap<Pid, Time>,
    /// When the programs of a process began, each after the one before it.
    pub(crate) begins: HashMap<Pid, Vec<Time>>,
}

impl Tables {
    pub(crate) fn read(trace: &Trace) -> Result<Tables, TraceError> {
        let sites: Vec<SiteRow> = trace.rows()?;
        let threads: Vec<ThreadRow> = trace.rows()?;
        let processes: Vec<ProcessRow> = trace.rows()?;
        let charges: Vec<OperationChargeRow> = trace.rows()?;
        let is_own = |row: &OperationChargeRow| row.operation.as_deref() == Some("counting");
        let (counting, charges) = charges.into_iter().partition(is_own);
        let losses = &trace.manifest.losses;
        let command = Pid(trace.manifest.target.pid);
        let of_command = processes.iter().filter(|p| p.pid == command);
        let last = of_command.max_by_key(|p| p.born_ns);
        Ok(Tables {
            unreached_command: last.and_then(|p| Some((command, p.objects_why.clone()?))),
            lost_mappings: losses
                .get(Loss::MappingEvents.as_str())
                .copied()
                .unwrap_or(0),
            operations: trace.rows()?,
            times: trace.rows()?,
            charges,
            counting,
            memory: trace.rows()?,
            pages: trace.rows()?,
            lines: trace.rows()?,
            choices: trace.rows()?,
            sites: sites.into_iter().map(|s| (s.site, s)).collect(),
            threads: threads
                .into_iter()
                .map(|t| ((t.pid, t.tid), t.name))
                .collect(),
            ends: processes
                .iter()
                .filter_map(|p| Some((p.pid, p.died_ns?)))
                .collect(),
            begins: begins(&processes),
            unreached: processes
                .iter()
                .filter_map(|p| Some((p.pid, p.exe.clone(), p.objects_why.clone()?)))
                .collect(),
            processes: processes.into_iter().map(|p| (p.pid, p.exe)).collect(),
        })
    }

    /// The number of the program that a process ran up to this time: one that ended then is not the next one.
    pub(crate) fn program_at(&self, pid: Pid, time: Time) -> usize {
        let begins = self.begins.get(&pid);
        begins.map_or(0, |begins| begins.partition_point(|begin| *begin < time))
    }
}

fn begins(processes: &[ProcessRow]) -> HashMap<Pid, Vec<Time>> {
    let mut found: HashMap<Pid, Vec<Time>> = HashMap::new();
    for process in processes {
        found.entry(process.pid).or_default().push(process.born_ns);
    }
    for begins in found.values_mut() {
        begins.sort_unstable();
        begins.dedup();
    }
    found
}
