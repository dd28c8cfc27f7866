//! Processes whose operations were not counted, or not to the end, and why.

use std::collections::{BTreeMap, HashSet};

use varve_analyse::{format, why_not_preloaded};
use varve_model::{Loss, Pid};

use crate::read::Tables;

/// Programs that a sentence names.
const NAMES: usize = 4;

/// What helps, by the words for why nothing was counted.
const HINTS: [(&[&str], &str); 4] = [
    (
        &["static"],
        "A program that loads no libraries is counted where it is the command itself and has its symbols (linked without -s, not stripped).",
    ),
    (
        &["replaced"],
        "What else is to be preloaded is named by LD_PRELOAD in the environment of varve itself, or by --allocator: it comes behind what counts.",
    ),
    (
        &["removed", "cleared"],
        "A program is counted where it is the command itself, and nothing between takes LD_PRELOAD from its environment.",
    ),
    (
        &["rights"],
        "A program that gains rights is counted where it runs already (-p).",
    ),
];

/// Processes of which nothing was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Uncounted {
    pub(super) processes: u64,
    /// How many, which and why; none where there are none.
    pub(super) sentence: Option<String>,
    /// Whether the program that the command ran at last is one of them.
    pub(super) command: bool,
}

/// What limits of the address space have kept from being counted, of so many processes, and that others locked their memory.
pub(super) fn limited(limited: u64, locked: u64) -> Option<String> {
    let which = |number: u64, one: &str, many: &str| {
        let said = format!(
            "{} {}",
            format::processes(number),
            if number == 1 { one } else { many }
        );
        (number > 0).then_some(said)
    };
    let limited = which(limited, "has", "have").map(|which| format!(
        "{which} a limit of the address space or of its data (`ulimit -v`, `ulimit -d`), which is left to the program: allocator operations were not counted there, or not to the end. They are where the limit leaves 2 GiB more than the program begins with."
    ));
    let locked = which(locked, "locked its memory", "locked their memory").map(|which| format!(
        "{which} (mlockall): allocator operations were not counted from then on, as what counting takes would have been locked too."
    ));
    let sentences: Vec<String> = limited.into_iter().chain(locked).collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// The processes into which the library that counts did not come, by their programs, and those of which losses know the number alone.
/// `preloaded`: the library counted, and no probes.
pub(super) fn uncounted(tables: &Tables, lost: impl Fn(Loss) -> u64, preloaded: bool) -> Uncounted {
    let counted: HashSet<Pid> = tables.memory.iter().map(|row| row.pid).collect();
    // One that was counted had no answer in time, and one later.
    let reason_of = |pid: &Pid, why: &str| {
        let is_counted = why == "unanswered" && counted.contains(pid);
        why_not_preloaded(why).filter(|_| preloaded && !is_counted)
    };
    let mut seen = HashSet::new();
    let mut programs: BTreeMap<(&str, &'static str), u64> = BTreeMap::new();
    for (pid, exe, why) in &tables.unreached {
        let reason = reason_of(pid, why);
        // A process may go on to another program.
        if let Some(reason) = reason.filter(|_| seen.insert((*pid, exe))) {
            let name = exe.rsplit('/').next().unwrap_or_default();
            *programs.entry((name, reason)).or_default() += 1;
        }
    }
    let mut programs: Vec<_> = programs.into_iter().collect();
    programs.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut names: Vec<String> = programs
        .iter()
        .take(NAMES)
        .map(|((name, reason), count)| match count {
            1 => format!("{name} ({reason})"),
            many => format!("{} of {name} ({reason})", format::count(*many)),
        })
        .collect();
    if programs.len() > NAMES {
        let more = (programs.len() - NAMES) as u64;
        names.push(format!("and of {}", format::counted(more, "more program")));
    }
    let unheard = lost(Loss::UnheardProcesses);
    if unheard > 0 && preloaded {
        names.push(format!(
            "{} that could not reach the recorder after a fork (chroot, seccomp, no free descriptor; which is not known)",
            format::count(unheard)
        ));
    }
    let unfollowed = lost(Loss::UntrackedChildren);
    if unfollowed > 0 {
        names.push(format!(
            "{} that could not be followed (which is not known)",
            format::count(unfollowed)
        ));
    }
    let of_losses = if preloaded { unheard } else { 0 } + unfollowed;
    let processes = programs.iter().map(|(_, count)| count).sum::<u64>() + of_losses;
    let has = |words: &[&str]| {
        let is_one = |reason| words.iter().any(|word| why_not_preloaded(word) == reason);
        programs
            .iter()
            .any(|((_, reason), _)| is_one(Some(*reason)))
    };
    let hints = HINTS.iter().filter(|(words, _)| has(words));
    let hints: String = hints.map(|(_, hint)| format!(" {hint}")).collect();
    let command = tables.unreached_command.as_ref();
    Uncounted {
        processes,
        sentence: (processes > 0).then(|| {
            format!(
                "Allocator operations of {} were not counted: {}.{hints}",
                format::processes(processes),
                names.join(", ")
            )
        }),
        command: command.is_some_and(|(pid, why)| reason_of(pid, why).is_some()),
    }
}

#[cfg(test)]
mod tests {
    use varve_model::{Bytes, Time};
    use varve_trace::tables::HeapMemoryRow;

    use super::*;

    fn said(unreached: &[(u32, &str, &str)], losses: &[(Loss, u64)], preloaded: bool) -> Uncounted {
        let of =
            |(pid, exe, why): &(u32, &str, &str)| (Pid(*pid), (*exe).to_owned(), (*why).to_owned());
        let tables = Tables {
            unreached: unreached.iter().map(of).collect(),
            ..Tables::default()
        };
        let lost = |loss| {
            let found = losses.iter().find(|(of, _)| *of == loss);
            found.map_or(0, |(_, count)| *count)
        };
        uncounted(&tables, lost, preloaded)
    }

    #[test]
    fn children_that_were_not_counted_are_named() {
        assert_eq!(said(&[], &[], true), Uncounted::default());
        let found = said(
            &[
                (2, "/opt/own", "static"),
                (3, "/opt/own", "static"),
                (3, "/opt/own", "static"),
                (4, "/bin/clean", "cleared"),
            ],
            &[(Loss::UnheardProcesses, 2), (Loss::UntrackedChildren, 1)],
            true,
        );
        assert_eq!(found.processes, 6);
        let sentence = found.sentence.unwrap();
        assert_eq!(
            sentence,
            "Allocator operations of 6 processes were not counted: 2 of own (it loads no libraries), clean (its environment was cleared), \
             2 that could not reach the recorder after a fork (chroot, seccomp, no free descriptor; which is not known), \
             1 that could not be followed (which is not known). A program that loads no libraries is counted where it is the \
             command itself and has its symbols (linked without -s, not stripped). A program is counted where it is the command \
             itself, and nothing between takes LD_PRELOAD from its environment."
        );
        assert!(!found.command);
    }

    #[test]
    fn what_took_the_library_away_is_named_with_what_helps() {
        for (why, reason, hint) in [
            ("replaced", "LD_PRELOAD was replaced", "--allocator"),
            ("removed", "LD_PRELOAD was removed", "nothing between"),
            ("cleared", "environment was cleared", "nothing between"),
            ("rights", "it gained rights by its file", "(-p)"),
            ("static", "it loads no libraries", "its symbols"),
        ] {
            let found = said(&[(2, "/opt/own", why)], &[], true);
            let sentence = found.sentence.unwrap();
            assert!(sentence.contains(&format!("{reason})")), "{sentence}");
            assert!(sentence.contains(hint), "{sentence}");
        }
    }

    #[test]
    fn the_command_itself_is_what_it_ran_at_last() {
        let of = |why: &str, counted, preloaded| {
            let mut tables = Tables {
                unreached_command: Some((Pid(7), why.to_owned())),
                ..Tables::default()
            };
            if counted {
                tables.memory.push(memory(7));
            }
            uncounted(&tables, |_| 0, preloaded).command
        };
        assert!(of("replaced", false, true));
        // The program that replaced it was counted.
        assert!(of("replaced", true, true));
        assert!(!of("unanswered", true, true));
        assert!(!of("replaced", false, false));
        assert!(!said(&[], &[], true).command);
    }

    fn memory(pid: u32) -> HeapMemoryRow {
        HeapMemoryRow {
            time_ns: Time(1),
            pid: Pid(pid),
            allocator: String::new(),
            requested_bytes: Bytes(0),
            usable_bytes: None,
            blocks: 0,
            peak_requested_bytes: Bytes(0),
            peak_usable_bytes: None,
            peak_ns: Time(1),
            resident_bytes: None,
            mapped_bytes: None,
            heap_resident_bytes: None,
            kept_bytes: None,
            own_bytes: Bytes(0),
            uncounted: Some(0),
            unknown_frees: 0,
            unseen_frees: 0,
        }
    }

    #[test]
    fn probes_count_without_the_library() {
        let unreached = [(2, "/opt/own", "static")];
        let found = said(&unreached, &[(Loss::UnheardProcesses, 1)], false);
        assert_eq!(found, Uncounted::default());
    }
}
