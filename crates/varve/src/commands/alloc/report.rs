//! `varve alloc report`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use varve_alloc::{Judged, Measure, flame_graph};
use varve_analyse::format;

use super::Failure;
use crate::commands::{open, report};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve alloc report server.varve                          whether it is the allocator, and why
  varve alloc report server.varve --html page.html         the same as one offline page, with flame graphs
  varve alloc report server.varve --folded peak | flamegraph.pl --countname bytes > peak.svg")]
pub(crate) struct AllocReport {
    /// Trace folder, as `varve alloc record` wrote it
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    /// Show all rows of all tables
    #[arg(long)]
    pub(crate) all: bool,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// Write one offline page: that of `varve report --html`, with the allocator first
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write folded call stacks to standard output, for flamegraph.pl and speedscope: of sampled blocks with bytes or their number, or
    /// of callers with nanoseconds
    #[arg(long, value_name = "OF", conflicts_with_all = ["json", "all", "html"], value_parser = measures())]
    pub(crate) folded: Option<Measure>,
}

/// The names of what folded stacks weigh.
fn measures() -> impl TypedValueParser<Value = Measure> {
    let names =
        Measure::ALL.map(|measure| PossibleValue::new(measure.as_str()).help(about(measure)));
    PossibleValuesParser::new(names).map(|name| {
        let of = |measure: &Measure| measure.as_str() == name;
        Measure::ALL.into_iter().find(of).unwrap_or(Measure::Peak)
    })
}

const fn about(measure: Measure) -> &'static str {
    match measure {
        Measure::Allocated => "bytes of all that was allocated",
        Measure::Peak => "bytes of what lived when most did",
        Measure::NeverFreed => "bytes of what was never freed",
        Measure::Count => "blocks that were allocated",
        Measure::Time => "nanoseconds within operations, by caller: one frame deep",
        Measure::Idle => "bytes that were never freed and not touched for long; needs pages",
    }
}

/// A line for each call stack, the outermost function first.
fn folded(judged: &Judged, measure: Measure) -> Result<String, Failure> {
    let Some(judgement) = judged.counted() else {
        return Err(Failure::new(
            "operations were not counted, so that there are no call stacks",
            Some("`varve alloc report` says why"),
        ));
    };
    let Some(graph) = flame_graph(judgement, measure) else {
        let has_blocks = judgement.blocks.samples > 0;
        return Err(match (measure, &judgement.memory.uncounted) {
            (Measure::Idle, _) if has_blocks => Failure::new(
                "nobody knows what is idle: pages were not recorded",
                Some("record them: `varve alloc record` without `--pages off`"),
            ),
            (Measure::Peak, Some(why)) if has_blocks => Failure::new(
                format!("it is not known when most lived: {why}"),
                Some("`--folded never-freed` has what lived at the end"),
            ),
            _ => Failure::new(
                "no blocks were sampled, so that there are no call stacks",
                Some(
                    "record without `--sample-every off`; `--folded time` has the callers of operations",
                ),
            ),
        });
    };
    if let Some(idle_for) = graph.idle_for_ns {
        varve_ui::note(format!(
            "idle: never freed, and not touched in the last {} of its process",
            format::duration(idle_for)
        ));
    }
    let mut text = String::new();
    for row in &graph.stacks {
        let names = graph.frames(judgement, row).into_iter();
        let names = names.map(|name| varve_model::visible(name).replace(';', ":"));
        let stack: Vec<String> = names.collect();
        text.push_str(&format!("{} {}\n", stack.join(";"), row.weight));
    }
    Ok(text)
}

pub(super) fn run(arguments: &AllocReport) -> Result<ExitCode, Failure> {
    let trace = open::open(&arguments.trace)?;
    let nothing = || {
        Failure::new(
            format!("{} has no allocator operations", arguments.trace.display()),
            Some("record them: `varve alloc record -- COMMAND`"),
        )
    };
    if !trace.has_operations() {
        return Err(nothing());
    }
    let mut analysis = None;
    if let Some(path) = &arguments.html {
        let made = analysis.insert(report::analyse(&trace, false)?);
        report::write_allocators_page(&trace, made, path)?;
    }
    if let Some(measure) = arguments.folded {
        let judged = varve_alloc::judge(&trace, None)?.ok_or_else(nothing)?;
        report::print(&folded(&judged, measure)?)?;
    } else if arguments.html.is_none() || arguments.json {
        let judged = super::judge(&trace, analysis.as_ref())?.ok_or_else(nothing)?;
        report::show(&judged, arguments.json, |width, color| {
            varve_report::terminal::alloc::render(&judged, width, color, arguments.all)
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
