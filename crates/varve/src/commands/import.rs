//! `varve import`.

use std::process::ExitCode;

use varve_analyse::format::counted;
use varve_import::{ImportError, Summary};
use varve_trace::Existing;
use varve_ui::Progress;

use super::Failure;
use crate::arguments::Import;

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
