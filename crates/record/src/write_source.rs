//! Where it comes from which pages were written.

use varve_bpf::Kernel;

use crate::preflight::gains_rights;
use crate::runs::Writes;
use crate::target::is_static;
use crate::writes::WriteWatch;
use crate::{RecordError, RecordOptions, TargetChoice, WritesChoice};

/// What tells of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteSource {
    Nothing,
    SoftDirty,
    UserFault,
}

impl WriteSource {
    /// Chooses as asked for, and prepares the kernel part.
    ///
    /// # Errors
    /// Where writes were asked for and cannot be told.
    pub(crate) fn choose(
        options: &RecordOptions,
        kernel: &mut Kernel,
    ) -> Result<WriteSource, RecordError> {
        match options.writes {
            WritesChoice::Off => Ok(WriteSource::Nothing),
            _ if kernel.tells_writes() => Ok(WriteSource::SoftDirty),
            WritesChoice::Auto => Ok(WriteSource::Nothing),
            WritesChoice::On => {
                check(options)?;
                kernel.guard_writes()?;
                Ok(WriteSource::UserFault)
            }
        }
    }

    /// Its name in manifests.
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            WriteSource::Nothing => None,
            WriteSource::SoftDirty => Some("soft-dirty"),
            WriteSource::UserFault => Some("userfaultfd"),
        }
    }

    /// Who watches the processes' writes, where somebody has to.
    pub(crate) fn watch(self) -> Option<WriteWatch> {
        (self == WriteSource::UserFault).then(WriteWatch::new)
    }
}

impl From<WriteSource> for Writes {
    fn from(source: WriteSource) -> Writes {
        match source {
            WriteSource::Nothing => Writes::Unknown,
            WriteSource::SoftDirty => Writes::Known,
            WriteSource::UserFault => Writes::Partly,
        }
    }
}

/// Whether the target can be asked for a userfaultfd, and the kernel has what it takes.
fn check(options: &RecordOptions) -> Result<(), RecordError> {
    let refused = |why: &str| Err(RecordError::NoWrites(why.to_owned()));
    match &options.target {
        TargetChoice::Attach(_) => {
            return refused("only programs that varve starts can be asked for a userfaultfd");
        }
        TargetChoice::Command(_) if options.preload.is_none() => {
            return refused("userfaultfd needs the preload library");
        }
        TargetChoice::Command(command) if is_static(command) => {
            return refused(
                "the program is static, so it loads no library that asks for a userfaultfd",
            );
        }
        TargetChoice::Command(command) if gains_rights(command) => {
            return refused(
                "the program gains rights, so it loads no library that asks for a userfaultfd",
            );
        }
        TargetChoice::Command(_) => {}
    }
    varve_sys::try_write_protection().map_err(|e| {
        RecordError::NoWrites(format!(
            "its userfaultfd cannot protect pages and let writes go on by themselves: {e}"
        ))
    })
}
