//! `varve tier apply`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use varve_analyse::format;
use varve_model::Bytes;
use varve_place::{ApplyOptions, ApplyReport, Backend, NodeChoice, PlaceError, apply, dry_run};
use varve_report::quoted_path;
use varve_sys::LimitKind;
use varve_tier::{MAX_PLAN_BYTES, Plan};

use crate::commands::{Failure, catch_signals, report};
use crate::libraries;
use crate::values::Size;

/// Where objects are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// Nodes of memory
    Numa,
    /// Memory up to a limit, and swap
    Swap,
}

/// Which limit of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LimitName {
    /// memory.max: the program never has more
    Max,
    /// memory.high: who has more waits
    High,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve tier apply --backend swap --memory 2GiB plan.toml -- ./solver input.dat
  varve tier apply --backend swap --memory 2GiB --zram 4GiB plan.toml -- ./solver input.dat
  varve tier apply --backend numa --node fast=0 --node slow=1 plan.toml -- ./solver input.dat
  varve tier apply --dry-run --backend swap --memory 2GiB plan.toml -- ./solver input.dat

Ends with the exit code of the command; 125 where the plan cannot be applied. Limits, cgroups and swap devices are taken back at the
end, also when this program is killed.")]
pub(crate) struct ApplyArguments {
    #[command(flatten)]
    pub(crate) placing: Placing,

    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Write what became of the plan to a file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Say nothing of what became of the plan
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// The plan, where it is applied, and the command.
#[derive(Debug, Args)]
pub(crate) struct Placing {
    /// What the tiers of the plan are [default: numa where there are two nodes of memory, else swap]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) backend: Option<BackendName>,

    /// With --backend swap: what the command may have of memory
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,

    /// With --backend swap: how the kernel limits it
    #[arg(long, value_enum, value_name = "KIND", default_value = "max")]
    pub(crate) limit: LimitName,

    /// With --backend swap: make a swap device of compressed memory for as long as the command runs
    #[arg(long, value_name = "SIZE")]
    pub(crate) zram: Option<Size>,

    /// With --backend numa: the node that a tier is, such as `fast=0` [default: the tiers in their order, the nearest node first]
    #[arg(long = "node", value_name = "TIER=NODE", value_parser = node)]
    pub(crate) nodes: Vec<NodeChoice>,

    /// The smallest object that is placed
    #[arg(long, value_name = "SIZE", default_value = "32KiB")]
    pub(crate) min_object: Size,

    /// With --backend swap: whether what is cold is paged out before the program has to wait for room; the kernel has killed programs that ran so
    #[arg(long, value_enum, value_name = "WHETHER", default_value = "off")]
    pub(crate) page_out: OnOff,

    /// The plan, as `varve tier plan` wrote it
    #[arg(value_name = "PLAN")]
    pub(crate) plan: PathBuf,

    /// The command, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Whether.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    /// Do it
    On,
    /// Leave it
    Off,
}

fn node(text: &str) -> Result<NodeChoice, String> {
    let wrong = || format!("`{text}` is no tier and node; give such as fast=0");
    let (tier, node) = text.split_once('=').ok_or_else(wrong)?;
    Ok(NodeChoice {
        tier: tier.to_owned(),
        node: node.parse().map_err(|_| wrong())?,
    })
}

impl From<PlaceError> for Failure {
    fn from(error: PlaceError) -> Failure {
        Failure {
            what: error.to_string(),
            hint: error.hint().map(str::to_owned),
            code: error.exit_code(),
        }
    }
}

/// Reads a plan.
pub(super) fn read_plan(path: &Path) -> Result<Plan, Failure> {
    let failed = |what: String, hint: &str| Failure {
        what,
        hint: Some(hint.to_owned()),
        code: 125,
    };
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        if file.metadata()?.is_dir() {
            return Err(std::io::ErrorKind::IsADirectory.into());
        }
        file.take(MAX_PLAN_BYTES + 1).read_to_string(&mut text)
    });
    read.map_err(|e| {
        failed(
            format!("cannot read the plan {}: {e}", quoted_path(path)),
            "`varve tier plan TRACE --tier ... -o plan.toml` writes one",
        )
    })?;
    Plan::parse(&text)
        .map_err(|e| failed(format!("{} is no plan: {e}", quoted_path(path)), e.hint()))
}

