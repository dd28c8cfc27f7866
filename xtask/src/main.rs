//! Chores of the repository: `cargo xtask --help`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod cases;
mod chroot;
mod error;
mod guest;
mod initramfs;
mod kernels;
#[cfg(test)]
mod layers;
mod programs;
mod report;
mod roots;
mod truth;
mod vm;

use cases::Wanted;
use error::{Error, Result};

/// Chores of the repository
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run a command under another kernel, with this machine's root file system
    ///
    /// Exits with the command's own code; 125 if the machine failed.
    Vm {
        #[command(flatten)]
        machine: Box<vm::Machine>,
        /// Print how long booting and the command took, on stderr
        #[arg(long)]
        times: bool,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Run `varve doctor` and cases of the truth suites under each kernel
    ///
    /// Without --all or names: those that differ by kernel. Exits with 77 where kernels cannot be fetched because this machine
    /// has no network.
    VmTruth {
        #[command(flatten)]
        kernels: Kernels,
        /// Every case; half an hour for each kernel
        #[arg(long, conflicts_with = "cases")]
        all: bool,
        /// These cases, by exact name: CASE, or 'SUITE CASE'
        #[arg(last = true)]
        cases: Vec<String>,
    },
    /// Fetch the kernels, so that they are there when they are needed
    ///
    /// Exits with 77 where that cannot be because this machine has no network.
    VmFetch {
        #[command(flatten)]
        kernels: Kernels,
    },
    /// Print what each kernel offers to a recorder
    VmFacts {
        #[command(flatten)]
        kernels: Kernels,
    },
    /// Check the virtual machines themselves
    VmCheck {
        /// Kernel series
        #[arg(default_values_t = truth::KERNELS.map(str::to_owned))]
        kernels: Vec<String>,
    },
    /// Run programs of Debian alone and under each kind of recording, and compare what they do
    ///
    /// Each runs twice alone, then under `record`, `record --backend fault` and `alloc record` of $VARVE or the release build: output,
    /// exit code and files are to be the same. Exits with 1 where something differs.
    Programs(programs::Options),
    /// Make root folders of other Debian releases, with their C libraries, so that the tests can run programs of theirs
    ///
    /// They are made once, in target/roots. Exits with 77 where one cannot be made: there is no network, or no mirror has it.
    Roots {
        /// Which releases, by code name [default: 11 to 13 without this machine's own]
        suites: Vec<String>,
    },
    /// Run make in a fresh minimal Debian 12, with the host's Rust
    CleanChroot {
        /// Debian packages to install beside the minimal system
        #[arg(long, value_delimiter = ',', default_value = DEBIAN_PACKAGES)]
        packages: Vec<String>,
        /// What to make
        #[arg(default_values = ["demo", "test"])]
        targets: Vec<String>,
    },
}

/// What a minimal Debian needs before `make`, as the README tells its readers.
const DEBIAN_PACKAGES: &str =
    "ca-certificates,make,gcc,g++,git,clang,llvm,libelf-dev,zlib1g-dev,pkg-config,python3";

/// The kernels of one run, and the machine for each.
#[derive(clap::Args)]
struct Kernels {
    /// Which kernels, instead of 6.1 and 6.12 (comma-separated)
    #[arg(long, value_delimiter = ',', default_values_t = truth::KERNELS.map(str::to_owned))]
    kernels: Vec<String>,
    #[command(flatten)]
    machine: Box<vm::Machine>,
}

/// Folders that every chore needs.
struct Places {
    /// The checkout.
    repository: PathBuf,
    /// Cargo's target folder: everything that is built or fetched.
    target: PathBuf,
}

impl Places {
    fn find() -> Self {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap_or(Path::new("/"))
            .to_owned();
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| repository.join("target"), PathBuf::from);
        Places { repository, target }
    }
}

fn main() -> ExitCode {
    match chore(Cli::parse().chore) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            if let Error::Failed {
                hint: Some(hint), ..
            } = &error
            {
                eprintln!("hint: {hint}");
            }
            // As `env`, `timeout` and others say "I failed, not the command".
            ExitCode::from(125)
        }
    }
}

fn chore(chore: Chore) -> Result<u8> {
    let places = Places::find();
    match chore {
        Chore::Vm {
            machine,
            times,
            command,
        } => {
            let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
            let mut output = guest::Output {
                out: &mut out,
                err: &mut err,
            };
            let outcome = vm::run_in(&places, &machine, &command, &mut output)?;
            // Nothing is lost if this fails: whoever read it has gone.
            let _ = out.flush();
            if times {
                eprintln!(
                    "booted in {:.1} s, ran {:.1} s",
                    outcome.boot.as_secs_f64(),
                    outcome.ran.as_secs_f64()
                );
            }
            Ok(u8::try_from(outcome.code).unwrap_or(255))
        }
        Chore::VmTruth {
            kernels,
            all,
            cases,
        } => {
            if !fetched(&places, &kernels)? {
                return Ok(SKIPPED);
            }
            let wanted = if all {
                Wanted::All
            } else if cases.is_empty() {
                Wanted::Chosen
            } else {
                Wanted::Named(cases)
            };
            Ok(code(truth::truth(
                &places,
                &kernels.machine,
                &kernels.kernels,
                &wanted,
            )?))
        }
        Chore::VmFetch { kernels } => Ok(if fetched(&places, &kernels)? {
            0
        } else {
            SKIPPED
        }),
        Chore::VmFacts { kernels } => Ok(code(truth::facts(
            &places,
            &kernels.machine,
            &kernels.kernels,
        )?)),
        Chore::VmCheck { kernels } => Ok(code(truth::check_harness(&places, &kernels)?)),
        Chore::Programs(options) => Ok(code(programs::programs(&places, &options)?)),
        Chore::Roots { suites } => Ok(if roots::roots(&places.target, &suites)? {
            0
        } else {
            SKIPPED
        }),
        Chore::CleanChroot { packages, targets } => {
            Ok(code(chroot::clean_chroot(&places, &packages, &targets)?))
        }
    }
}

/// What other test programs exit with where they cannot run.
const SKIPPED: u8 = 77;

/// Whether all kernels are here; if not, because this machine has no network, which is said.
fn fetched(places: &Places, wanted: &Kernels) -> Result<bool> {
    for series in &wanted.kernels {
        match kernels::kernel(&places.target, series) {
            Ok(_) => {}
            Err(error) if !kernels::has_network() => {
                println!(
                    "skipped: the kernel {series}: it is fetched once, and this machine has no network ({error})"
                );
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn code(passed: bool) -> u8 {
    u8::from(!passed)
}
