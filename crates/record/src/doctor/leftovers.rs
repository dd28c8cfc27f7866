//! What recorders left that were killed.

use super::{Brief, Check, Leftovers};
use crate::leftovers::Leftover;

pub(super) fn leftovers(left: &[Leftover], choice: Leftovers) -> Check {
    let names = |of: &mut dyn Iterator<Item = String>| of.collect::<Vec<_>>().join(", ");
    let certain = names(
        &mut left
            .iter()
            .filter(|l| l.doubt.is_none())
            .map(|l| l.path.display().to_string()),
    );
    let doubtful = names(&mut left.iter().filter_map(|l| {
        let doubt = l.doubt.as_deref()?;
        Some(format!("{} ({doubt})", l.path.display()))
    }));
    let mut parts = Vec::new();
    if !certain.is_empty() {
        parts.push(match choice {
            Leftovers::List => certain.clone(),
            Leftovers::Clean => format!("let go and removed: {certain}"),
        });
    }
    if !doubtful.is_empty() {
        parts.push(format!("left alone: {doubtful}"));
    }
    let detail = if parts.is_empty() {
        match choice {
            Leftovers::List => "none".to_owned(),
            Leftovers::Clean => "there were none: nothing was removed".to_owned(),
        }
    } else {
        parts.join("; ")
    };
    let mut check = Check::note(
        "leftovers",
        "cgroups, run folders and fault handlers of recorders that were killed",
        detail,
    );
    if !left.is_empty() || choice == Leftovers::Clean {
        check.brief = Brief::Always;
    }
    if choice == Leftovers::List && !certain.is_empty() {
        check.hint =
            Some("`varve doctor --clean` removes them, and so does the next recording".into());
    }
    check
}
