//! `varve check --junit`: what continuous integration reads.

use std::io::Write;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use varve_compare::{Check, Outcome};
use varve_model::visible;

/// Writes the document: a case for each budget, and one for the program itself. A broken budget is a failure, one that could
/// not be judged an error, and so is a program that failed.
///
/// # Errors
/// What the writer says.
pub fn write(of: &Check, out: &mut impl Write) -> Result<(), quick_junit::SerializeError> {
    let mut suite = TestSuite::new("varve check");
    for judged in &of.budgets {
        let status = match judged.outcome {
            Outcome::Holds => TestCaseStatus::success(),
            Outcome::Broken => not(NonSuccessKind::Failure, "broken", &judged.evidence),
            Outcome::NotJudged => not(NonSuccessKind::Error, "not judged", &judged.evidence),
        };
        let mut case = TestCase::new(visible(&judged.title).into_owned(), status);
        case.set_classname("varve.budget");
        if judged.outcome == Outcome::Holds {
            case.set_system_out(visible(&judged.evidence).into_owned());
        }
        suite.add_test_case(case);
    }
    let status = match of.failed.is_empty() {
        true => TestCaseStatus::success(),
        false => {
            let all = of.failed.iter();
            let all = all.map(|f| format!("exit code {} in {}", f.exit_code, f.trace));
            not(
                NonSuccessKind::Error,
                "failed",
                &all.collect::<Vec<_>>().join("; "),
            )
        }
    };
    let mut case = TestCase::new("the program itself", status);
    case.set_classname("varve.program");
    suite.add_test_case(case);
    let mut report = Report::new("varve check");
    report.add_test_suite(suite);
    report.serialize(out)
}

fn not(kind: NonSuccessKind, word: &str, evidence: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(kind);
    status
        .set_type(word)
        .set_message(visible(evidence).into_owned());
    status
}
