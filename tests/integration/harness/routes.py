# SPDX-License-Identifier: Apache-2.0
"""All routes of the daemon, out of its own table, so that a sweep over them misses none."""

import os
import re

from .client import quote

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3, "src", "http", "route.c")


class Route:
    def __init__(self, method, pattern, query, flags):
        self.method, self.pattern = method, pattern
        self.query = query  # names of parameters
        self.has_body = "ROUTE_BODY" in flags or "WRITES" in flags
        self.params = re.findall(r"\{(\w+)\}", pattern)

    def path(self, **values):
        """The path; values are put in as they are, so already encoded."""
        return re.sub(r"\{(\w+)\}", lambda m: values.get(m.group(1), quote("no-such-" + m.group(1))), self.pattern)

    def __repr__(self):
        return "%s %s" % (self.method, self.pattern)


def read():
    """The routes in the table's order."""
    with open(TABLE, encoding="utf-8") as f:
        text = f.read()
    names = {n: [v for v in re.findall(r'"(\w+)"', body)]
             for n, body in re.findall(r"static const char \*const (\w+)\[\] = \{([^}]*)\};", text)}
    table = text[text.index("const struct route routes[]"):]
    found = re.findall(r'\{"([A-Z]+)",\s*"([^"]+)",\s*(\w+),\s*([^,]+),', table[:table.index("{NULL")])
    return [Route(method, pattern, names[query], flags) for method, pattern, query, flags in found]


def methods(routes, pattern):
    """What Allow must name at a pattern."""
    out = {r.method for r in routes if r.pattern == pattern} | {"OPTIONS"}
    return out | ({"HEAD"} if "GET" in out else set())
