//! What `varve check` prints: a line for each budget.

use varve_compare::{Check, Outcome};
use varve_model::visible;

use super::page::{Page, Tone};

/// The text. Lines are as long as they are: whoever looks for one in a log finds all of it there.
pub fn render(of: &Check, color: bool) -> String {
    let mut page = Page::new(*super::WIDTHS.end(), color);
    for judged in &of.budgets {
        let (tone, word) = match judged.outcome {
            Outcome::Holds => (Tone::Good, "holds"),
            Outcome::Broken => (Tone::Bad, "broken"),
            Outcome::NotJudged => (Tone::Notice, "not judged"),
        };
        let text = format!("{}: {}", judged.title, judged.evidence);
        page.marked_line(tone, word, &visible(&text));
    }
    for failed in &of.failed {
        let text = format!(
            "the program ended with exit code {} in {}",
            failed.exit_code, failed.trace
        );
        page.marked_line(Tone::Bad, "failed", &visible(&text));
    }
    page.text
}
