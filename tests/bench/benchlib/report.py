# SPDX-License-Identifier: Apache-2.0
"""The results as text, JSON and Markdown."""

import json


def number(value):
    """With as many digits as mean something."""
    if value is None:
        return "–"
    size = abs(value)
    if size >= 1000:
        return "{:,.0f}".format(value).replace(",", " ")
    return "%.0f" % value if size >= 100 or value == int(value) else "%.1f" % value if size >= 10 else "%.2f" % value


def said(check):
    """A target in words: what was found, what was asked, the verdict."""
    if check.why:
        return "%s: %s%s: %s" % (check.text, check.verdict, " (%s)" % check.target if check.target else "", check.why)
    found = "%s %s" % (number(check.value), check.unit) if check.unit not in ("×", "") else number(check.value)
    if not check.target:
        return "%s = %s" % (check.text, found)
    return "%s = %s, %s: %s" % (check.text, found, check.target, check.verdict)


# -- text --------------------------------------------------------------------------------------------------------------


def text_head(results):
    m = results["machine"]
    lines = ["%(cpu)s, %(cores)d cores, %(memory_mb)d MB, Linux %(kernel)s, %(filesystem)s" % m,
             ", ".join("%s %s" % item for item in results["versions"].items())] + results["caveats"]
    return "\n".join(lines)


def text_row(row):
    lines = ["", "%s: %s" % (row.name, row.work)]
    if row.fault:
        return "\n".join(lines + ["  not measured: " + row.fault])
    for side in row.sides:
        if side.fault:
            lines.append("  %-44s not measured: %s" % (side.name, side.fault))
        elif side.figures:
            lines.append("  %-44s %10s   (%s … %s) %s" % (side.name, number(side.median()), number(min(side.values)),
                                                        number(max(side.values)), side.unit))
    lines += ["  > " + said(check) for check in row.checks]
    lines += ["  # " + note for note in row.notes]
    return "\n".join(lines)


def text_promises(rows):
    """Who promises what: a figure means nothing without it."""
    promises = {}
    for row in rows:
        for side in row.sides:
            if side.promises and side.figures:
                promises.setdefault(side.promises, []).append("%s (%s)" % (side.name, row.name))
    return ["%s: %s" % (", ".join(names), promise) for promise, names in promises.items()]


# -- JSON --------------------------------------------------------------------------------------------------------------


def write_json(path, results, rows):
    document = dict(results, rows=[row.document() for row in rows])
    with open(path, "w") as f:
        json.dump(document, f, indent=2, ensure_ascii=False)
        f.write("\n")


# -- Markdown ----------------------------------------------------------------------------------------------------------


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def md_row(row):
    """Lines of the table: the sides of a row with each other, one line for each target."""
    if row.fault:
        return ["| %s | not measured: %s | | | not measured |" % (cell(row.work), cell(row.fault))]
    sides = []
    for s in row.sides:
        if s.fault:
            sides.append("%s: not measured: %s" % (s.name, s.fault))
        elif s.figures:
            unit = "" if s.unit == row.unit else " " + s.unit
            sides.append("%s: **%s%s** (%s … %s)" % (s.name, number(s.median()), unit, number(min(s.values)),
                                                     number(max(s.values))))
    figures = "<br>".join(cell(s) for s in sides)
    lines, first = [], True
    for check in row.checks:
        found = "not measured: " + check.why if check.why else number(check.value) + " " + check.unit
        verdict = check.verdict if check.target else "beside"
        lines.append("| %s | %s | %s: %s | %s | %s |" % (
            cell("%s, %s" % (row.work, row.unit)) if first else "", figures if first else "", cell(check.text),
            cell(found.strip()), check.target, verdict))
        first = False
    return lines


def write_markdown(path, results, rows):
    m = results["machine"]
    lines = ["Made by `make bench` on %s: %s, %d cores, %d MB of memory, Linux %s, database on %s." % (
        results["date"], m["cpu"], m["cores"], m["memory_mb"], m["kernel"], m["filesystem"])]
    lines += ["Versions: " + ", ".join("%s %s" % item for item in results["versions"].items()) + ".", ""]
    lines += ["> " + caveat for caveat in results["caveats"]]
    lines += ["", "| work | medians (min … max) | found | target | |", "|---|---|---|---|---|"]
    for row in rows:
        lines += md_row(row)
    lines += ["", "Notes:", ""]
    lines += ["- %s: %s." % (row.name, note) for row in rows for note in row.notes]
    lines += ["", "What each side promises:", ""]
    lines += ["- %s." % line for line in text_promises(rows)]
    lines += ["", "Configurations:", ""]
    for name, configuration in results["configurations"].items():
        lines += ["- %s" % name, "", "  ```"] + ["  " + line for line in configuration.splitlines()] + ["  ```", ""]
    with open(path, "w") as f:
        f.write("\n".join(lines).rstrip() + "\n")
