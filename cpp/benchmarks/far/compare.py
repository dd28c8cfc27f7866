#!/usr/bin/env python3
"""One program, a map larger than its memory limit, and what can be done about it: swap on a disk, swap on zram, an
allocator on a mapped file, and varve::far_map on the same disk and on the same zram. Each runs alone in a control group
of its own; they take turns, and every round begins with another. Needs root, zram, and room on the disk of --folder.
Everything that it sets up is taken down again. Prints one JSON object."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time

UNIFIED = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
GROUPS = "/sys/fs/cgroup" if UNIFIED else "/sys/fs/cgroup/memory"
MIB = 1 << 20


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write(path, value):
    with open(path, "w") as file:
        file.write(str(value))


class Zram:
    """A device of its own, as large as the map and a half."""

    def __init__(self, mebibytes):
        with open("/sys/class/zram-control/hot_add") as file:
            self.number = int(file.read())
        self.path = f"/dev/zram{self.number}"
        write(f"/sys/block/zram{self.number}/disksize", mebibytes * MIB)

    def close(self):
        write(f"/sys/block/zram{self.number}/reset", 1)
        write("/sys/class/zram-control/hot_remove", self.number)


class Swap:
    def __init__(self, path):
        self.path = path
        run("mkswap", path)
        run("swapon", "-p", "32767", path)

    def close(self):
        run("swapoff", self.path)


class Limit:
    def __init__(self, mebibytes, swaps):
        self.path = f"{GROUPS}/varve-far-{os.getpid()}"
        os.mkdir(self.path)
        write(f"{self.path}/{'memory.max' if UNIFIED else 'memory.limit_in_bytes'}", mebibytes * MIB)
        if not swaps:
            write(f"{self.path}/{'memory.swap.max' if UNIFIED else 'memory.swappiness'}", 0)

    def run(self, command):
        def enter():
            write(f"{self.path}/cgroup.procs", os.getpid())

        return subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=enter).stdout

    def close(self):
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)


def measure(way, options, folder):
    """The program's figures for one way of going beyond the limit."""
    opened = []
    file = f"{folder}/pages"
    program = {"mapped": options.mapped, "varve_disk": options.varve, "varve_zram": options.varve}.get(
        way, options.standard)
    size = options.elements * 512 // MIB
    try:
        if way in ("zram", "varve_zram"):
            opened.append(Zram(size))
        if way == "zram":
            opened.append(Swap(opened[0].path))
        if way == "swap":
            path = f"{folder}/swap"
            run("dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={size // 2}", "status=none")
            os.chmod(path, 0o600)
            opened.append(Swap(path))
        if way == "varve_zram":
            run("mkfs.ext4", "-q", "-O", "^has_journal", opened[0].path)
            mount = f"{folder}/zram"
            os.makedirs(mount, exist_ok=True)
            run("mount", opened[0].path, mount)
            file = f"{mount}/pages"
        limit = Limit(options.limit, way in ("swap", "zram"))
        opened.append(limit)
        run("sync")
        out = limit.run([program, str(options.elements), str(options.seconds), file, str(options.local)])
        return json.loads(out)
    finally:
        if way == "varve_zram" and os.path.ismount(f"{folder}/zram"):
            run("umount", f"{folder}/zram")
        for thing in reversed(opened):
            thing.close()
        for left in ("pages", "swap"):
            if os.path.exists(f"{folder}/{left}"):
                os.remove(f"{folder}/{left}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--standard", required=True, help="varve-far-standard")
    parser.add_argument("--mapped", required=True, help="varve-far-mapped")
    parser.add_argument("--varve", required=True, help="varve-far")
    parser.add_argument("--elements", type=int, default=20_600_000, help="20,600,000 are 4 GiB of a std::map")
    parser.add_argument("--limit", type=int, default=1024, help="MiB")
    parser.add_argument("--local", type=int, default=960, help="MiB of them that varve::far_map is given")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=".", help="on the disk to be used")
    parser.add_argument("--ways", default="swap,mapped,zram,varve_disk,varve_zram")
    options = parser.parse_args()
    ways = options.ways.split(",")
    rounds = {way: [] for way in ways}
    folder = tempfile.mkdtemp(dir=options.folder)
    try:
        for number in range(options.rounds):
            for i in range(len(ways)):
                way = ways[(i + number) % len(ways)]
                figures = measure(way, options, folder)
                figures["load"] = os.getloadavg()[0]
                rounds[way].append(figures)
                print(way, figures, file=sys.stderr)
    finally:
        shutil.rmtree(folder)
    print(json.dumps({"schema": "varve-far/1", "kernel": platform.release(), "processors": os.cpu_count(),
                      "elements": options.elements, "limit_mebibytes": options.limit,
                      "local_mebibytes": options.local, "seconds": options.seconds, "rounds": rounds}))


if __name__ == "__main__":
    main()
