//! What this program gives up before it does anything.

use varve_sys::rights::{self, Capability};

use crate::arguments::Command;
use crate::commands::Failure;
use crate::commands::alloc::AllocCommand;
use crate::commands::tier::TierCommand;

/// To read a trace that is another user's.
const TO_READ: [Capability; 1] = [Capability::DacReadSearch];
/// To write a file into another user's folder besides.
const TO_WRITE: [Capability; 3] = [
    Capability::DacReadSearch,
    Capability::DacOverride,
    Capability::Fowner,
];

/// Recording needs capabilities; reading what somebody else may have made needs none but for root to get at the
/// files, as root expects.
pub(crate) fn begin(command: &Command) -> Result<(), Failure> {
    if rights::changed_user() {
        return Err(Failure {
            what: "varve does not run as another user than its caller: its file is set-user-ID or set-group-ID".into(),
            hint: Some("take that bit off (chmod ug-s), and see SECURITY.md for what to give it instead".into()),
            code: 125,
        });
    }
    let given_up = rights::begin().and_then(|()| match command {
        Command::Record(_) | Command::Doctor(_) | Command::Watchdog { .. } => Ok(()),
        Command::Fit(_) | Command::FitProbe(_) => Ok(()),
        Command::Alloc(alloc) => match alloc.command {
            AllocCommand::Report(_) => rights::keep_if_root(&TO_READ),
            _ => Ok(()),
        },
        Command::Tier(tier) => match &tier.command {
            TierCommand::Apply(_) | TierCommand::Verify(_) | TierCommand::Watch(_) => Ok(()),
            TierCommand::Plan(plan) if plan.output.is_some() => rights::keep_if_root(&TO_WRITE),
            _ => rights::keep_if_root(&TO_READ),
        },
        Command::Report(report) if report.html.is_none() && report.png.is_none() => {
            rights::keep_if_root(&TO_READ)
        }
        // It records by another process, which needs what a recorder does.
        Command::Check(check) if !check.command.is_empty() => Ok(()),
        Command::Check(check) if check.junit.is_none() => rights::keep_if_root(&TO_READ),
        Command::Diff(diff) if diff.html.is_none() => rights::keep_if_root(&TO_READ),
        _ => rights::keep_if_root(&TO_WRITE),
    });
    given_up.map_err(|e| Failure {
        what: format!("cannot give up capabilities: {e}"),
        hint: None::<String>,
        code: 125,
    })
}
