//! The loaded programs as the recorder uses them

mod backlog;
mod events;
mod findings;
mod harvest;
mod loaded;
mod operations;
mod tracked;

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, Object};
use varve_model::{Address, Duration, Pid, Time};

use self::backlog::Backlog;
use self::findings::describe;
pub use self::harvest::ATOMIC_CLEARING;
pub use self::loaded::LoadedProgram;
pub use self::tracked::{ExemptProcesses, TrackedProcesses};
use crate::abi::{
    self, FlagArgs, Plain, Region as RawRegion, Resident as RawResident, Settings, Tracked,
    WalkArgs,
};
use crate::calibrate;
use crate::operations::counter_batch;
use crate::programs::{self, LOOK_AT_FILTERS, Loaded, MOVE_ASKED};
use crate::ring::{Mapped, Ring};
use crate::samples::{SampleMaps, online_cpus};
use crate::types::KernelTypes;
use crate::uprobes::MANY_BY_ONE_LINK;
use crate::{
    BpfError, Capability, Dropped, LoadOptions, MmId, PageFlags, Part, Region, Resident, Samples,
    TrackFlags, VanishHooks, WalkStats, raw,
};

/// The loaded and attached programs with their maps; dropping it detaches and removes everything
pub struct Kernel {
    /// Declared first, so that the programs are detached before their maps go
    links: Vec<libbpf_rs::Link>,
    harvesters: Vec<libbpf_rs::Link>,
    object: Object,
    /// The program that reads pages, where that was asked for
    walk: Option<OwnedFd>,
    change: OwnedFd,
    /// None where the kernel refused that program
    filters: Option<OwnedFd>,
    maps: Maps,
    regions: Mapped,
    residents: Mapped,
    region_limit: u32,
    ring: Ring,
    sample_ring: Option<Ring>,
    backlog: Backlog,
    /// Times that records came too late
    late: u64,
    settings: Settings,
    capabilities: Vec<Capability>,
    /// The programs that hang on something
    attached: HashSet<&'static str>,
    vanish: VanishHooks,
    watches_moves: bool,
    /// Whether one link attaches many probes
    attaches_many: bool,
}

struct Maps {
    harvest: OwnedFd,
    exempt: OwnedFd,
    settings: OwnedFd,
    tracked: OwnedFd,
    drops: OwnedFd,
    report_cost: OwnedFd,
    waits: OwnedFd,
    held_group: OwnedFd,
}

/// What reports have taken of the time of the threads that made them
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportsTook {
    /// How often a program ran
    pub runs: u64,
    /// How long they ran; on its way to each and back the thread loses more
    pub time: Duration,
}

impl Kernel {
    /// Loads and attaches the programs and finds out where the kernel keeps its memory
    ///
    /// # Errors
    /// [`BpfError::NoPrivilege`], [`BpfError::Forbidden`], [`BpfError::NoBtf`], [`BpfError::Verifier`] and
    /// [`BpfError::Calibration`] say why nothing can be recorded on this machine. What is merely
    /// missing is reported by [`Kernel::capabilities`].
    pub fn load(options: &LoadOptions) -> Result<Kernel, BpfError> {
        let types = KernelTypes::read()?;
        let attaches_many = options.probes && types.has(MANY_BY_ONE_LINK);
        let kernel = Kernel::load_with(options, &types, attaches_many)?;
        let probes = match kernel.attaches_many {
            true => kernel.probes().ok(),
            false => None,
        };
        match probes {
            // Programs are loaded for the one kind of link or the other.
            Some(probes) if !crate::uprobes::counts_all_threads(kernel.means(&probes)) => {
                Kernel::load_with(options, &types, false)
            }
            _ => Ok(kernel),
        }
    }

