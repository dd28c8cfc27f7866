//! Who may read a trace.

/// Who may read a trace besides its owner. Whatever the umask is, nobody else may write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Nobody: a trace holds command lines and addresses.
    #[default]
    Private,
    /// Everybody.
    Shared,
}

impl Access {
    /// The permissions of files.
    pub const fn of_files(self) -> u32 {
        match self {
            Access::Private => 0o600,
            Access::Shared => 0o644,
        }
    }

    /// Who may read a folder of this mode.
    pub(crate) const fn of_mode(mode: u32) -> Access {
        if mode & 0o005 == 0o005 {
            Access::Shared
        } else {
            Access::Private
        }
    }

    /// The permissions of folders.
    pub const fn of_folders(self) -> u32 {
        match self {
            Access::Private => 0o700,
            Access::Shared => 0o755,
        }
    }
}