impl Placing {
    /// What is to be done.
    pub(super) fn resolve(&self) -> Result<ApplyOptions, Failure> {
        let plan = read_plan(&self.plan)?;
        let wrong = |what: &str, hint: &str| Failure {
            what: what.to_owned(),
            hint: Some(hint.to_owned()),
            code: 125,
        };
        let backend = self
            .backend
            .unwrap_or_else(|| match varve_sys::nodes().len() {
                0 | 1 => BackendName::Swap,
                _ => BackendName::Numa,
            });
        let backend = match (backend, self.memory) {
            (BackendName::Numa, None) if self.zram.is_none() => Backend::Numa {
                nodes: self.nodes.clone(),
            },
            (BackendName::Numa, _) => {
                return Err(wrong(
                    "--memory and --zram belong to --backend swap",
                    "leave them out, or place memory and swap: --backend swap",
                ));
            }
            (BackendName::Swap, _) if !self.nodes.is_empty() => {
                return Err(wrong(
                    "--node belongs to --backend numa",
                    "leave it out, or place nodes: --backend numa",
                ));
            }
            (BackendName::Swap, None) => {
                return Err(wrong(
                    "how much memory the command may have is not known",
                    "say it: --memory 2GiB; the capacity of the plan's first tier is a start",
                ));
            }
            (BackendName::Swap, Some(memory)) => Backend::Swap {
                memory: memory.0,
                limit: match self.limit {
                    LimitName::Max => LimitKind::Max,
                    LimitName::High => LimitKind::High,
                },
            },
        };
        Ok(ApplyOptions {
            plan,
            backend,
            command: self.command.clone(),
            min_object: self.min_object.0,
            page_out: self.page_out == OnOff::On,
            zram: self.zram.map(|size| size.0),
            is_planned: true,
            is_silent: false,
            library: libraries::preload()?,
        })
    }
}

pub(super) fn run(arguments: &ApplyArguments) -> Result<ExitCode, Failure> {
    let options = arguments.placing.resolve()?;
    if options.command.is_empty() && !arguments.dry_run {
        return Err(Failure {
            what: "there is no command to run".to_owned(),
            hint: Some(
                "give one after `--`, as in `varve tier apply plan.toml -- ./program`".to_owned(),
            ),
            code: 2,
        });
    }
    if arguments.dry_run {
        let lines = dry_run(&options)?;
        report::print(&format!("{}\n", lines.join("\n")))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut signals = catch_signals()?;
    let quiet = arguments.quiet;
    let mut tell = |note: &str| {
        if !quiet {
            varve_ui::note(note);
        }
    };
    let done = apply(&options, &mut signals, &mut tell, &mut |_, _| {})?;
    if let Some(path) = &arguments.report {
        write_report(path, &done.report)?;
    }
    if !quiet {
        summary(&done.report);
    }
    Ok(ExitCode::from(done.exit_code as u8))
}

fn write_report(path: &Path, report: &ApplyReport) -> Result<(), Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(
            format!("cannot write {}: {e}", quoted_path(path)),
            None::<String>,
        )
    };
    let text =
        serde_json::to_string_pretty(report).map_err(|e| failed(std::io::Error::other(e)))?;
    let mut file = File::create(path).map_err(failed)?;
    writeln!(file, "{text}").map_err(failed)
}

/// What a person wants to know of it.
fn summary(of: &ApplyReport) {
    let placed = of.places.iter().filter(|p| p.objects > p.failed);
    let bytes: u64 = placed.clone().map(|p| p.peak_bytes).sum();
    varve_ui::note(format!(
        "{} of {} placed, {} at their peaks; {} of large objects belong to no place",
        format::count(placed.count() as u64),
        format::counted(of.places.len() as u64, "place"),
        format::bytes(Bytes(bytes)),
        format::counted(of.stacks_without_place, "call stack"),
    ));
    for note in &of.notes {
        varve_ui::note(note);
    }
}
