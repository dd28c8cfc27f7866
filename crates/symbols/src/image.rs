//! The search for ELF files of a recording, and for their separate debug files.

mod bytes;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::{Object, ObjectSection};

pub use self::bytes::Keep;
pub(crate) use self::bytes::{Elf, Image, parse};
use crate::debug_server::DebugServer;
use crate::input::{BuildId, Mapping, undeleted};
use crate::open_files::OpenFiles;
use crate::status::{DebugInfo, ModuleStatus, Unusable};

/// A mini debug file (`.gnu_debugdata`) may not unpack to more than this.
const MINI_LIMIT: usize = 256 << 20;

/// Where to look for the files of a recording.
///
/// The defaults suit a recording of this machine that ended a moment ago. Another machine's trace needs roots
/// with that machine's files, or gets statuses that say what is missing.
#[derive(Debug, Clone)]
pub struct Locator {
    /// Prefixes tried before a mapping's path, in order; the empty prefix is this machine.
    pub roots: Vec<PathBuf>,
    /// Folders of separate debug files, each with `.build-id/xx/yyyy.debug` inside.
    pub debug_folders: Vec<PathBuf>,
    /// Servers that are asked for debug files that lie in none of those folders.
    pub debug_server: Option<Arc<DebugServer>>,
    /// Try `/proc/PID/root` and `/proc/PID/map_files` of the process, which reach containers and deleted
    /// files for as long as it lives.
    pub live_processes: bool,
    /// Files that are open since they were mapped.
    pub open_files: OpenFiles,
    /// Which files may stay open.
    pub keep: Keep,
    /// The image of the vDSO, when the caller has it. `None`: that of this machine's kernel.
    pub vdso: Option<Vec<u8>>,
}

impl Default for Locator {
    fn default() -> Self {
        Self {
            roots: vec![PathBuf::new()],
            debug_folders: vec![PathBuf::from("/usr/lib/debug")],
            debug_server: None,
            live_processes: true,
            open_files: OpenFiles::default(),
            keep: Keep::default(),
            vdso: None,
        }
    }
}

/// The files of one module, as found.
pub(crate) struct ModuleFiles {
    /// The file that was mapped.
    pub(crate) main: Option<Image>,
    /// The separate debug file.
    pub(crate) debug: Option<Image>,
    /// The supplementary file that a `dwz`-packed debug file refers to.
    pub(crate) supplement: Option<Image>,
    /// What was found and what is missing.
    pub(crate) status: ModuleStatus,
}

impl ModuleFiles {
    fn unusable(why: Unusable) -> Self {
        Self {
            main: None,
            debug: None,
            supplement: None,
            status: ModuleStatus::Unusable(why),
        }
    }
}

pub(crate) fn build_id(file: &Elf<'_>) -> Option<BuildId> {
    file.build_id()
        .ok()
        .flatten()
        .map(|id| BuildId(id.to_vec()))
}

/// Whether the file at this path is of this build. It is opened as every file of a target's user is: what is no regular file, and what a
/// file system does not give in time, is not.
pub fn is_build(path: &Path, id: &BuildId) -> bool {
    let image = Image::open(path).ok();
    let found = image.as_ref().and_then(parse);
    found.and_then(|file| build_id(&file)).as_ref() == Some(id)
}

fn has_section(file: &Elf<'_>, name: &str) -> bool {
    // Debug files made by objcopy keep the headers of stripped sections as NOBITS, of no bytes here.
    file.section_by_name(name)
        .and_then(|section| section.compressed_file_range().ok())
        .is_some_and(|range| range.compressed_size > 0)
}

fn has_symbols(file: &Elf<'_>) -> bool {
    has_section(file, ".symtab")
}

fn has_lines(file: &Elf<'_>) -> bool {
    has_section(file, ".debug_info") || has_section(file, ".zdebug_info")
}

impl Locator {
    /// That of a recorder, whose target runs.
    pub fn while_recording() -> Self {
        Self {
            keep: Keep::OwnMounts,
            ..Self::default()
        }
    }

