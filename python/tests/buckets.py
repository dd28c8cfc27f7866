"""Stores in S3: a real server, and a proxy before it that fails and stalls."""

import http.server
import threading
import urllib.error
import urllib.request

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    # A server that is well may take long where the machine has much else to do.
    "VARVE_S3_TIMEOUT": "300",
}
#: Where a request stalls, and the next one is answered.
IMPATIENT = {**KEYS, "VARVE_S3_TIMEOUT": "5"}
#: Where all stall: each try, and each of the library's own in it, waits for so long.
HASTY = {**KEYS, "VARVE_S3_TIMEOUT": "1"}


def client(server):
    return fs.S3FileSystem(
        access_key="test",
        secret_key="test",
        region="us-east-1",
        endpoint_override=server,
        allow_bucket_creation=True,
        allow_delayed_open=True,
    )


def objects(server, place):
    """Give the contents of all objects below a place, by their names there."""
    bucket = client(server)
    found = bucket.get_file_info(fs.FileSelector(place, recursive=True, allow_not_found=True))
    files = [info.path for info in found if info.type == fs.FileType.File]
    return {path.removeprefix(f"{place}/"): bucket.open_input_stream(path).read() for path in files}


def copy(folder, server, place):
    """Copy a store into a bucket."""
    fs.copy_files(str(folder), place, source_filesystem=fs.LocalFileSystem(), destination_filesystem=client(server))


@pytest.fixture(scope="session")
def server():
    """Start an S3 server. It ends with the tests."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def empty_bucket(server, request):
    """Make a bucket of the test's own. Gives its name."""
    name = "".join(sign if sign.isalnum() else "-" for sign in request.node.name.lower()).strip("-")[-60:].strip("-")
    client(server).create_dir(name)
    return name


HOPS = {"connection", "transfer-encoding", "content-length", "expect"}


class Proxy(http.server.ThreadingHTTPServer):
    """Stands before the server, and fails or stalls as it is told."""

    daemon_threads = True

    def __init__(self, behind):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = behind
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.lock = threading.Lock()
        self.end = threading.Event()
        #: What is done with a request: the first of them whose words its path has.
        self.rules = []
        self.failed = 0
        #: Methods and paths, in order.
        self.seen = []

    def rule(self, line):
        with self.lock:
            self.seen.append(line)
            for at, (kind, words, times) in enumerate(self.rules):
                if words in line and times > 0:
                    self.rules[at] = (kind, words, times - 1)
                    self.failed += 1
                    return kind
        return None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.body()
        rule = self.server.rule(f"{self.command} {self.path}")
        if rule == "stall":
            self.server.end.wait(600)
            self.close_connection = True
            return
        if rule == "fail":
            self.reply(503, {}, b"")
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOPS}
        asked = urllib.request.Request(self.server.behind + self.path, body, headers, method=self.command)
        try:
            with urllib.request.urlopen(asked, timeout=300) as got:
                self.reply(got.status, got.headers, got.read())
        except urllib.error.HTTPError as error:
            self.reply(error.code, error.headers, error.read())

    def body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        parts = []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(length))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def reply(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "server", "date"):
                self.send_header(name, value)
        self.send_header(
            "Content-Length", headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        )
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_):
        pass


@pytest.fixture
def proxy(server):
    """Put a proxy before the server."""
    with Proxy(server) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.end.set()
            proxy.shutdown()
            thread.join(20)
