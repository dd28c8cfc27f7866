//! `varve import`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use varve_analyse::format::counted;
use varve_import::{ImportError, Summary};
use varve_model::ImportFormat;
use varve_trace::Existing;
use varve_ui::Progress;

use super::Failure;
use crate::arguments::Writing;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve import perf.data -o solver.varve              samples of `perf mem record`
  perf script --show-mmap-events > samples.txt        the same as text, with objects
  varve import samples.txt -o solver.varve
  varve import mmap_trace_bfs.csv munmap_trace_bfs.csv memory_trace_bfs.csv -o bfs.varve

Formats (docs/import.md), distinguished by what the files hold:
  perf-data    perf.data with addresses, such as of `perf mem record`; also of DAMON's tracepoint
  perf-script  the text of `perf script`, best of
               -F comm,pid,tid,cpu,time,period,event,addr,data_src,weight,ip,sym,symoff,dso
  mitos        samples of Mitos and MemAxes, of both generations
  iiswc22      memory_trace, mmap_trace and munmap_trace of the IISWC 2022 artifact
  damon        damo's records: JSON, compressed JSON, text of `perf script`
  lackey       valgrind --tool=lackey --trace-mem=yes
  moca         Moca's trace, and its structs.csv
  tabarnac     NAME.full.page.csv, NAME.structs.csv and NAME.stackmap.csv

What a format does not say, the reports show as absent.")]
pub(crate) struct Import {
    /// Files of one tool
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Trace folder to write
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: PathBuf,

    #[command(flatten)]
    pub(crate) writing: Writing,

    /// Take the files for this format, whatever they look like
    #[arg(long, value_name = "FORMAT", value_parser = import_format)]
    pub(crate) format: Option<ImportFormat>,
}

fn import_format(word: &str) -> Result<ImportFormat, String> {
    word.parse().map_err(|_| {
        let words: Vec<&str> = ImportFormat::ALL.iter().map(|f| f.as_str()).collect();
        format!("one of {}", words.join(", "))
    })
}

pub(crate) fn run(arguments: &Import) -> Result<ExitCode, Failure> {
    let output = arguments
        .writing
        .output(arguments.output.clone(), Existing::Refuse);
    let summary = {
        let progress = Progress::new("Importing");
        varve_import::import(&arguments.files, &output, arguments.format, &mut |share| {
            progress.set(share)
        })
        .map_err(failure)?
    };
    for path in &summary.repeated {
        let path = varve_report::quoted_path(path);
        varve_ui::note(format!("{path} is named several times and was read once"));
    }
    varve_ui::note(format!(
        "imported {} from {}; read it with `varve report {}`",
        what(&summary),
        summary.format,
        varve_report::quoted_path(&summary.folder)
    ));
    Ok(ExitCode::SUCCESS)
}

fn what(summary: &Summary) -> String {
    let parts = [
        (summary.samples, "sample"),
        (summary.touches, "run of touched pages"),
        (summary.counts, "count"),
        (summary.objects, "object"),
    ];
    let parts = parts.iter().filter(|(number, _)| *number > 0);
    let parts: Vec<String> = parts
        .map(|(number, what)| match (number, what) {
            (2.., &"run of touched pages") => {
                format!(
                    "{} runs of touched pages",
                    varve_analyse::format::count(*number)
                )
            }
            (number, what) => counted(*number, what),
        })
        .collect();
    match parts.is_empty() {
        true => "nothing, as there are no accesses and no objects,".to_owned(),
        false => parts.join(", "),
    }
}

fn failure(error: ImportError) -> Failure {
    Failure::new(&error, error.hint())
}
