//! Records a program and reads the report.

use serde_json::Value;
use varve_faults::{Stage, varve_binary};

/// Records a command and gives its report, which must not contradict itself. Nothing may be left behind.
pub(crate) fn recorded(stage: &Stage, options: &[&str], command: &[&str]) -> Value {
    let ended = stage.run(stage.record(options, command)).require(0);
    let recorder = ended.pid;
    let mut report = stage.command(varve_binary());
    report.args(["report", "trace.varve", "--json"]);
    let report: Value = serde_json::from_str(&stage.run(report).require(0).text()).unwrap();
    assert_eq!(report["contradictions"], Value::Array(vec![]));
    stage.require_clean(recorder);
    report
}

/// A number of an object of the report.
pub(crate) fn number(of: &Value, field: &str) -> u64 {
    of[field]
        .as_u64()
        .unwrap_or_else(|| panic!("no number `{field}` in {of:#}"))
}

/// The objects of a report that are so.
pub(crate) fn objects_with(report: &Value, is: impl Fn(&Value) -> bool) -> Vec<&Value> {
    let objects = report["objects"].as_array().unwrap();
    objects.iter().filter(|o| is(o)).collect()
}
