# SPDX-License-Identifier: Apache-2.0
"""How long each class of tests took when somebody last measured it (durations.txt), and what follows for their order."""

import os

KEPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "durations.txt")
#: A shorter class is not worth a line.
SHORT_S = 3
#: A class whose processes are on a core for a smaller part of the time mostly waits. The shared server is not counted.
WAITS = 0.3


def name(cls):
    return "%s.%s" % (cls.__module__, cls.__name__)


def read(path=KEPT):
    """@return {class: (seconds, seconds on a core)}"""
    out = {}
    if os.path.exists(path):
        with open(path) as f:
            for line in f:
                words = line.split()
                if words and not words[0].startswith("#"):
                    out[words[0]] = (float(words[1]), float(words[2]))
    return out


def write(path, measured, classes):
    """Puts what was measured in the place of what was known; classes that are no more go."""
    there = {name(cls) for cls in classes}
    known = {n: t for n, t in {**read(path), **measured}.items() if n in there and t[0] >= SHORT_S}
    with open(path, "w") as f:
        f.write("# Classes of tests: seconds, and how many of them on a core. Written by run --durations FILE.\n")
        for n in sorted(known):
            f.write("%s %.0f %.0f\n" % (n, *known[n]))


def plan(work):
    """The longest first, so that none ends alone. @param work: (class, names) @return those that keep a core busy, and
    those that mostly wait: more of these may run at the same time"""
    known = read()

    def seconds(item):
        return known.get(name(item[0]), (getattr(item[0], "weight", 1), 0))[0]

    def waits(item):
        whole, busy = known.get(name(item[0]), (1, 1))
        return busy < WAITS * whole

    ordered = sorted(work, key=lambda item: -seconds(item))
    return [w for w in ordered if not waits(w)], [w for w in ordered if waits(w)]