    /// Opens the file behind `mapping` and its debug file.
    pub(crate) fn module(&self, mapping: &Mapping) -> ModuleFiles {
        if mapping.path == "[vdso]" {
            return self.vdso_module(mapping);
        }
        match self.find(mapping) {
            Ok((image, at)) => self.with_debug(image, Path::new(undeleted(&mapping.path).0), &at),
            Err(why) => ModuleFiles::unusable(why),
        }
    }

    /// Opens the file behind `mapping` alone.
    pub(crate) fn main(&self, mapping: &Mapping) -> Option<Image> {
        if mapping.path == "[vdso]" {
            return self.vdso_module(mapping).main;
        }
        self.find(mapping).ok().map(|(image, _)| image)
    }

    fn find(&self, mapping: &Mapping) -> Result<(Image, PathBuf), Unusable> {
        let (path, deleted) = undeleted(&mapping.path);
        let mut why = None;
        for candidate in self.candidates(mapping, path) {
            let image = match candidate.open(self.keep, mapping.build_id.is_some()) {
                Ok(image) => image,
                Err(error) => {
                    // The reason that counts is that of the plain path, which comes last.
                    if why
                        .as_ref()
                        .is_none_or(|why| matches!(why, Unusable::Unreadable(_)))
                    {
                        let reason = if deleted {
                            "it was deleted".to_owned()
                        } else {
                            error.to_string()
                        };
                        why = Some(Unusable::Unreadable(reason));
                    }
                    continue;
                }
            };
            let Some(file) = parse(&image) else {
                why = Some(Unusable::NotElf);
                continue;
            };
            match (&mapping.build_id, build_id(&file)) {
                (Some(expected), Some(found)) if *expected == found => {}
                (Some(expected), found) => {
                    why = Some(Unusable::BuildIdMismatch {
                        expected: expected.clone(),
                        found,
                    });
                    continue;
                }
                // Without a recorded build id, the name of a deleted file proves nothing.
                (None, _) if deleted && !candidate.same_file => {
                    why = Some(Unusable::Replaced);
                    continue;
                }
                (None, _) => {}
            }
            drop(file);
            return Ok((image, candidate.path));
        }
        Err(why.unwrap_or(Unusable::Unreadable("no place to look for it".to_owned())))
    }

    /// This kernel's vDSO, where the mapping may be of it: that of another kernel has other functions at the same addresses.
    fn vdso_module(&self, mapping: &Mapping) -> ModuleFiles {
        let image = self.vdso.clone().or_else(own_vdso).map(Image::Owned);
        let Some(found) = image.as_ref().and_then(parse).map(|file| build_id(&file)) else {
            return ModuleFiles::unusable(Unusable::Unreadable(
                "this kernel's vDSO cannot be read".to_owned(),
            ));
        };
        if let Some(expected) = &mapping.build_id
            && found.as_ref() != Some(expected)
        {
            return ModuleFiles::unusable(Unusable::BuildIdMismatch {
                expected: expected.clone(),
                found,
            });
        }
        ModuleFiles {
            main: image,
            debug: None,
            supplement: None,
            status: ModuleStatus::Kernel,
        }
    }

