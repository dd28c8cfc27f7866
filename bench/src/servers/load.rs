//! Requests over TCP, each connection with one under way, and how long each took.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How a server is spoken to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Protocol {
    /// `GET key:N` of so many keys; the value has this many bytes.
    Redis { keys: u64 },
    /// `get key:N` of so many keys.
    Memcached { keys: u64 },
    /// `GET /`, the connection kept.
    Http,
}

impl Protocol {
    fn request(self, number: u64, out: &mut Vec<u8>) {
        out.clear();
        let text = match self {
            Protocol::Redis { keys } => format!("GET key:{}\r\n", number % keys),
            Protocol::Memcached { keys } => format!("get key:{}\r\n", number % keys),
            Protocol::Http => "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
        };
        out.extend_from_slice(text.as_bytes());
    }

    /// How long a whole answer is that begins like this; none where that cannot be seen yet.
    fn answer_bytes(self, begin: &[u8]) -> Option<usize> {
        let after = |mark: &[u8]| {
            let at = begin.windows(mark.len()).position(|w| w == mark)?;
            Some(at + mark.len())
        };
        let line = after(b"\r\n")?;
        let first = std::str::from_utf8(&begin[..line]).ok()?.trim_end();
        match self {
            Protocol::Redis { .. } => match first.strip_prefix('$')?.parse::<i64>() {
                Ok(bytes @ 0..) => Some(line + usize::try_from(bytes).ok()? + 2),
                _ => Some(line),
            },
            Protocol::Memcached { .. } => match first.strip_prefix("VALUE ") {
                Some(fields) => {
                    let bytes: usize = fields.split(' ').nth(2)?.parse().ok()?;
                    Some(line + bytes + "\r\nEND\r\n".len())
                }
                None => Some(line),
            },
            Protocol::Http => {
                let head = after(b"\r\n\r\n")?;
                let text = std::str::from_utf8(&begin[..head]).ok()?;
                let length = text
                    .lines()
                    .find_map(|l| l.strip_prefix("Content-Length: "));
                Some(head + length?.trim().parse::<usize>().ok()?)
            }
        }
    }
}

/// An answer: when it came and how long it took, since the load began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) at: Duration,
    pub(super) took: Duration,
}

/// Requests until `stop` is set; all answers, in no order.
pub(super) fn run(
    address: SocketAddr,
    protocol: Protocol,
    connections: u64,
    began: Instant,
    stop: &AtomicBool,
) -> Result<Vec<Answer>> {
    let failed = |source| Error::Io {
        action: "speak to the server at",
        path: address.to_string().into(),
        source,
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..connections)
            .map(|worker| scope.spawn(move || converse(address, protocol, worker, began, stop)))
            .collect();
        let mut all = Vec::new();
        for worker in workers {
            match worker.join() {
                Ok(answers) => all.extend(answers.map_err(failed)?),
                Err(_) => return Err(Error::Failed("a thread of the load panicked".into())),
            }
        }
        Ok(all)
    })
}

fn converse(
    address: SocketAddr,
    protocol: Protocol,
    worker: u64,
    began: Instant,
    stop: &AtomicBool,
) -> std::io::Result<Vec<Answer>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut answers = Vec::new();
    let mut request = Vec::new();
    let mut answer = vec![0; 64 << 10];
    // A sequence that goes all over the keys (Knuth, The Art of Computer Programming 2, 3.3.4, table 1).
    let mut number = worker.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    while !stop.load(Ordering::Relaxed) {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        protocol.request(number >> 33, &mut request);
        let asked = Instant::now();
        stream.write_all(&request)?;
        let mut got = 0;
        loop {
            let more = stream.read(&mut answer[got..])?;
            if more == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            got += more;
            if protocol
                .answer_bytes(&answer[..got])
                .is_some_and(|whole| got >= whole)
            {
                break;
            }
        }
        let now = Instant::now();
        answers.push(Answer {
            at: now - began,
            took: now - asked,
        });
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_their_lengths() {
        let redis = Protocol::Redis { keys: 1 };
        assert_eq!(redis.answer_bytes(b"$3\r\nab"), Some(9));
        assert_eq!(redis.answer_bytes(b"$-1\r\n"), Some(5));
        assert_eq!(redis.answer_bytes(b"$"), None);
        let memcached = Protocol::Memcached { keys: 1 };
        let hit = b"VALUE key:1 0 2\r\nab\r\nEND\r\n";
        assert_eq!(memcached.answer_bytes(hit), Some(hit.len()));
        assert_eq!(memcached.answer_bytes(b"END\r\n"), Some(5));
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(Protocol::Http.answer_bytes(head), Some(head.len() + 5));
    }
}
