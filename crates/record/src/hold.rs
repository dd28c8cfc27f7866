//! What holds the target still.
//!
//! Who is to be held is what the kernel's part tracks, whatever its cgroup. A command begins in a cgroup that the recorder makes below
//! its own, so that all limits go on applying, and whose freezer holds it. A process that runs already stays where it is: the
//! freezer of its own cgroup holds it if nobody else is in there. Whatever is in neither, because there is no such cgroup
//! or because a process has left it, is held by ptrace. What cannot be held at all is counted, and so is what would not survive it: then the
//! freezer holds nobody who is in one cgroup with such a process.

mod claims;
mod found;
mod spared;
pub(crate) mod watchdog;

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration as Wait;

use varve_bpf::TrackedProcesses;
use varve_model::Pid;
use varve_sys::{Cgroup, Freezer, Frozen, Held, Standby, TraceeError};

use self::claims::Claims;
pub(crate) use self::claims::{Recorder, recorder_of};
pub(crate) use self::found::FoundGroup;
use self::spared::Spared;
use crate::RecordError;

/// How the target is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldChoice {
    /// Not at all where the kernel's part keeps what is cleared; else by a freezer where one can be used for this target,
    /// else by ptrace.
    Auto,
    /// By a freezer, or not at all; what leaves the freezer's cgroup, or is in it with a process that the freezer would end, is held by ptrace.
    Cgroup,
    /// Every thread is stopped by ptrace.
    Ptrace,
}

/// What held the target so far, for manifests and people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Means {
    made: bool,
    found: bool,
    ptrace: bool,
}

/// How a hold went that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Release {
    /// Somebody else let the target go before.
    pub(crate) cut_short: bool,
    /// How many processes were not held all the time.
    pub(crate) unheld: u64,
    /// How many were not held at all, as that would have ended them.
    pub(crate) spared: u64,
}

/// Holds the processes of a recording.
pub(crate) struct Hold {
    tracked: Arc<TrackedProcesses>,
    /// The cgroup that the recorder made for a command.
    made: Option<Cgroup>,
    /// The cgroup in which the target was found.
    found: Option<FoundGroup>,
    /// Whether the freezer failed once, as its cgroup is gone: ptrace holds from then on.
    freezer_failed: bool,
    /// Why no freezer is used.
    why_not: Option<String>,
    /// What will hold by ptrace next.
    standby: Option<Standby>,
    by_ptrace: Option<Held>,
    /// Who stands in the freezer's cgroup; none while nothing is held by it.
    frozen: Option<HashSet<Pid>>,
    /// How often that cgroup had been let go before it was frozen.
    thaws: u64,
    /// The inode number of the cgroup that is watched.
    watched: Option<u64>,
    /// The processes that are recorded and stand, or cannot be held, in order.
    standing: Vec<Pid>,
    spared: Spared,
    used: Means,
    claims: Claims,
}

impl Hold {
    fn new(tracked: TrackedProcesses, root: Pid) -> Hold {
        let mut claims = Claims::default();
        claims.refresh(&[root]);
        Hold {
            tracked: Arc::new(tracked),
            made: None,
            found: None,
            freezer_failed: false,
            why_not: None,
            standby: None,
            by_ptrace: None,
            frozen: None,
            thaws: 0,
            watched: None,
            standing: Vec::new(),
            spared: Spared::default(),
            used: Means::default(),
            claims,
        }
    }

    /// By the freezer of a cgroup that was made for the target.
    pub(crate) fn in_made(made: Cgroup, tracked: TrackedProcesses, root: Pid) -> Hold {
        Hold {
            made: Some(made),
            ..Hold::new(tracked, root)
        }
    }

    /// By the freezer of the cgroup in which the target is.
    pub(crate) fn in_found(found: FoundGroup, tracked: TrackedProcesses, root: Pid) -> Hold {
        Hold {
            found: Some(found),
            ..Hold::new(tracked, root)
        }
    }

    /// By ptrace, and why so, where it was not asked for.
    pub(crate) fn by_ptrace(tracked: TrackedProcesses, root: Pid, why_not: Option<String>) -> Hold {
        Hold {
            standby: Standby::start().ok(),
            why_not,
            ..Hold::new(tracked, root)
        }
    }

