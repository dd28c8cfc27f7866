//! The allocator's part of the page.

use serde::Serialize;
use ts_rs::TS;
use varve_alloc::{About, FlameGraph, Judged, Judgement, Measure, flame_graph};
use varve_analyse::Analysis;
use varve_model::visible;
use varve_trace::{Trace, TraceError};

/// Threads and processes that a table of the page has room for.
const ROWS: usize = 200;
/// Letters of a name, and how many of these are its end, which says the line.
const NAME: usize = 600;
const END: usize = 160;

/// Which part of a page is shown first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// What was touched, and all that is said of it.
    #[default]
    Pages,
    /// What is said of the allocator.
    Allocator,
}

/// What the page says of the allocator.
#[derive(Clone, Debug, Serialize, TS)]
pub struct AllocPage {
    /// The figures, where operations were counted. Names are no longer than a person reads.
    pub judgement: Judged,
    /// A flame graph for each measure that the trace knows.
    pub flames: Vec<FlameGraph>,
    /// Threads that the list leaves out: those with the fewest operations.
    pub omitted_threads: u64,
    /// Processes that the list leaves out: those with the least memory.
    pub omitted_processes: u64,
}

impl AllocPage {
    /// What a trace says of its allocator. None where operations were not recorded.
    ///
    /// # Errors
    /// Tables that cannot be read.
    pub(super) fn from_trace(
        trace: &Trace,
        analysis: &Analysis,
    ) -> Result<Option<AllocPage>, TraceError> {
        Ok(varve_alloc::judge(trace, Some(analysis))?.map(AllocPage::of))
    }

    /// Makes it of a judgement.
    pub fn of(mut judged: Judged) -> AllocPage {
        let (mut flames, mut omitted_threads, mut omitted_processes) = (Vec::new(), 0, 0);
        match &mut judged {
            Judged::Counted(judgement) => {
                let judgement: &mut Judgement = judgement;
                let graphs = Measure::ALL.map(|measure| flame_graph(judgement, measure));
                flames.extend(graphs.into_iter().flatten());
                omitted_threads = cut(&mut judgement.threads);
                omitted_processes = cut(&mut judgement.processes);
                shorten(judgement);
            }
            Judged::Uncounted(of) => shorten_about(&mut of.trace),
        }
        AllocPage {
            judgement: judged,
            flames,
            omitted_threads,
            omitted_processes,
        }
    }
}

fn cut<T>(list: &mut Vec<T>) -> u64 {
    let beyond = list.len().saturating_sub(ROWS);
    list.truncate(ROWS);
    beyond as u64
}

/// Names come from the program, which may have made them as long as it likes and of any letters.
fn shorten_about(about: &mut About) {
    about.command.iter_mut().for_each(shown);
    shown(&mut about.allocator);
    shown(&mut about.allocator_file);
}

/// The same of all that a judgement names.
fn shorten(judgement: &mut Judgement) {
    shorten_about(&mut judgement.trace);
    let seeming = judgement.undecided.iter_mut();
    for diagnosis in judgement.diagnoses.iter_mut().chain(seeming) {
        shown(&mut diagnosis.evidence);
    }
    judgement.sites.iter_mut().for_each(|s| shown(&mut s.label));
    for call in &mut judgement.syscalls {
        call.sites.iter_mut().for_each(|(label, _)| shown(label));
    }
    for site in &mut judgement.blocks.sites {
        shown(&mut site.label);
        site.stack.iter_mut().for_each(shown);
    }
    for thread in &mut judgement.threads {
        shown(&mut thread.name);
    }
    for process in &mut judgement.processes {
        shown(&mut process.exe);
        shown(&mut process.allocator);
    }
}

/// A name as a person reads it: its middle is left out where it is long.
fn shown(name: &mut String) {
    let letters = name.chars().count();
    let text = match letters > NAME {
        false => visible(name).into_owned(),
        true => {
            let start: String = name.chars().take(NAME - END).collect();
            let end: String = name.chars().skip(letters - END).collect();
            format!("{}…{}", visible(&start), visible(&end))
        }
    };
    *name = text;
}
