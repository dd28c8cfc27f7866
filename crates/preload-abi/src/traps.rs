//! What the recorder and the fault handler of a process say to each other.
//!
//! The handler is a process that the preload library makes: it shares the memory of the process whose faults it
//! resolves, and alone can move pages in it. Both speak in datagrams of 64-bit words. The recorder asks with [`WHO`];
//! the handler, which has given up its rights, says [`HELLO`]; the recorder looks who said that, by the kernel's word, and
//! sends [`DEVICE`]; the handler makes its userfaultfd from it and sends that with [`READY`]. From then on each [`PROTECT`],
//! before which [`THREADS`] may come, is answered by [`PROTECTED`]. A handler that its program asks to end says [`ENDING`] and, once
//! all pages are back, [`RESOLVED`].

/// The environment variable that, if set, asks each process for a fault handler, which has a connection of its own
/// ([`crate::channel::Kind::Handler`]).
pub const TRAPS_VARIABLE: &str = "VARVE_PRELOAD_TRAPS";

/// To the handler: make a userfaultfd, from the device that comes with this.
pub const DEVICE: u64 = 1;
/// To the handler: the process is held; move what it has touched to its shadow. See [`Protect`].
pub const PROTECT: u64 = 2;
/// To the handler: the memory is of no use any more. Answered by [`RESOLVED`].
pub const QUIT: u64 = 3;
/// To the handler: thread pointers, as many as fit, whose pages the next [`PROTECT`] leaves alone.
pub const THREADS: u64 = 4;
/// To the handler: from now on the kernel says with each message who sent it. Answered by [`HELLO`].
pub const WHO: u64 = 5;

/// From the handler: here it is, with the userfaultfd, and the address of its [`Journal`](crate::journal::Journal).
pub const READY: u64 = 1;
/// From the handler: done. See [`Protected`].
pub const PROTECTED: u64 = 2;
/// From the handler, before [`PROTECTED`]: ranges of new memory to which pages are moved, as pairs of address and bytes.
pub const PLACES: u64 = 5;
/// From the handler: it is there, without rights, and waits for [`DEVICE`].
pub const HELLO: u64 = 4;
/// From the handler, which then ends: it cannot have a user of its own.
pub const SHARED_USER: u64 = 6;
/// From the handler, which then ends: accesses resolved since the last [`PROTECTED`], and of them those to pages without
/// content.
pub const RESOLVED: u64 = 3;

/// From the handler: its program has asked it to end, and it begins to put the pages back.
pub const ENDING: u64 = 7;

/// Words of a message at most.
pub const MAX_WORDS: usize = 4096;

/// What [`PROTECT`] says after its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protect {
    /// A page is protected if [`is_chosen`] says so with this seed,
    pub seed: u64,
    /// and this threshold.
    pub threshold: u64,
    /// Whether everything is put back first: another seed chooses other pages.
    pub afresh: bool,
    /// Whether the process's address space or data are limited: then no new memory is protected, as the places to which pages
    /// are moved would count.
    pub is_limited: bool,
}

impl Protect {
    /// Words of it, the kind of message included.
    pub const WORDS: usize = 5;

    /// As words.
    pub fn encode(&self) -> [u64; Protect::WORDS] {
        [
            PROTECT,
            self.seed,
            self.threshold,
            u64::from(self.afresh),
            u64::from(self.is_limited),
        ]
    }

    /// From words.
    pub fn decode(words: &[u64]) -> Option<Protect> {
        match words {
            [PROTECT, seed, threshold, afresh, is_limited] => Some(Protect {
                seed: *seed,
                threshold: *threshold,
                afresh: *afresh != 0,
                is_limited: *is_limited != 0,
            }),
            _ => None,
        }
    }
}

/// What [`PROTECTED`] says after its first word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// Pages moved.
    pub moved: u64,
    /// Resident pages that the kernel would not move: pinned, or shared with a forked process.
    pub stuck: u64,
    /// Bytes of private anonymous memory that could not be protected at all.
    pub refused_bytes: u64,
    /// Accesses resolved since the last such message.
    pub resolved: u64,
    /// Of them, to pages without content.
    pub empty: u64,
    /// Nanoseconds that it took to answer.
    pub took_ns: u64,
}

impl Protected {
    /// Words of it, the kind of message included.
    pub const WORDS: usize = 7;

    /// As words.
    pub fn encode(&self) -> [u64; Protected::WORDS] {
        [
            PROTECTED,
            self.moved,
            self.stuck,
            self.refused_bytes,
            self.resolved,
            self.empty,
            self.took_ns,
        ]
    }

    /// From words.
    pub fn decode(words: &[u64]) -> Option<Protected> {
        match words {
            [
                PROTECTED,
                moved,
                stuck,
                refused_bytes,
                resolved,
                empty,
                took_ns,
            ] => Some(Protected {
                moved: *moved,
                stuck: *stuck,
                refused_bytes: *refused_bytes,
                resolved: *resolved,
                empty: *empty,
                took_ns: *took_ns,
            }),
            _ => None,
        }
    }
}

/// Whether a page is one of the sample: the page's number, mixed with the seed, is below the threshold. Every page
/// has the same chance, and what is chosen under a threshold is chosen under every higher one (spatially hashed
/// sampling, as in SHARDS, Waldspurger et al., FAST 2015). `u64::MAX` chooses all.
#[inline]
pub fn is_chosen(page: u64, seed: u64, threshold: u64) -> bool {
    if threshold == u64::MAX {
        return true;
    }
    // The finalizer of SplitMix64 (Steele et al., OOPSLA 2014).
    let mut x = page ^ seed;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) < threshold
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let protect = Protect {
            seed: 7,
            threshold: 9,
            afresh: true,
            is_limited: false,
        };
        let words = protect.encode();
        assert_eq!(Protect::decode(&words), Some(protect));
        assert_eq!(Protect::decode(&words[..3]), None);
        let protected = Protected {
            moved: 1,
            stuck: 2,
            refused_bytes: 3,
            resolved: 4,
            empty: 5,
            took_ns: 6,
        };
        assert_eq!(Protected::decode(&protected.encode()), Some(protected));
        assert_eq!(Protected::decode(&protect.encode()), None);
    }

    #[test]
    fn every_page_has_the_same_chance_whatever_its_neighbours() {
        let threshold = u64::MAX / 10;
        for seed in [0, 1, u64::MAX] {
            let chosen = |p: &u64| is_chosen(*p, seed, threshold);
            let count = (0x7f00_0000u64..0x7f00_0000 + 100_000)
                .filter(chosen)
                .count();
            // Five standard errors of a tenth of 100,000.
            assert!(count.abs_diff(10_000) < 475, "{count}");
            let strided = (0..100_000u64).map(|i| i << 9).filter(chosen).count();
            assert!(strided.abs_diff(10_000) < 475, "{strided}");
        }
        assert!(is_chosen(1, 1, u64::MAX) && !is_chosen(1, 1, 0));
    }
}