    /// The processes of the recording that have not ended.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let mut pids = self.tracked.list();
        pids.retain(|pid| lives(*pid));
        pids.sort_unstable();
        pids
    }

    /// The processes to read while everything stands, in order.
    pub(crate) fn standing(&self) -> &[Pid] {
        &self.standing
    }

    /// Whether no freezer is used.
    pub(crate) fn is_by_ptrace(&self) -> bool {
        self.freezer().is_none()
    }

    /// The folder of the cgroup that was made for the target.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.made.as_ref().map(Cgroup::path)
    }

    /// Stops everything that can be stopped; call [`Hold::thaw`] whatever comes of it. `meanwhile` is called again and
    /// again while it comes about.
    ///
    /// # Errors
    /// Where no thread could be made to hold by ptrace.
    pub(crate) fn freeze(
        &mut self,
        limit: Wait,
        mut meanwhile: impl FnMut(),
    ) -> Result<Frozen, RecordError> {
        self.watch_group();
        self.thaws = self.tracked.thaws();
        let came = match self.freezes_who_dies() {
            true => None,
            false => self.freeze_group(limit, &mut meanwhile),
        };
        let frozen = match came {
            Some(Frozen::NotYet) => return Ok(Frozen::NotYet),
            Some(Frozen::Still) => self.members(),
            None => None,
        };
        let held_by_freezer = frozen.is_some();
        let freezer = self.freezer().filter(|_| held_by_freezer);
        let outside = Outside {
            tracked: Arc::clone(&self.tracked),
            members: Arc::new(frozen.clone().unwrap_or_default()),
            group: freezer.map(|f| f.path().to_owned()),
        };
        self.frozen = frozen;
        let mut standing = self.tracked.list();
        standing.retain(|pid| outside.members.contains(pid));
        if !held_by_freezer || !outside.list().is_empty() {
            let ready = match self.standby.take() {
                Some(standby) => standby,
                None => Standby::start()?,
            };
            let strays = outside.clone();
            let Some(held) = ready.hold(move || strays.can_be_held(), limit, meanwhile) else {
                return Ok(Frozen::NotYet);
            };
            self.by_ptrace = Some(held);
            let dies = |pid: &Pid| self.tracked.dies_of_holds(*pid);
            let (spared, held): (Vec<Pid>, Vec<Pid>) = outside.list().into_iter().partition(dies);
            // Who was held may have ended since.
            self.used.ptrace |= spared.is_empty() || !held.is_empty();
            self.spared.note(&spared);
            standing.extend(held.into_iter().chain(spared));
        }
        if held_by_freezer {
            self.used.made |= self.made.is_some();
            self.used.found |= self.found.is_some();
        }
        standing.sort_unstable();
        self.claims.refresh(&standing);
        self.standing = standing;
        Ok(Frozen::Still)
    }

    /// Whether the freezer would end a process in its cgroup, which is recorded or not. Who gets such a filter and waits between this look and the
    /// freezing is not spared.
    fn freezes_who_dies(&self) -> bool {
        let members = self.freezer().and_then(|freezer| freezer.members().ok());
        let mut members = members.into_iter().flatten();
        members.any(|pid| self.tracked.dies_of_holds(pid))
    }

    /// Freezes the cgroup, if there is one that can be used.
    fn freeze_group(&mut self, limit: Wait, meanwhile: impl FnMut()) -> Option<Frozen> {
        if self.freezer_failed {
            return None;
        }
        if let Some(found) = &mut self.found {
            let came = found.freeze(limit, meanwhile);
            if came.is_none() {
                self.give_up_found();
            }
            return came;
        }
        // Where the target moved away, anybody may have removed the empty cgroup.
        let came = self.made.as_ref()?.freezer().freeze(limit, meanwhile);
        self.freezer_failed = came.is_err();
        came.ok()
    }

    /// Counts from now on how often the cgroup is let go. Before it is frozen, so that nothing is missed.
    fn watch_group(&mut self) {
        let path = self.freezer().map(|f| f.path().to_owned());
        let id = path
            .and_then(|p| std::fs::metadata(p).ok())
            .map(|m| m.ino());
        if self.watched != id {
            self.tracked.watch_group(id.unwrap_or(0));
            self.watched = id;
        }
    }

    /// Who stands in the frozen cgroup. Nobody is held by it any more if others than the target are in it.
    fn members(&mut self) -> Option<HashSet<Pid>> {
        let members: HashSet<Pid> = match self.freezer()?.members() {
            Ok(members) => members.into_iter().collect(),
            Err(_) => {
                self.freezer_failed = true;
                return None;
            }
        };
        if self.found.is_some() {
            let tracked: HashSet<Pid> = self.tracked.list().into_iter().collect();
            if !members.is_subset(&tracked) {
                self.give_up_found();
                return None;
            }
        }
        Some(members)
    }

    /// Holds by ptrace from now on, as others are in the target's cgroup, or somebody else froze it.
    fn give_up_found(&mut self) {
        if let Some(mut found) = self.found.take() {
            found.thaw();
        }
        self.why_not = Some("its cgroup did not stay its own".to_owned());
    }

    /// Why a process could not be held, if it could not, at the hold that is under way.
    pub(crate) fn refusal_of(&self, pid: Pid) -> Option<TraceeError> {
        let mut refused = self.by_ptrace.iter().flat_map(Held::refused);
        refused.find_map(|why| why.of(pid))
    }

    /// Lets everything run.
    ///
    /// # Errors
    /// Where the freezer does not let go.
    pub(crate) fn thaw(&mut self) -> Result<Release, RecordError> {
        let mut release = Release {
            spared: self.spared.take(),
            ..Release::default()
        };
        self.standing.clear();
        if let Some(held) = &self.by_ptrace {
            release.unheld += held.refused().len() as u64;
        }
        if let (Some(before), Some(freezer)) = (self.frozen.take(), self.freezer()) {
            // Somebody can let it go and freeze it again meanwhile.
            release.cut_short = self.tracked.thaws() != self.thaws
                || freezer.is_asked_to_freeze().is_ok_and(|asked| !asked);
            // Somebody can move a process out of the cgroup, and so let it run.
            let now: HashSet<Pid> = freezer.members().unwrap_or_default().into_iter().collect();
            let gone = before
                .difference(&now)
                .filter(|pid| lives(**pid) && !is_in(**pid, freezer.path()));
            release.unheld += gone.count() as u64;
        }
        let thawed = match (&mut self.found, &self.made) {
            (Some(found), _) => {
                found.thaw();
                Ok(())
            }
            (None, Some(made)) if !self.freezer_failed => made.freezer().thaw(),
            _ => Ok(()),
        };
        if self.by_ptrace.take().is_some() || self.freezer().is_none() {
            // It will be wanted again.
            self.standby = Standby::start().ok();
        }
        thawed?;
        Ok(release)
    }

    fn freezer(&self) -> Option<&Freezer> {
        if self.freezer_failed {
            return None;
        }
        let found = self.found.as_ref().map(FoundGroup::freezer);
        found.or(self.made.as_ref().map(Cgroup::freezer))
    }

    /// What held the target so far: the word of the manifest.
    pub(crate) fn name(&self) -> String {
        let Means {
            made,
            found,
            ptrace,
        } = self.used;
        let words = [(made, "cgroup"), (found, "own cgroup"), (ptrace, "ptrace")];
        let used: Vec<&str> = words.iter().filter(|w| w.0).map(|w| w.1).collect();
        used.join(", ")
    }

    /// The same as a sentence; none where it is what everybody expects, a cgroup made for a command.
    pub(crate) fn sentence(&self) -> String {
        let Means {
            made,
            found,
            ptrace,
        } = self.used;
        if made && !found && !ptrace {
            return String::new();
        }
        let freezer = match (made, found) {
            (true, _) => "the freezer of a cgroup made for it",
            (_, true) => "the freezer of its own cgroup",
            _ => "",
        };
        let mut text = "The target was held by ".to_owned();
        text += freezer;
        match (freezer.is_empty(), ptrace) {
            (true, true) => text += "ptrace",
            (false, true) if self.spared.is_any() => {
                text +=
                    ", and by ptrace where it was not in that, or would not all have survived it";
            }
            (false, true) => text += ", and by ptrace where it was not in that",
            (false, false) => {}
            (true, false) => return "The target was never held.".to_owned(),
        }
        if let Some(why) = self.why_not.as_ref().filter(|_| ptrace) {
            text += ": ";
            text += why;
        }
        text + "."
    }

    /// Who was not held, as that would have ended them: a sentence, where there was anybody.
    pub(crate) fn describe_spared(&self) -> Option<String> {
        self.spared.describe()
    }
}