    fn load_with(
        options: &LoadOptions,
        types: &KernelTypes,
        attaches_many: bool,
    ) -> Result<Kernel, BpfError> {
        let Loaded {
            object,
            links,
            harvesters,
            attached,
            mut capabilities,
            exit_has_memory,
            vanish,
        } = programs::load(options, types, attaches_many)?;
        let maps = Maps {
            settings: map_fd(&object, "settings")?,
            harvest: map_fd(&object, "harvest")?,
            exempt: map_fd(&object, "exempt")?,
            tracked: map_fd(&object, "tracked")?,
            drops: map_fd(&object, "drops")?,
            report_cost: map_fd(&object, "report_cost")?,
            waits: map_fd(&object, "waits")?,
            held_group: map_fd(&object, "held_group")?,
        };
        let ring_bytes = programs::ring_bytes(options);
        let ring = Ring::new(map_fd(&object, "ring")?, ring_bytes)
            .map_err(system("mapping the ring buffer"))?;
        let sample_ring = Ring::new(
            map_fd(&object, "sample_ring")?,
            programs::sample_ring_bytes(options),
        )
        .map_err(system("mapping the ring buffer of samples"))?;
        let region_limit = options.walk_regions.max(1);
        let bytes = (region_limit as usize * size_of::<RawRegion>()).next_multiple_of(4096);
        let regions = Mapped::new(map_fd(&object, "regions")?.as_fd(), bytes, false, 0)
            .map_err(system("mapping the output of the walk"))?;
        let bytes = (region_limit as usize * size_of::<RawResident>()).next_multiple_of(4096);
        let residents = Mapped::new(map_fd(&object, "residents")?.as_fd(), bytes, false, 0)
            .map_err(system("mapping the output of the walk"))?;
        let mut start = Settings {
            stack_bytes: options.stack_bytes.min(abi::STACK_MAX),
            ring_wake: ring_bytes / 4,
            self_pid: std::process::id(),
            sample_stack: options.sample_stack_bytes.min(abi::SAMPLE_STACK_MAX),
            // Where it is not known nothing is said of counters
            counter_batch: online_cpus().map_or(u32::MAX, |cpus| counter_batch(cpus.len())),
            ..Default::default()
        };
        if options.pages {
            start.options |= abi::OPT_PAGES;
        }
        if attached.contains("prepare_exec") {
            start.options |= abi::OPT_PREPARE_EXEC;
        }
        if vanish == VanishHooks::Locks {
            start.options |= abi::OPT_RANGES;
        }
        if exit_has_memory {
            start.options |= abi::OPT_EXIT_HAS_MM;
        }
        let found = calibrate::calibrate(
            program_fd(&object, "calibrate")?.as_fd(),
            maps.settings.as_fd(),
            start,
        )?;
        capabilities.extend(describe(&found, exit_has_memory));
        let mut settings = found.settings;
        if found.soft_dirty {
            settings.options |= abi::OPT_SOFT_DIRTY;
        }
        let filters = match attached.contains(LOOK_AT_FILTERS) {
            true => Some(program_fd(&object, LOOK_AT_FILTERS)?),
            false => None,
        };
        let mut kernel = Kernel {
            links,
            watches_moves: false,
            harvesters,
            walk: match options.pages {
                true => Some(program_fd(&object, "walk_process")?),
                false => None,
            },
            change: program_fd(&object, "change_flags")?,
            filters,
            object,
            maps,
            regions,
            residents,
            region_limit,
            ring,
            sample_ring: Some(sample_ring),
            backlog: Backlog::default(),
            late: 0,
            settings,
            capabilities,
            attached,
            vanish,
            attaches_many,
        };
        kernel.set_page_flags(options.page_flags)?;
        if options.harvest {
            kernel.examine_harvest();
        }
        if vanish == VanishHooks::Locks && options.pages {
            // The lock is asked for by those calls alone that reach such memory.
            kernel.expect_memory_files()?;
        }
        Ok(kernel)
    }

    /// What works on this machine, for `varve doctor`
    pub fn capabilities(&self) -> &[Capability] {
        &self.capabilities
    }

    /// How many mechanisms this machine lacks without which no recording is complete
    pub fn missing_promised(&self) -> u64 {
        let known = self.capabilities.iter();
        known.filter(|c| c.promised && !c.available).count() as u64
    }

    /// What shows that pages go; what was asked for where the kernel has it
    pub fn vanish_hooks(&self) -> VanishHooks {
        self.vanish
    }

    /// Whether writes are distinguished from reads (the kernel has soft-dirty bits)
    pub fn tells_writes(&self) -> bool {
        self.settings.options & abi::OPT_SOFT_DIRTY != 0
    }

    /// Follows a process from now on; its threads are covered by it
    pub fn track(&self, pid: Pid, flags: TrackFlags) -> Result<(), BpfError> {
        let entry = Tracked {
            flags: flags.0,
            image: varve_sys::monotonic_now().0,
            ..Default::default()
        };
        raw::map_update(self.maps.tracked.as_fd(), pid.0, &entry).map_err(map_error("tracked"))
    }

