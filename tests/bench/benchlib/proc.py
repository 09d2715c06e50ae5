# SPDX-License-Identifier: Apache-2.0
"""What processes cost, from /proc."""

import os
import platform
import subprocess

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids):
    """User and system time of processes so far, without their children. One that has ended counts as nothing."""
    total = 0
    for pid in pids:
        try:
            with open("/proc/%d/stat" % pid) as f:
                fields = f.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def resident_kb(pids):
    """Resident memory in KiB; a page that several of them share counts once, in parts."""
    total = 0
    for pid in pids:
        with open("/proc/%d/smaps_rollup" % pid) as f:
            total += sum(int(line.split()[1]) for line in f if line.startswith("Pss:"))
    return total


def children(pid):
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], stdout=subprocess.PIPE, text=True)
    return [int(p) for p in done.stdout.split()]


def family(pid):
    """A process and its children."""
    return [pid] + children(pid)


def filesystem(path):
    """The type of the file system that a path is on."""
    path, best = os.path.realpath(path), ("", "unknown")
    with open("/proc/mounts") as f:
        for line in f:
            _, at, kind = line.split()[:3]
            if (path + "/").startswith(at.rstrip("/") + "/") and len(at) >= len(best[0]):
                best = (at, kind)
    return best[1]


def machine(directory):
    """What the figures were measured on."""
    model = "unknown"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    with open("/proc/meminfo") as f:
        memory_kb = int(f.readline().split()[1])
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "memory_mb": memory_kb // 1024,
            "kernel": platform.release(), "filesystem": filesystem(directory)}