    fn candidates(&self, mapping: &Mapping, path: &str) -> Vec<Candidate<'_>> {
        let mut all = Vec::new();
        if self.live_processes {
            let process = PathBuf::from(format!("/proc/{}", mapping.pid.0));
            let (start, end) = (
                mapping.address.0,
                mapping.address.0.saturating_add(mapping.bytes.0),
            );
            // The very file that is mapped, whatever became of its name. It needs CAP_SYS_ADMIN or so.
            let very = process.join(format!("map_files/{start:x}-{end:x}"));
            // The number of a process that is gone may be another's by now.
            let same_file =
                std::fs::read_link(&very).is_ok_and(|target| target == Path::new(&mapping.path));
            if same_file {
                all.push(Candidate {
                    path: very,
                    root: None,
                    file: None,
                    same_file,
                });
            }
            all.push(Candidate {
                path: under(&process.join("root"), path),
                root: Some((process.join("root"), PathBuf::from(path))),
                file: None,
                same_file: false,
            });
        }
        if let Some(file) = mapping.file.and_then(|file| self.open_files.get(file)) {
            all.push(Candidate {
                path: PathBuf::from(path),
                root: None,
                file: Some(file),
                same_file: true,
            });
        }
        all.extend(self.roots.iter().map(|root| Candidate {
            path: under(root, path),
            root: (!root.as_os_str().is_empty()).then(|| (root.clone(), PathBuf::from(path))),
            file: None,
            same_file: false,
        }));
        all
    }

    /// Finds symbols and lines: in the file, else in its separate debug file, else in its mini debug section.
    fn with_debug(&self, image: Image, path: &Path, at: &Path) -> ModuleFiles {
        let (debug, info) = {
            let Some(file) = parse(&image) else {
                return ModuleFiles::unusable(Unusable::NotElf);
            };
            if has_lines(&file) && has_symbols(&file) {
                (None, DebugInfo::Inside)
            } else if let Some((debug_path, debug)) = self.debug_file(&file, path, at) {
                (Some(debug), DebugInfo::Separate(debug_path))
            } else if has_lines(&file) {
                (None, DebugInfo::Inside)
            } else if has_symbols(&file) {
                (None, DebugInfo::SymbolsOnly)
            } else if let Some(mini) = mini_debug(&file) {
                (Some(mini), DebugInfo::Mini)
            } else {
                (
                    None,
                    DebugInfo::Stripped {
                        build_id: build_id(&file),
                    },
                )
            }
        };
        let supplement = self.supplement(debug.as_ref().unwrap_or(&image), &info, at);
        ModuleFiles {
            main: Some(image),
            debug,
            supplement,
            status: ModuleStatus::Found(info),
        }
    }

    fn debug_file(&self, file: &Elf<'_>, path: &Path, at: &Path) -> Option<(PathBuf, Image)> {
        let id = build_id(file);
        self.local_debug_file(file, id.as_ref(), path, at)
            .or_else(|| {
                let path = self.debug_server.as_ref()?.fetch(id.as_ref()?)?;
                let image = accept_debug(&path, id.as_ref())?;
                let same = parse(&image).and_then(|file| build_id(&file)) == id;
                same.then_some((path, image))
            })
    }

    fn local_debug_file(
        &self,
        file: &Elf<'_>,
        id: Option<&BuildId>,
        path: &Path,
        at: &Path,
    ) -> Option<(PathBuf, Image)> {
        for folder in &self.debug_folders {
            if let Some(path) = id.and_then(|id| id.debug_path(folder))
                && let Some(image) = accept_debug(&path, id)
            {
                return Some((path, image));
            }
        }
        let (link, sum) = file.gnu_debuglink().ok()??;
        let link = Path::new(OsStr::from_bytes(link));
        // A link is a bare file name; a path in it would let a file name any other.
        let link = link.file_name()?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mut places = Vec::new();
        for root in self
            .roots
            .iter()
            .map(|root| under_path(root, folder))
            .chain(at.parent().map(Path::to_owned))
        {
            places.push(root.join(link));
            places.push(root.join(".debug").join(link));
        }
        for debug in &self.debug_folders {
            places.push(under_path(debug, folder).join(link));
        }
        places.into_iter().find_map(|place| {
            let image = accept_debug(&place, id)?;
            // Where both files carry a build id, it was compared already and is worth more than the sum.
            let proven = id.is_some() && parse(&image).and_then(|file| build_id(&file)).is_some();
            (proven || image.whole().map(crc32) == Some(sum)).then_some((place, image))
        })
    }

    fn supplement(&self, image: &Image, info: &DebugInfo, at: &Path) -> Option<Image> {
        let file = parse(image)?;
        let (link, id) = file.gnu_debugaltlink().ok()??;
        let id = BuildId(id.to_vec());
        let link = Path::new(OsStr::from_bytes(link));
        let beside = match info {
            DebugInfo::Separate(path) => path.parent(),
            _ => at.parent(),
        };
        let mut places: Vec<PathBuf> = self
            .debug_folders
            .iter()
            .filter_map(|folder| id.debug_path(folder))
            .collect();
        places.extend(beside.map(|folder| folder.join(link)));
        // Distributions name it relative to the debug folder, `../../.dwz/...`; the last parts are enough.
        let tail: PathBuf = link
            .components()
            .filter(|part| matches!(part, std::path::Component::Normal(_)))
            .collect();
        places.extend(self.debug_folders.iter().map(|folder| folder.join(&tail)));
        places.into_iter().find_map(|place| {
            let image = Image::open(&place).ok()?;
            let same = parse(&image).and_then(|file| build_id(&file)) == Some(id.clone());
            same.then_some(image)
        })
    }
}