/// Whether a process has not ended. One whose first thread has ended lives on in the others.
fn lives(pid: Pid) -> bool {
    varve_sys::status(pid).is_ok_and(|s| !matches!(s.state, 'Z' | 'X') || s.threads > 1)
}

/// Whether a process is in this cgroup or below it. One that is about to end is, although the kernel lists it no more.
fn is_in(pid: Pid, group: &Path) -> bool {
    Cgroup::of(pid).is_ok_and(|path| path.starts_with(group))
}

/// The processes that a freezer does not hold.
#[derive(Clone)]
struct Outside {
    tracked: Arc<TrackedProcesses>,
    /// Those that it holds.
    members: Arc<HashSet<Pid>>,
    /// Its cgroup, if there is one.
    group: Option<PathBuf>,
}

impl Outside {
    /// All that have not ended. Costs little for the members: only who is not among them is looked at.
    fn list(&self) -> Vec<Pid> {
        let mut pids = self.tracked.list();
        let is_held = |pid: Pid| self.group.as_ref().is_some_and(|group| is_in(pid, group));
        pids.retain(|pid| !self.members.contains(pid) && lives(*pid) && !is_held(*pid));
        pids
    }

    /// Those of them that survive it.
    fn can_be_held(&self) -> Vec<Pid> {
        let mut pids = self.list();
        pids.retain(|pid| !self.tracked.dies_of_holds(*pid));
        pids
    }
}
