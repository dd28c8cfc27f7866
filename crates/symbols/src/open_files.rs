//! Files that stay readable whatever becomes of their names.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use varve_sys::FileIdentity;

/// Files that were opened while programs had them mapped, by what the kernel calls them. An open file keeps its inode, so that the
/// same number is the same file. Copies share the files.
#[derive(Clone, Debug, Default)]
pub struct OpenFiles(Arc<HashMap<FileIdentity, File>>);

impl OpenFiles {
    /// These files.
    pub fn new(files: HashMap<FileIdentity, File>) -> Self {
        Self(Arc::new(files))
    }

    /// The file of that identity.
    pub(crate) fn get(&self, identity: FileIdentity) -> Option<&File> {
        self.0.get(&identity)
    }
}
