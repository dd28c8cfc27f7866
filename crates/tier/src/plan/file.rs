//! The file of a plan: TOML. It may come from anybody.

use std::str::FromStr;

use varve_model::{ObjectKind, visible};

use super::{PLAN_SCHEMA, Plan};

/// A plan is smaller than this.
pub const MAX_PLAN_BYTES: u64 = 16 << 20;
/// Objects that it names at most.
const MAX_PLACES: usize = 100_000;
/// Calls of a stack at most.
const MAX_FRAMES: usize = 512;

/// Why a text is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// It is too long.
    #[error("it is longer than {} MiB", MAX_PLAN_BYTES >> 20)]
    TooLong,
    /// It is no TOML, or has something that no plan has.
    #[error("line {line}: {message}")]
    Syntax {
        /// The line.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// It is something else, or of another version.
    #[error("its schema is `{0}`, not `{PLAN_SCHEMA}`")]
    Schema(String),
    /// Its tiers are none.
    #[error("its tiers are none: {0}")]
    Tiers(String),
    /// A place names a tier that there is not.
    #[error("{place} belongs to the tier `{tier}`, which is none of its tiers")]
    NoTier {
        /// The place.
        place: String,
        /// What it names.
        tier: String,
    },
    /// A place is something that no object is.
    #[error("{place} is a `{kind}`, which no object is")]
    NoKind {
        /// The place.
        place: String,
        /// What it says.
        kind: String,
    },
    /// A part that is none.
    #[error("{place} has a part that ends before it begins")]
    BadPart {
        /// The place.
        place: String,
    },
    /// More than anybody would plan.
    #[error("it names {0} objects or calls, more than a plan can")]
    TooMany(usize),
}

impl PlanError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        "`varve tier plan TRACE --tier ... -o plan.toml` writes one; docs/tier.md says what may be changed in it"
    }
}

impl Plan {
    /// The text of the file.
    pub fn to_toml(&self) -> String {
        let command = visible(&self.program.command.join(" ")).into_owned();
        // Strings and numbers alone: nothing of it cannot be written.
        let body = toml::to_string_pretty(self).unwrap_or_default();
        format!(
            "# Where the memory of `{command}` should lie, as `varve tier plan` found.\n\
             # Change `tier` of a place, or `default`, as you like; remove what is not to be placed.\n\n{body}"
        )
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is no plan.
    pub fn parse(text: &str) -> Result<Plan, PlanError> {
        if text.len() as u64 > MAX_PLAN_BYTES {
            return Err(PlanError::TooLong);
        }
        let plan: Plan = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |s| s.start.min(text.len()));
            let before = &text.as_bytes()[..at];
            let message: String = error.message().chars().take(200).collect();
            PlanError::Syntax {
                line: 1 + before.iter().filter(|b| **b == b'\n').count(),
                message: visible(&message.replace('\n', " ")).into_owned(),
            }
        })?;
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), PlanError> {
        if self.schema != PLAN_SCHEMA {
            let found: String = self.schema.chars().take(60).collect();
            return Err(PlanError::Schema(visible(&found).into_owned()));
        }
        let tiers = self.resolve_tiers();
        let tiers = tiers.map_err(|e| PlanError::Tiers(visible(&e.to_string()).into_owned()))?;
        if self.places.len() > MAX_PLACES {
            return Err(PlanError::TooMany(self.places.len()));
        }
        let is_tier = |name: &str| tiers.all().iter().any(|t| t.name == name);
        let no_tier = |place: &str, tier: &str| PlanError::NoTier {
            place: shown(place),
            tier: shown(tier),
        };
        if !is_tier(&self.default) {
            return Err(no_tier("all that is not named", &self.default));
        }
        for place in &self.places {
            if !is_tier(&place.tier) {
                return Err(no_tier(&place.name, &place.tier));
            }
            if ObjectKind::from_str(&place.kind).is_err() {
                return Err(PlanError::NoKind {
                    place: shown(&place.name),
                    kind: shown(&place.kind),
                });
            }
            if place.part.is_some_and(|p| p.from >= p.to) {
                return Err(PlanError::BadPart {
                    place: shown(&place.name),
                });
            }
            if place.frames.len() > MAX_FRAMES {
                return Err(PlanError::TooMany(place.frames.len()));
            }
        }
        Ok(())
    }
}

/// As much of a name as a sentence takes.
fn shown(name: &str) -> String {
    let cut: String = name.chars().take(60).collect();
    visible(&cut).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Expected, Part, Place, Program, SiteFrame};
    use super::*;

    fn plan(name: &str, frames: usize) -> Plan {
        Plan {
            schema: PLAN_SCHEMA.into(),
            program: Program {
                command: vec!["./solver".into(), name.into()],
                executable: "/usr/bin/solver".into(),
                build_id: "00ff".into(),
            },
            expected: Expected {
                policy: "objects".into(),
                slow_share: 0.25,
                ..Expected::default()
            },
            tiers: vec!["fast=4GiB,80ns".into(), "slow=inf,250ns".into()],
            default: "slow".into(),
            places: vec![Place {
                tier: "fast".into(),
                why: "because".into(),
                kind: "heap".into(),
                name: name.into(),
                peak_bytes: 1 << 20,
                peak_pages: 256,
                build_id: String::new(),
                part: Some(Part { from: 0, to: 4096 }),
                frames: vec![
                    SiteFrame {
                        function: "setup".into(),
                        line: 42,
                        ..SiteFrame::default()
                    };
                    frames
                ],
            }],
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(name in ".{0,40}", frames in 0..4_usize) {
            let plan = plan(&name, frames);
            prop_assert_eq!(Plan::parse(&plan.to_toml()), Ok(plan));
        }

        #[test]
        fn a_damaged_plan_is_refused_in_one_sentence(
            at in 0..2000_usize, byte in any::<u8>(), cut in any::<bool>(),
        ) {
            let mut bytes = plan("matrix", 2).to_toml().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            let text = String::from_utf8_lossy(&bytes);
            if let Err(error) = Plan::parse(&text) {
                let said = error.to_string();
                prop_assert!(!said.contains('\n') && said.len() < 500, "{}", said);
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let why = |change: fn(&mut Plan)| {
            let mut of = plan("matrix", 1);
            change(&mut of);
            Plan::parse(&of.to_toml()).unwrap_err().to_string()
        };
        assert!(why(|p| p.schema = "x".into()).contains("schema"));
        assert!(why(|p| p.default = "x".into()).contains("none of its tiers"));
        assert!(why(|p| p.places[0].tier = "x".into()).contains("matrix belongs to the tier `x`"));
        assert!(why(|p| p.places[0].kind = "x".into()).contains("no object is"));
        assert!(why(|p| p.tiers.truncate(1)).contains("1 tiers"));
        assert!(why(|p| p.places[0].part = Some(Part { from: 9, to: 9 })).contains("ends before"));
        let unknown = format!("colour = 3\n{}", plan("matrix", 1).to_toml());
        assert!(
            Plan::parse(&unknown)
                .unwrap_err()
                .to_string()
                .contains("line 1")
        );
        assert_eq!(Plan::parse(&" ".repeat(17 << 20)), Err(PlanError::TooLong));
        // Deep nesting ends in an error, not in a crash.
        let deep = format!("schema = {}", "[".repeat(100_000));
        assert!(Plan::parse(&deep).is_err());
    }
}
