//! The programs of Debian's packages that are measured: servers with something in them, and commands.

use std::ffi::OsString;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::load::Protocol;
use crate::error::{Error, Result};
use crate::launch::Program;

/// How long a server may take until it answers, with its data.
const START: Duration = Duration::from_secs(60);
/// Bytes of a value in Redis and memcached.
const VALUE_BYTES: u64 = 1000;
/// `nobody` of Debian: some servers refuse to run as root.
const NOBODY: u32 = 65_534;

/// A server that runs, ended on drop.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    pub(super) load: Load,
}

/// Where its requests come from.
#[derive(Clone, Debug)]
pub(super) enum Load {
    /// Over TCP.
    Requests(SocketAddr, Protocol),
    /// `pgbench -S` on the database at this port.
    Pgbench { programs: PathBuf, port: u16 },
}

impl Server {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) else {
            return;
        };
        // PostgreSQL ends its connections and writes nothing more than it must.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server of that name, with so many bytes in it; none where it is not installed.
pub(super) fn start(name: &str, bytes: u64, folder: &Path) -> Result<Option<Server>> {
    let port = free_port()?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let keys = (bytes / VALUE_BYTES).max(1);
    let server = match name {
        "redis" => {
            let Some(program) = find("redis-server") else {
                return Ok(None);
            };
            let mut command = Command::new(program);
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
            command.args(["--save", "", "--appendonly", "no"]);
            command.args(["--enable-debug-command", "local"]);
            let load = Load::Requests(address, Protocol::Redis { keys });
            let server = spawn(command, folder, load)?;
            await_port(address)?;
            let fill = format!("DEBUG POPULATE {keys} key {VALUE_BYTES}\r\n");
            ask(address, &fill, b"+OK\r\n")?;
            server
        }
        "memcached" => {
            let Some(program) = find("memcached") else {
                return Ok(None);
            };
            let mut command = Command::new(program);
            let room = (bytes * 3 / 2 / (1 << 20)).max(64).to_string();
            command.args(["-u", "nobody", "-l", "127.0.0.1", "-p", &port.to_string()]);
            command.args(["-m", &room, "-t", "2"]);
            let load = Load::Requests(address, Protocol::Memcached { keys });
            let server = spawn(command, folder, load)?;
            await_port(address)?;
            fill_memcached(address, keys)?;
            server
        }
        "nginx" => {
            let Some(program) = find("nginx") else {
                return Ok(None);
            };
            fs::write(folder.join("index.html"), vec![b'x'; 4096])
                .map_err(Error::io("write to", folder))?;
            let place = folder.display();
            let settings = format!(
                "daemon off; worker_processes 2; pid {place}/nginx.pid; error_log /dev/null;\n\
                 events {{}}\n\
                 http {{ access_log off; keepalive_requests 1000000000;\n\
                 client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;\n\
                 uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;\n\
                 server {{ listen 127.0.0.1:{port}; root {place}; }} }}\n"
            );
            let path = folder.join("nginx.conf");
            fs::write(&path, settings).map_err(Error::io("write", &path))?;
            let mut command = Command::new(program);
            command.arg("-c").arg(&path);
            let server = spawn(command, folder, Load::Requests(address, Protocol::Http))?;
            await_port(address)?;
            server
        }
        "postgresql" => return start_postgresql(bytes, port, folder),
        _ => return Ok(None),
    };
    Ok(Some(server))
}

fn start_postgresql(bytes: u64, port: u16, folder: &Path) -> Result<Option<Server>> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let newest = versions.flatten().map(|v| v.path().join("bin")).max();
    let Some(programs) = newest.filter(|p| p.join("pgbench").exists()) else {
        return Ok(None);
    };
    let data = folder.join("data");
    let run = |name: &str, arguments: &[&str]| {
        let path = programs.join(name);
        let mut command = as_nobody(&path, folder);
        let output = command.args(arguments).output();
        let output = output.map_err(Error::io("run", &path))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Error::Failed(format!(
                "{name} failed: {}",
                String::from_utf8_lossy(&output.stderr)
            ))),
        }
    };
    let place = data.to_string_lossy();
    run(
        "initdb",
        &["-D", &place, "-A", "trust", "-U", "bench", "-N"],
    )?;
    let mut command = as_nobody(&programs.join("postgres"), folder);
    command.args(["-D", &place, "-p", &port.to_string(), "-k", ""]);
    command.args(["-h", "127.0.0.1", "-F"]);
    command
        .arg("-c")
        .arg(format!("shared_buffers={}MB", (bytes >> 20).max(128)));
    let load = Load::Pgbench {
        programs: programs.clone(),
        port,
    };
    let server = spawn(command, folder, load)?;
    await_port(SocketAddr::from(([127, 0, 0, 1], port)))?;
    // A unit of pgbench's scale is some 15 MiB.
    let scale = (bytes / (15 << 20)).max(1).to_string();
    let port = port.to_string();
    let connection = ["-h", "127.0.0.1", "-p", &port, "-U", "bench"];
    let mut arguments = connection.to_vec();
    arguments.extend(["-i", "-q", "-s", &scale, "postgres"]);
    let until = Instant::now() + START;
    // It takes connections before it is ready for them.
    while let Err(error) = run("pgbench", &arguments) {
        if Instant::now() > until {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(Some(server))
}

/// A program that runs without root, in a folder that is its own.
pub(super) fn as_nobody(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).current_dir(folder);
    command.env("HOME", folder).env("PGOPTIONS", "");
    command
}