    /// Changes flags of a tracked process, unless it runs another image by now (see [`TrackedProcesses::image`]);
    /// whether that was so
    ///
    /// # Errors
    /// [`BpfError::System`] where the kernel does not run the program.
    pub fn change_flags(
        &self,
        pid: Pid,
        image: Time,
        set: TrackFlags,
        clear: TrackFlags,
    ) -> Result<bool, BpfError> {
        let mut args = FlagArgs {
            image: image.0,
            pid: pid.0,
            set: set.0,
            clear: clear.0,
            done: 0,
        };
        raw::run(self.change.as_fd(), &mut args).map_err(system("changing a process's flags"))?;
        Ok(args.done != 0)
    }

    /// Looks at all reading and writing of tracked processes from now on, as one of them has a process's memory open as a
    /// file already; where one opens such a file later this happens by itself
    ///
    /// # Errors
    /// [`BpfError::System`] where the kernel does not run the program.
    pub fn expect_memory_files(&self) -> Result<(), BpfError> {
        let nobody = (Pid(0), Time(0));
        let flags = TrackFlags(abi::TRACK_MEMORY_FILES);
        self.change_flags(nobody.0, nobody.1, flags, TrackFlags::default())?;
        Ok(())
    }

    /// The processes that are tracked, to be asked for at any time
    pub fn tracked(&self) -> Result<TrackedProcesses, BpfError> {
        let map = self
            .maps
            .tracked
            .try_clone()
            .map_err(map_error("tracked"))?;
        let group = self.maps.held_group.try_clone();
        let filters = self.filters.as_ref().map(OwnedFd::try_clone).transpose();
        Ok(TrackedProcesses {
            map,
            group: group.map_err(map_error("held_group"))?,
            filters: filters.map_err(system("copying a program's descriptor"))?,
        })
    }

    /// The processes that may be fault handlers, to be asked for at any time
    pub fn exempt(&self) -> Result<ExemptProcesses, BpfError> {
        let map = self.maps.exempt.try_clone().map_err(map_error("exempt"))?;
        Ok(ExemptProcesses { map })
    }

