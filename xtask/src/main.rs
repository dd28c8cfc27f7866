//! Chores of the repository: `cargo xtask --help`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod chroot;
mod error;
mod guest;
mod initramfs;
mod kernels;
#[cfg(test)]
mod layers;
mod truth;
mod vm;

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
    /// Run `varve doctor` and the truth suite under each kernel
    VmTruth {
        #[command(flatten)]
        kernels: Kernels,
        /// A third of the executables under each kernel: the next commits run the others
        #[arg(long)]
        spread: bool,
        /// Words for the test executables: a filter, --nocapture
        #[arg(last = true)]
        filter: Vec<String>,
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
            spread,
            filter,
        } => {
            let turn = spread.then(|| truth::turn_of_commit(&places)).transpose()?;
            Ok(code(truth::truth(
                &places,
                &kernels.machine,
                &kernels.kernels,
                turn,
                &filter,
            )?))
        }
        Chore::VmFacts { kernels } => Ok(code(truth::facts(
            &places,
            &kernels.machine,
            &kernels.kernels,
        )?)),
        Chore::VmCheck { kernels } => Ok(code(truth::check_harness(&places, &kernels)?)),
        Chore::CleanChroot { packages, targets } => {
            Ok(code(chroot::clean_chroot(&places, &packages, &targets)?))
        }
    }
}

fn code(passed: bool) -> u8 {
    u8::from(!passed)
}