/// A folder that such programs may write into.
pub(super) fn open_to_nobody(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
        .and_then(|()| std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)))
        .map_err(Error::io("give away", folder))
}

/// A command that is measured from its start to its end; none where it is not installed.
pub(super) fn command(name: &str, folder: &Path, small: bool) -> Result<Option<Program>> {
    let (program, words): (&str, Vec<OsString>) = match name {
        "ffmpeg" => {
            let seconds = if small { 1 } else { 6 };
            let source = format!("testsrc2=size=1280x720:rate=30:duration={seconds}");
            let words = [
                "-v", "error", "-f", "lavfi", "-i", &source, "-c:v", "libx264",
            ];
            let mut words: Vec<OsString> = words.iter().map(Into::into).collect();
            words.extend(["-f", "null", "-"].map(Into::into));
            ("ffmpeg", words)
        }
        "g++" => {
            let source = folder.join("program.cpp");
            let text = "#include <regex>\n#include <iostream>\n#include <map>\n#include <algorithm>\n\
                        int main(int n, char **w) { std::regex r(w[n - 1]); std::map<std::string, int> m;\n\
                        for (int i = 1; i < n; i++) if (std::regex_match(w[i], r)) m[w[i]]++;\n\
                        for (auto &p : m) std::cout << p.first << p.second; }\n";
            fs::write(&source, text).map_err(Error::io("write", &source))?;
            let object = folder.join("program.o");
            let words = [
                "-O2".into(),
                "-c".into(),
                source.into(),
                "-o".into(),
                object.into(),
            ];
            ("g++", words.to_vec())
        }
        "forks" => {
            let times = if small { 50 } else { 500 };
            let script = format!("i=0; while [ $i -lt {times} ]; do /bin/true; i=$((i+1)); done");
            ("sh", vec!["-c".into(), script.into()])
        }
        "jvm" => {
            let source = folder.join("Churn.java");
            let rounds = if small { 2 } else { 40 };
            let text = format!(
                "import java.util.*; public class Churn {{ public static void main(String[] a) {{\n\
                 long sum = 0; for (int r = 0; r < {rounds}; r++) {{\n\
                 HashMap<Integer, String> m = new HashMap<>();\n\
                 for (int i = 0; i < 200000; i++) m.put(i * 31, \"v\" + i);\n\
                 for (int i = 0; i < 200000; i++) sum += m.get(i * 31).length(); }}\n\
                 System.out.println(sum); }} }}\n"
            );
            fs::write(&source, text).map_err(Error::io("write", &source))?;
            // A run-time environment alone compiles nothing.
            if find("javac").is_none() {
                return Ok(None);
            }
            ("java", vec!["-Xmx512m".into(), source.into()])
        }
        _ => return Ok(None),
    };
    Ok(find(program).map(|path| Program {
        name: name.to_owned(),
        path,
        arguments: words,
        threads: 2,
    }))
}

/// A program of the search path.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // Where Debian puts servers.
    folders.push("/usr/sbin".into());
    folders.iter().map(|f| f.join(name)).find(|p| p.is_file())
}

fn free_port() -> Result<u16> {
    let at = Path::new("127.0.0.1");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::io("listen at", at))?;
    let address = listener.local_addr().map_err(Error::io("listen at", at))?;
    Ok(address.port())
}

fn spawn(mut command: Command, folder: &Path, load: Load) -> Result<Server> {
    let program = PathBuf::from(command.get_program());
    let child = command
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Error::io("start", &program))?;
    Ok(Server { child, load })
}

fn await_port(address: SocketAddr) -> Result<()> {
    let until = Instant::now() + START;
    while TcpStream::connect(address).is_err() {
        if Instant::now() > until {
            return Err(Error::Failed(format!("nobody listens at {address}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Sends something and waits for an answer that is known.
fn ask(address: SocketAddr, request: &str, wanted: &[u8]) -> Result<()> {
    use std::io::{Read, Write};
    let talk = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(START))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = vec![0; wanted.len()];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    let place = PathBuf::from(address.to_string());
    let answer = talk().map_err(Error::io("fill the server at", &place))?;
    match answer == wanted {
        true => Ok(()),
        false => Err(Error::Failed(format!(
            "the server at {address} said: {}",
            String::from_utf8_lossy(&answer)
        ))),
    }
}

fn fill_memcached(address: SocketAddr, keys: u64) -> Result<()> {
    let value = "x".repeat(usize::try_from(VALUE_BYTES).unwrap_or(1));
    let keys: Vec<u64> = (0..keys).collect();
    for some in keys.chunks(1000) {
        let sets = some
            .iter()
            .map(|k| format!("set key:{k} 0 0 {VALUE_BYTES} noreply\r\n{value}\r\n"));
        let request: String = sets.collect::<String>() + "version\r\n";
        ask(address, &request, b"VERSION")?;
    }
    Ok(())
}