    /// Stops following a process; an exit does so by itself
    pub fn untrack(&self, pid: Pid) -> Result<(), BpfError> {
        match raw::map_delete(self.maps.tracked.as_fd(), pid.0) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                Err(map_error("tracked")(error))
            }
            _ => Ok(()),
        }
    }

    /// Reads the accessed bits of a process, which should be held still, and hands each region in
    /// which something was touched to the sink, in order of addresses
    ///
    /// # Errors
    /// [`BpfError::NoProcess`] if there is nothing to read, [`BpfError::MemoryGone`] if the process
    /// ended meanwhile: the sink may have seen a part.
    pub fn walk(&mut self, pid: Pid, sink: &mut dyn FnMut(&Region)) -> Result<WalkStats, BpfError> {
        self.walk_for(pid, sink, None)
    }

    /// The same, and hands what is there, touched or not, to the second sink, in order of addresses too
    ///
    /// # Errors
    /// Those of [`Kernel::walk`].
    pub fn walk_all(
        &mut self,
        pid: Pid,
        sink: &mut dyn FnMut(&Region),
        residents: &mut dyn FnMut(&Resident),
    ) -> Result<WalkStats, BpfError> {
        self.walk_for(pid, sink, Some(residents))
    }

    /// The same of a part: the walk ends before [`Part::end`], or at the next multiple of 2 MiB at which [`Part::most`] pages were
    /// there. Gives where it ended, too; none where nothing is left up to the end.
    ///
    /// # Errors
    /// Those of [`Kernel::walk`]; [`BpfError::MemoryGone`] also where it is not the address space that was asked for.
    pub fn walk_part(
        &mut self,
        pid: Pid,
        part: &Part,
        sink: &mut dyn FnMut(&Region),
    ) -> Result<(WalkStats, Option<Address>), BpfError> {
        self.walk_between(pid, part, sink, None)
    }

    fn walk_for(
        &mut self,
        pid: Pid,
        sink: &mut dyn FnMut(&Region),
        residents: Option<&mut dyn FnMut(&Resident)>,
    ) -> Result<WalkStats, BpfError> {
        let walked = self.walk_between(pid, &Part::default(), sink, residents)?;
        Ok(walked.0)
    }

    fn walk_between(
        &mut self,
        pid: Pid,
        part: &Part,
        sink: &mut dyn FnMut(&Region),
        mut residents: Option<&mut dyn FnMut(&Resident)>,
    ) -> Result<(WalkStats, Option<Address>), BpfError> {
        let mut stats = WalkStats {
            mm: part.mm,
            ..WalkStats::default()
        };
        let mut start = part.start.0;
        let not_asked = || BpfError::Load("pages were not to be read".into());
        let walk = self.walk.as_ref().ok_or_else(not_asked)?;
        loop {
            let left = part
                .most
                .map(|most| most.saturating_sub(stats.present_pages).max(1));
            let mut args = WalkArgs {
                pid: pid.0,
                start,
                end: part.end.map_or(0, |end| end.0),
                most: left.unwrap_or(0),
                mm_wanted: stats.mm.0,
                wants_residents: u64::from(residents.is_some()),
                regions: self.region_limit,
                ..Default::default()
            };
            raw::run(walk.as_fd(), &mut args).map_err(system("running the walk program"))?;
            match -args.error {
                0 => {}
                libc::ESRCH => return Err(BpfError::NoProcess(pid)),
                libc::ESTALE => return Err(BpfError::MemoryGone(pid)),
                error => return Err(system("walking")(io::Error::from_raw_os_error(error))),
            }
            let bytes = self
                .regions
                .slice(0, args.regions as usize * size_of::<RawRegion>());
            for region in bytes.chunks_exact(size_of::<RawRegion>()) {
                if let Some(region) = RawRegion::read(region) {
                    sink(&region.region());
                }
            }
            if let Some(residents) = &mut residents {
                let bytes = args.residents as usize * size_of::<RawResident>();
                let found = self.residents.slice(0, bytes);
                for one in found.chunks_exact(size_of::<RawResident>()) {
                    if let Some(one) = RawResident::read(one) {
                        residents(&one.resident());
                    }
                }
            }
            stats.mm = MmId(args.mm);
            stats.first_ended = args.first_ended != 0;
            stats.calls += 1;
            stats.regions += u64::from(args.regions);
            stats.present_pages += args.present;
            stats.flag_checks += args.checks;
            stats.flag_failures += args.check_failures;
            stats.table_failures += args.table_failures;
            if args.resume == u64::MAX {
                return Ok((stats, None));
            }
            if part.most.is_some_and(|most| stats.present_pages >= most) {
                return Ok((stats, Some(Address(args.resume))));
            }
            start = args.resume;
        }
    }

    /// Switches the page-flag check on or off; on does nothing where the machine cannot do it
    pub fn set_page_flags(&mut self, check: PageFlags) -> Result<(), BpfError> {
        if check == PageFlags::Check && self.settings.vmemmap != 0 {
            self.settings.options |= abi::OPT_PAGE_FLAGS;
        } else {
            self.settings.options &= !abi::OPT_PAGE_FLAGS;
        }
        calibrate::store(self.maps.settings.as_fd(), &self.settings)
    }

    /// Distinguishes writes by userfaultfd's write protection from now on, instead of soft-dirty bits; faults
    /// that are there because of it are not reported
    pub fn guard_writes(&mut self) -> Result<(), BpfError> {
        self.settings.options |= abi::OPT_GUARDED;
        calibrate::store(self.maps.settings.as_fd(), &self.settings)
    }

    /// From now on this process clears accessed bits by `process_madvise`: nothing of that is looked at
    pub fn clears_parts(&mut self) -> Result<(), BpfError> {
        if self.settings.options & abi::OPT_CLEARS != 0 {
            return Ok(());
        }
        self.settings.options |= abi::OPT_CLEARS;
        calibrate::store(self.maps.settings.as_fd(), &self.settings)
    }

    /// Whether [`Kernel::guard_writes`] was called
    pub fn guards_writes(&self) -> bool {
        self.settings.options & abi::OPT_GUARDED != 0
    }

    /// Begins to sample what tracked processes with [`TrackFlags::SAMPLES`] do, `rate` times per second
    /// of every CPU, until the result is dropped; can be done once
    ///
    /// # Errors
    /// [`BpfError::Load`] where the kernel refused the program, [`BpfError::System`] where it has no
    /// such clock or does not let it be used.
    pub fn sample(&mut self, rate: u32) -> Result<Samples, BpfError> {
        let ring = self
            .sample_ring
            .take()
            .ok_or_else(|| BpfError::Load("samples are being taken already".into()))?;
        let maps = SampleMaps {
            drops: self.maps.drops.try_clone().map_err(map_error("drops"))?,
            cost: map_fd(&self.object, "sample_cost")?,
            period: map_fd(&self.object, "sample_period")?,
        };
        Samples::start(&self.object, ring, maps, rate)
    }

    /// From now on counts each `UFFDIO_MOVE` of tracked memory as a loss, which is to be called once an
    /// [`Event::Registration`] came. Every system call of the machine is slower from then on.
    ///
    /// # Errors
    /// Where the program could not be loaded, or cannot be attached
    pub fn watch_moves(&mut self) -> Result<(), BpfError> {
        if self.watches_moves {
            return Ok(());
        }
        let missing = || BpfError::MissingTracepoint("sys_enter".to_owned());
        let program = self.object.progs_mut().find(|p| p.name() == MOVE_ASKED);
        let link = program
            .ok_or_else(missing)?
            .attach_raw_tracepoint("sys_enter");
        self.links.push(link.map_err(|_| missing())?);
        self.watches_moves = true;
        Ok(())
    }

    /// Everything that could not be delivered since the load
    pub fn dropped(&self) -> Result<Dropped, BpfError> {
        Ok(Dropped {
            skipped: self.skipped()?,
            ..self.dropped_records()?
        })
    }

    /// The same but for [`Dropped::skipped`], which takes a system call for each program
    pub fn dropped_records(&self) -> Result<Dropped, BpfError> {
        let read = |kind: u32| {
            raw::map_lookup::<u64>(self.maps.drops.as_fd(), kind).map_err(map_error("drops"))
        };
        Ok(Dropped {
            faults: read(abi::DROP_FAULT)?,
            vanish_pages: read(abi::DROP_VANISH_PAGES)? + self.late,
            vanish_walks: read(abi::DROP_VANISH_WALKS)?,
            life: read(abi::DROP_LIFE)?,
            mappings: read(abi::DROP_MAPPING)?,
            tracking: read(abi::DROP_TRACK)?,
            skipped: 0,
        })
    }

    /// Marks of the program's that did not fit in the ring, since the load
    ///
    /// # Errors
    /// [`BpfError::Map`] where the counter cannot be read.
    pub fn dropped_marks(&self) -> Result<u64, BpfError> {
        raw::map_lookup::<u64>(self.maps.drops.as_fd(), abi::DROP_MARK).map_err(map_error("drops"))
    }

    /// CPU time of tracked threads that the programs took to report what they do, since the load: one run in sixteen is
    /// timed. What the kernel does around a program is not in it.
    ///
    /// # Errors
    /// [`BpfError::Map`] where the counters cannot be read.
    pub fn reports_took(&self) -> Result<ReportsTook, BpfError> {
        let cost: abi::ReportCost =
            raw::map_lookup(self.maps.report_cost.as_fd(), 0).map_err(map_error("report_cost"))?;
        Ok(ReportsTook {
            runs: cost.runs,
            time: Duration(cost.ns),
        })
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> BpfError {
    move |source| BpfError::System { what, source }
}

pub(crate) fn map_error(map: &'static str) -> impl FnOnce(io::Error) -> BpfError {
    move |source| BpfError::Map { map, source }
}

fn map_fd(object: &Object, name: &'static str) -> Result<OwnedFd, BpfError> {
    let map = object
        .maps()
        .find(|map| map.name() == name)
        .ok_or_else(|| BpfError::Load(format!("the object has no map {name}")))?;
    map.as_fd().try_clone_to_owned().map_err(map_error(name))
}

fn program_fd(object: &Object, name: &'static str) -> Result<OwnedFd, BpfError> {
    let program = object
        .progs()
        .find(|program| program.name() == name)
        .ok_or_else(|| BpfError::Load(format!("the object has no program {name}")))?;
    program
        .as_fd()
        .try_clone_to_owned()
        .map_err(system("copying a program's descriptor"))
}
