# SPDX-License-Identifier: Apache-2.0
"""A row of the table: its sides, measured in turn, and what is asked of their medians."""

import statistics

from . import Broken, Missing

OK, SHORT, NOT = "ok", "short", "not measured"


class Side:
    """One of those that are measured against each other. run() is one run and returns {"value": …, more figures}."""

    def __init__(self, name, promises, run, prepare, unit):
        self.name, self.promises, self.run, self.prepare, self.unit = name, promises, run, prepare, unit
        self.figures, self.fault = [], None

    @property
    def values(self):
        return [f["value"] for f in self.figures]

    def median(self, key="value"):
        """Of all runs; None when there is none, or when a run failed."""
        values = [f[key] for f in self.figures if f.get(key) is not None]
        return statistics.median(values) if values and not self.fault else None

    def document(self):
        out = {"name": self.name, "promises": self.promises, "unit": self.unit, "runs": self.figures}
        if self.fault:
            out["not_measured"] = self.fault
        elif self.figures:
            out.update(median=self.median(), min=min(self.values), max=max(self.values))
        return out


class Check:
    """A target and what came of it."""

    def __init__(self, text, target, value, unit, verdict, why=None):
        self.text, self.target, self.value, self.unit = text, target, value, unit
        self.verdict, self.why = verdict, why

    def document(self):
        out = {"what": self.text, "target": self.target, "value": self.value, "unit": self.unit,
               "verdict": self.verdict}
        if self.why:
            out["why"] = self.why
        return out


class Row:
    def __init__(self, world, name, work, unit):
        self.world, self.name, self.work, self.unit = world, name, work, unit
        self.sides, self.checks, self.notes = [], [], []
        self.fault = None

    # -- sides ---------------------------------------------------------------------------------------------------------

    def side(self, name, run, promises="", prepare=None, unit=None, server=None):
        """Adds a side that is there. @a prepare: what goes before its first run, such as a warm-up. @a server: it must
        be alive after each run, or the run does not count, however good its figures are."""
        checked = (lambda: self._checked(server, lambda _: run())) if server else run
        self.sides.append(Side(name, promises, checked, prepare, unit or self.unit))
        return self.sides[-1]

    def peer(self, name, make, run, promises="", prepare=None):
        """Adds a side whose server has to be found and started: without it the side is told, not measured. @a run and
        @a prepare get what make() returned."""
        side = self.side(name, None, promises)
        try:
            server = make()
        except (Missing, Broken, OSError) as fault:
            side.fault = self.told(fault)
            return side
        side.run = lambda: self._checked(server, run)
        side.prepare = prepare and (lambda: self._checked(server, prepare))
        return side

    @staticmethod
    def _checked(server, run):
        if not hasattr(server, "check"):
            return run(server)
        server.check()
        try:
            figures = run(server)
        except (Broken, OSError, RuntimeError):
            server.check()  # that it has ended says more than what the load generator saw of it
            raise
        server.check()
        return figures

    def measure(self, runs=None):
        """All sides in turn, then again, so that what changes on this machine meanwhile is shared out."""
        for number in range(runs or self.world.runs):
            for side in self.sides:
                if side.fault is None:
                    self.run_once(side, number)

    def run_once(self, side, number=0):
        try:
            self.world.settle()
            if number == 0 and side.prepare:
                side.prepare()
            side.figures.append(side.run())
        except (Broken, Missing, OSError, RuntimeError) as fault:
            side.fault = "in run %d: %s" % (number + 1, self.told(fault))

    def told(self, fault):
        """A fault on one line, without where this machine keeps its files."""
        return " ".join(str(fault).replace(self.world.dir, "DIR").split()).rstrip(": ")

    def __getitem__(self, name):
        return next(s for s in self.sides if s.name == name)

    # -- targets -------------------------------------------------------------------------------------------------------

    def ratio(self, name, other, at_least=None, at_most=None, keys=("value", "value"), text=None):
        """The median of a side by that of another. Without a bound it is only told."""
        a, b = self[name], self[other]
        text = text or "%s / %s" % (name, other)
        target = self._target(at_least, at_most, " ×")
        for side in (a, b):
            if side.fault:
                return self._add(Check(text, target, None, "×", NOT, "%s: %s" % (side.name, side.fault)))
        x, y = a.median(keys[0]), b.median(keys[1])
        if not x or not y:
            return self._add(Check(text, target, None, "×", NOT, "a figure is missing or nought"))
        return self._add(Check(text, target, x / y, "×", self._verdict(x / y, at_least, at_most)))

    def value(self, name, text, unit, key="value", at_least=None, at_most=None):
        """The median of one side against a bound of its own."""
        side = self[name]
        target = self._target(at_least, at_most, " " + unit)
        found = None if side.fault else side.median(key)
        if found is None:
            return self._add(Check(text, target, None, unit, NOT, side.fault or "no figure"))
        return self._add(Check(text, target, found, unit, self._verdict(found, at_least, at_most)))

    def _add(self, check):
        self.checks.append(check)
        return check

    @staticmethod
    def _target(at_least, at_most, unit):
        if at_least is None and at_most is None:
            return ""
        return (("≥ %g%s" % (at_least, unit)) if at_least is not None else ("≤ %g%s" % (at_most, unit))).rstrip()

    @staticmethod
    def _verdict(found, at_least, at_most):
        if at_least is None and at_most is None:
            return ""
        good = found >= at_least if at_least is not None else found <= at_most
        return OK if good else SHORT

    def note(self, text):
        self.notes.append(text)

    @property
    def verdict(self):
        """Of the whole row: the worst of its targets."""
        if self.fault:
            return NOT
        all_of_them = {c.verdict for c in self.checks if c.verdict}
        whole = all_of_them or not any(side.fault for side in self.sides)  # a row may have no target
        return next((v for v in (SHORT, NOT) if v in all_of_them), OK if whole else NOT)

    def document(self):
        out = {"name": self.name, "work": self.work, "unit": self.unit, "verdict": self.verdict, "notes": self.notes,
               "sides": [s.document() for s in self.sides], "targets": [c.document() for c in self.checks]}
        if self.fault:
            out["not_measured"] = self.fault
        return out
