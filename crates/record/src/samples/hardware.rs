//! Which processors sample accesses by themselves, as the kernel tells.

use std::path::Path;

use varve_model::SampleSource;

/// Where the kernel lists what counts events.
const DEVICES: &str = "/sys/bus/event_source/devices";

/// The files that stand for a source, any of them, and its name.
const fn signs(source: SampleSource) -> (&'static [&'static str], &'static str) {
    match source {
        SampleSource::Pebs => (
            &["cpu/events/mem-loads", "cpu_core/events/mem-loads"],
            "Intel PEBS",
        ),
        SampleSource::Ibs => (&["ibs_op"], "AMD IBS"),
        SampleSource::Spe => (&["arm_spe_0"], "Arm SPE"),
        // No processor takes those.
        _ => (&[], "such samples"),
    }
}

fn is_there(source: SampleSource) -> bool {
    let (files, _) = signs(source);
    files
        .iter()
        .any(|file| Path::new(DEVICES).join(file).exists())
}

/// The name of the source that this machine has, if it has one.
pub(crate) fn found() -> Option<&'static str> {
    let all = [SampleSource::Pebs, SampleSource::Ibs, SampleSource::Spe];
    all.into_iter().find(|s| is_there(*s)).map(|s| signs(s).1)
}

/// Why samples of this source cannot be taken: one sentence.
pub fn refusal(source: SampleSource) -> String {
    let (files, name) = signs(source);
    if is_there(source) {
        format!("this version cannot read samples of {name} yet")
    } else {
        format!(
            "this machine has no {name}: there is no {DEVICES}/{}",
            files.first().copied().unwrap_or_default()
        )
    }
}
