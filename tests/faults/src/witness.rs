//! How late the machine lets anybody run.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(5);

/// Does what a recorder's flush does, every few milliseconds, and notes how long that takes at most: what a
/// recorder may be late by, which is the machine's doing and not its own.
#[derive(Debug)]
pub struct Witness {
    over: Arc<AtomicBool>,
    latest: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// Begins to look, with a file of its own in a folder of the file system in question.
    pub fn start(folder: PathBuf) -> Witness {
        let over = Arc::new(AtomicBool::new(false));
        let latest = Arc::new(AtomicU64::new(0));
        let (seen_over, noted) = (Arc::clone(&over), Arc::clone(&latest));
        let thread = std::thread::spawn(move || {
            let (new, whole) = (folder.join("witness.new"), folder.join("witness"));
            while !seen_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(PAUSE);
                // A full disk or a folder that is gone is not its business.
                let _ = fs::write(&new, [0; 4096]).and_then(|()| fs::rename(&new, &whole));
                let late = began.elapsed().saturating_sub(PAUSE);
                noted.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
            }
        });
        Witness {
            over,
            latest,
            thread: Some(thread),
        }
    }

    /// The latest that anything was until now, nanoseconds.
    pub fn latest_ns(&self) -> u64 {
        self.latest.load(Ordering::Relaxed)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
