# SPDX-License-Identifier: Apache-2.0
"""What operators are given: metrics, alert rules, the dashboard and the unit, each judged by the tool that will read it."""

import json
import os
import re
import shutil
import subprocess

from harness.case import Case, parse_metrics
from harness.daemon import free_port

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

#: What PromQL itself brings, so that all other words of a query are metrics or labels.
NOT_METRICS = re.compile(r"\b(sum|max|min|by|rate|increase|histogram_quantile|and|offset|label_values)\b")


def tool(name, *args, cwd=TREE, stdin=None):
    """Runs a tool that contrib/lib.sh installs. @return its end"""
    program = shutil.which(name)
    assert program, name + " is not installed"
    return subprocess.run([program, *args], cwd=cwd, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=60)


def read(*path):
    with open(os.path.join(TREE, *path), encoding="utf-8") as f:
        return f.read()


def metrics_in(query):
    """The metrics that a query names. Labels stand in braces, or behind `by`."""
    query = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)|\"[^\"]*\"", " ", query)
    return {word for word in re.findall(r"\b[a-z][a-z0-9_]*\b", NOT_METRICS.sub(" ", query)) if "_" in word}


class Metrics(Case):
    def families(self):
        text = self.client.get(self.base, "/metrics").body.decode()
        names = set()
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
            names |= {name + suffix for suffix in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
        return text, names

    def test_promtool_accepts_them(self):
        self.grant(self.room("m"))
        text, _ = self.families()
        checked = tool("promtool", "check", "metrics", stdin=text)
        # Of style it says one thing, about a name that others rely on. What it cannot read it says otherwise.
        said = checked.stdout.splitlines()
        style = "stillhere_outage_credit_ms_total metric names should not contain abbreviated units"
        self.assertEqual([line for line in said if line and line != style], [])
        self.assertIn(checked.returncode, (0, 3) if style in said else (0,))

    def test_caps_and_the_process_are_told(self):
        values = parse_metrics(self.client.get(self.base, "/metrics").body.decode())
        self.assertEqual(values["stillhere_longpoll_max_waiting"], 16000)
        self.assertGreater(values["process_resident_memory_bytes"], 1 << 20)
        self.assertGreater(values["process_cpu_seconds_total"], 0)
        self.assertGreater(values["stillhere_max_connections"], 100)

    def test_waits_for_commits_are_counted(self):
        def count():
            text = self.client.get(self.base, "/metrics").body.decode()
            return parse_metrics(text)["stillhere_batch_wait_seconds_count"]
        room, before = self.room("w"), count()
        self.grant(room)
        self.grant(room)
        self.assertGreater(count(), before)

    def test_rules_and_dashboard_name_metrics_that_exist(self):
        _, names = self.families()
        rules = re.findall(r"^ +expr:(?: \|)?((?:.|\n)+?)\n +(?:for|labels):", read("etc", "stillhere.rules.yml"), re.M)
        self.assertGreater(len(rules), 8)
        panels = [t["expr"] for p in json.loads(read("contrib", "grafana", "stillhere.json"))["panels"]
                  for t in p.get("targets", [])]
        self.assertGreater(len(panels), 15)
        named = {name for query in rules + panels for name in metrics_in(query)}
        self.assertGreater(len(named), 20)
        self.assertEqual(sorted(named - names), [])


class Tools(Case):
    autostart = False

    def test_alert_rules(self):
        checked = tool("promtool", "check", "rules", "stillhere.rules.yml", cwd=os.path.join(TREE, "etc"))
        self.assertEqual(checked.returncode, 0, checked.stdout)
        tested = tool("promtool", "test", "rules", "stillhere.rules.test.yml", cwd=os.path.join(TREE, "etc"))
        self.assertEqual(tested.returncode, 0, tested.stdout)

    def test_each_alert_is_explained(self):
        alerts = re.findall(r"- alert: (\w+)", read("etc", "stillhere.rules.yml"))
        explained = read("doc", "operations.md")
        self.assertEqual([a for a in alerts if "### %s\n" % a not in explained], [])
        tested = read("etc", "stillhere.rules.test.yml")
        self.assertEqual([a for a in alerts if a not in tested], [])

    def test_the_unit(self):
        program = os.path.abspath(os.environ.get("STILLHERED", "stillhered"))
        text = read("contrib", "systemd", "stillhered.service.in")
        text = text.replace("@sbindir@/stillhered", program).replace("@sysconfdir@", "/etc")
        # Of manual pages it is asked whether they are installed, and they need not be.
        text = re.sub(r"(?m)^Documentation=.*\n", "", text)
        path = os.path.join(self.directory, "stillhered.service")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        verified = tool("systemd-analyze", "verify", path)
        self.assertEqual((verified.returncode, verified.stdout), (0, ""))

    def test_the_units_command_line_starts(self):
        text = read("contrib", "systemd", "stillhered.service.in")
        before, command = (re.search(r"^%s=@sbindir@/stillhered (.*)$" % key, text, re.M).group(1).split()
                           for key in ("ExecStartPre", "ExecStart"))
        conf = os.path.join(self.directory, "stillhere.conf")
        with open(conf, "w", encoding="utf-8") as f:
            f.write("listen = 127.0.0.1:%d\ndatabase_url = %s\n" % (free_port(), self.pg.url(self.database)))
        program = os.environ["STILLHERED"]
        args = [[a.replace("@sysconfdir@/stillhere/stillhere.conf", conf) for a in line] for line in (before, command)]
        self.assertEqual(args[1], ["--config", conf])
        self.assertEqual(subprocess.run([program, *args[0]], check=False).returncode, 0)
        with open(os.path.join(self.directory, "unit.log"), "w+", encoding="utf-8") as log:
            daemon = subprocess.Popen([program, *args[1]], stdout=subprocess.DEVNULL, stderr=log)
            try:
                self.wait_until(lambda: "ready" in read(log.name), 10, "ready")
            finally:
                daemon.terminate()
            self.assertEqual(daemon.wait(20), 0)