struct Candidate<'a> {
    path: PathBuf,
    /// The folder that the file must lie in, and the path as it is seen from there.
    root: Option<(PathBuf, PathBuf)>,
    /// The file itself, where it is open.
    file: Option<&'a File>,
    /// The kernel vouches that this is the mapped file.
    same_file: bool,
}

impl Candidate<'_> {
    /// Opens it. Without a build id, which proves that it is the file, nothing may have changed what its path means:
    /// the kernel gave it without symbolic links.
    fn open(&self, keep: Keep, proven: bool) -> std::io::Result<Image> {
        if let Some(file) = self.file {
            let again = file.try_clone()?;
            return Image::by(keep, move || Ok(again));
        }
        let path = self.path.clone();
        match self.root.clone() {
            Some((root, path)) => Image::by(keep, move || varve_sys::open_regular_in(&root, &path)),
            None if proven || self.same_file => Image::open_and(keep, &path),
            None => Image::by(keep, move || varve_sys::open_regular_exactly(&path)),
        }
    }
}

fn under(root: &Path, path: &str) -> PathBuf {
    under_path(root, Path::new(path))
}

fn under_path(root: &Path, path: &Path) -> PathBuf {
    if root.as_os_str().is_empty() {
        return path.to_owned();
    }
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn accept_debug(path: &Path, id: Option<&BuildId>) -> Option<Image> {
    let image = Image::open(path).ok()?;
    {
        let file = parse(&image)?;
        if let (Some(expected), Some(found)) = (id, build_id(&file))
            && *expected != found
        {
            return None;
        }
        if !has_lines(&file) && !has_symbols(&file) {
            return None;
        }
    }
    Some(image)
}

/// Unpacks `.gnu_debugdata`, the xz-packed symbol table of Fedora and its kin.
fn mini_debug(file: &Elf<'_>) -> Option<Image> {
    let packed = file.section_by_name(".gnu_debugdata")?.data().ok()?;
    let mut unpacked = Bounded(Vec::new());
    lzma_rs::xz_decompress(&mut &*packed, &mut unpacked).ok()?;
    let image = Image::Owned(unpacked.0);
    parse(&image)?;
    Some(image)
}

struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MINI_LIMIT {
            return Err(std::io::Error::other("unpacks to too much"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The checksum of `.gnu_debuglink`: CRC-32 with the polynomial of zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let mut table = [0u32; 256];
    for (value, entry) in (0u32..).zip(table.iter_mut()) {
        *entry = (0..8).fold(value, |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        });
    }
    !bytes.iter().fold(!0, |crc, byte| {
        (crc >> 8) ^ table[((crc ^ u32::from(*byte)) & 0xff) as usize]
    })
}

/// Copies the vDSO of this process: one kernel gives the same image to all its processes of one word size.
fn own_vdso() -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
    File::open("/proc/self/mem")
        .ok()?
        .read_exact_at(&mut bytes, start)
        .ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_zlib() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn this_kernel_has_a_vdso() {
        assert!(own_vdso().is_some_and(|bytes| parse(&Image::Owned(bytes)).is_some()));
    }

    #[test]
    fn the_vdso_of_another_kernel_is_not_this_ones() {
        use varve_model::{Address, Bytes, Pid, Time};
        let of = |build_id| Mapping {
            pid: Pid(1),
            address: Address(0x7fff_0000_0000),
            bytes: Bytes(0x2000),
            perms: "r-xp".to_owned(),
            offset: Bytes(0),
            path: "[vdso]".to_owned(),
            called: None,
            file: None,
            build_id,
            from: Time(0),
            to: None,
        };
        let own = own_vdso().map(Image::Owned).unwrap();
        let own = parse(&own).and_then(|file| build_id(&file)).unwrap();
        let has = |id| Locator::default().main(&of(id)).is_some();
        assert!(has(None) && has(Some(own)));
        assert!(!has(Some(BuildId(vec![1; 20]))));
    }
}
