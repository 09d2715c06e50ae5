# SPDX-License-Identifier: Apache-2.0
"""The summary, for people and as JSON."""

import json
import os
from statistics import median


def summary(world, verification, gauges, errors_explained):
    """All figures as one document."""
    by_name = {}
    for f in world.faults:
        by_name.setdefault(f.name, []).append(f)
    faults = []
    for name, some in sorted(by_name.items()):
        lost = [v["what"] for v in world.violations if name in v["faults"]]
        times = [f.recovery for f in some if f.recovery is not None]
        faults.append({"fault": name, "injected": len(some), "lost": lost,
                       "recovery_median_s": round(median(times), 2) if times else None,
                       "recovery_max_s": round(max(times), 2) if times else None,
                       "seconds": round(sum((f.end or f.begin) - f.begin for f in some), 1)})
    counts = dict(world.counts)
    return {
        "seed": world.options.seed, "seconds": world.options.seconds, "instances": world.options.instances,
        "passed": not world.violation_count, "violations": world.violations,
        "violation_count": world.violation_count, "faults": faults, "counts": counts,
        "totals": {"requests": counts.get("requests", 0),
                   "heartbeats decided": sum(n for k, n in counts.items() if k.startswith("beat ")),
                   "heartbeats accepted": counts.get("beat accepted", 0),
                   "events": verification.events, "events read": counts.get("events read", 0),
                   "replies to polls": counts.get("replies read", 0),
                   "messages streamed": counts.get("messages streamed", 0),
                   "snapshots read": counts.get("snapshots", 0), "readers' lives": counts.get("readers' lives", 0),
                   "5xx, excused by a fault": counts.get("5xx", 0),
                   "no answer, excused by a fault": counts.get("no answer", 0),
                   "seconds in which nothing is excused": round(world.quiet_seconds()),
                   "errors logged, explained by a fault": errors_explained},
        "processes": [{"name": n, "seconds": round(t), "rss_kib": [a, b], "descriptors": [c, d]}
                      for n, t, a, b, c, d in gauges.growth()]}


def print_summary(document, load_seconds):
    print("\n%-20s %8s  %-28s %14s %12s" % ("fault", "injected", "what was lost", "recovered, s:", "") +
          "\n%-20s %8s  %-28s %14s %12s" % ("", "", "", "median", "max"))
    for f in document["faults"]:
        lost = "nothing" if not f["lost"] else "%d violations while it was on" % len(f["lost"])
        print("%-20s %8d  %-28s %14s %12s" % (f["fault"], f["injected"], lost, f["recovery_median_s"],
                                              f["recovery_max_s"]))
    rest = sum(1 for v in document["violations"] if not v["faults"])
    if rest:
        print("%-20s %8s  %d violations" % ("no fault, or the end", "", rest))
    print()
    for name, n in document["totals"].items():
        print("%-36s %9d" % (name, n))
    print("%-36s %9.0f" % ("requests a second", document["totals"]["requests"] / max(1, load_seconds)))
    for p in document["processes"]:
        print("%s lived %d s: %d KiB, later %d KiB; %d descriptors, later %d" % (
            (p["name"], p["seconds"]) + tuple(p["rss_kib"]) + tuple(p["descriptors"])))
    print("seed %s" % document["seed"])


def print_violations(document, argv):
    for v in document["violations"][:20]:
        print("\nVIOLATION: %s, at %.1f s, faults: %s\n  %s" % (v["what"], v["at_s"], ", ".join(v["faults"]) or "none",
                                                               v["detail"]))
        for line in v["trail"]:
            print("    " + line)
    print("\n%d violations. Once more with the same dice: %s" % (document["violation_count"], " ".join(argv)))


def write_json(document, path):
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        json.dump(document, f, indent=1, ensure_ascii=False)
    os.replace(path + ".tmp", path)
