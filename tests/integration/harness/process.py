# SPDX-License-Identifier: Apache-2.0
"""What the system says of a daemon's process, and limits that are put on it; also clients that vanish."""

import ctypes
import os
import resource
import socket
import struct


def cpu_seconds(d):
    """What the daemon has used of the processor."""
    with open("/proc/%d/stat" % d.process.pid) as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(d):
    """Its resident memory, MiB."""
    with open("/proc/%d/statm" % d.process.pid) as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def descriptors(d):
    """How many it has open."""
    return len(os.listdir("/proc/%d/fd" % d.process.pid))


def limit_descriptors(d, n):
    """Lowers what a daemon that runs may have open. @return the limits before"""
    hard = resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE)[1]
    return resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE, (n, hard))


def raise_own_limit():
    """Lets this process have as many descriptors as it may. @return how many"""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def reset(s):
    """Closes a connection with a reset in place of an orderly end."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def vanish(s):
    """Makes a host of the other end's view disappear: whatever arrives is dropped unacknowledged, by a filter that
    lets nothing through. While nothing is sent and the socket stays open, no packet leaves it either."""
    class Filter(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("at", ctypes.c_void_p)]

    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0 bytes
    program = Filter(1, ctypes.cast(nothing, ctypes.c_void_p))
    attach = 26  # SO_ATTACH_FILTER
    s.setsockopt(socket.SOL_SOCKET, attach, bytes(program))
