//! Which capabilities this process has, and for what they do not suffice.

use varve_sys::{Capability, Rights};

use super::{Check, Standing};
use crate::rights::{self, NEEDS};

pub(super) fn privileges() -> Vec<Check> {
    let own = Rights::own();
    let mut checks = vec![Check::note(
        "privileges",
        "who runs this, and what the kernel allows",
        format!(
            "user {}, with {}",
            rustix::process::geteuid().as_raw(),
            match own.list().len() {
                0 => "no capabilities".to_owned(),
                n if n == Capability::ALL.len() =>
                    "every capability that recording could use".to_owned(),
                _ => rights::list(&own.list()),
            }
        ),
    )];
    checks.extend(NEEDS.iter().map(|need| {
        let lacking = need.lacking(own);
        let result = if lacking.is_empty() {
            Ok(format!("{} suffice", rights::list(need.capabilities)))
        } else {
            Err(format!("lacks {}", rights::list(&lacking)))
        };
        let hint = format!(
            "run it with sudo, or let a group run it: chown root:GROUP varve && chmod 750 varve && setcap {} varve \
             (SECURITY.md says what that group can do then)",
            rights::file_form(need.capabilities)
        );
        let needed = if need.required {
            Standing::Required
        } else {
            Standing::Missing
        };
        let check = Check::new(need.what, need.purpose, result.map_err(|e| (e, hint.as_str())), needed);
        match need.feature {
            Some(words) => check.feature(words),
            None => check,
        }
    }));
    checks
}
