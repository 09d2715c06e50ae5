# SPDX-License-Identifier: Apache-2.0
"""Chromium without a screen, driven over W3C WebDriver by plain HTTP."""

import base64
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from . import SLOW
from .daemon import free_port

ARGUMENTS = ["--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--mute-audio"]


class Driver:
    """One chromedriver, for the browsers of a class."""

    def __init__(self, directory):
        program = shutil.which("chromedriver")
        assert program and shutil.which("chromium"), "chromium and chromium-driver are not installed"
        self.port = free_port()
        self.directory = directory
        self.log = open(os.path.join(directory, "chromedriver.log"), "ab")
        self.process = subprocess.Popen([program, "--port=%d" % self.port], stdout=self.log, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, env=dict(os.environ, LC_ALL="C.UTF-8"))
        deadline = time.monotonic() + 30 * SLOW
        while True:
            try:
                if self.call("GET", "/status")["ready"]:
                    return
            except OSError:
                pass
            assert self.process.poll() is None and time.monotonic() < deadline, "chromedriver does not start"
            time.sleep(0.05)

    def call(self, method, path, body=None, timeout=90):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)
        try:
            text = json.dumps(body or {}) if method == "POST" else None
            connection.request(method, path, text, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and value.get("error"):
            raise AssertionError("WebDriver: %s: %s" % (value["error"], value.get("message", "")[:500]))
        return value

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10 * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Browser:
    """A browser process with a profile of its own, and the one page in it."""

    def __init__(self, driver, width=1280, height=900):
        self.driver = driver
        self.profile = tempfile.mkdtemp(prefix="shbrowser.", dir=driver.directory)
        arguments = ARGUMENTS + ["--user-data-dir=" + self.profile, "--window-size=%d,%d" % (width, height)]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
        answer = driver.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")}}}})
        self.path = "/session/" + answer["sessionId"]
        self.gone = False

    def post(self, path, **body):
        return self.driver.call("POST", self.path + path, body)

    def cdp(self, command, **params):
        return self.post("/goog/cdp/execute", cmd=command, params=params)

    def look(self, width=None, height=None, dark=None, still=False):
        """As another device, and as somebody likes it."""
        if width:
            self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2,
                     mobile=width < 700)
        features = []
        if dark is not None:
            features.append({"name": "prefers-color-scheme", "value": "dark" if dark else "light"})
        if still:
            features.append({"name": "prefers-reduced-motion", "value": "reduce"})
        self.cdp("Emulation.setEmulatedMedia", features=features)

    def go(self, url):
        self.post("/url", url=url)

    def js(self, script, *args):
        """Runs a function body in the page. @return what it returns"""
        return self.post("/execute/sync", script=script, args=list(args))

    def text(self, selector):
        """The texts of all elements that match and are shown."""
        return self.js("return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility())"
                       ".map(e => e.textContent)", selector)

    def until(self, script, *args, seconds=15, what=None):
        """Asks until the script's value is true. @return it"""
        deadline = time.monotonic() + seconds * SLOW
        while True:
            value = self.js(script, *args)
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError("%s did not come; the page says:\n%s\nand logged %r" % (
                    what or script, self.js("return document.body.innerText")[:2500], self.complaints()))
            time.sleep(0.05)

    def shows(self, selector, text, seconds=15):
        """Waits until a shown element that matches contains the text."""
        self.until("return [...document.querySelectorAll(arguments[0])].some(e => e.checkVisibility() && "
                   "e.textContent.includes(arguments[1]))", selector, text, seconds=seconds,
                   what="%r in %s" % (text, selector))

    def lacks(self, selector, text, seconds=15):
        self.until("return ![...document.querySelectorAll(arguments[0])].some(e => e.checkVisibility() && "
                   "e.textContent.includes(arguments[1]))", selector, text, seconds=seconds,
                   what="the end of %r in %s" % (text, selector))

    def element(self, selector):
        return list(self.post("/element", using="css selector", value=selector).values())[0]

    def click(self, selector):
        self.post("/element/%s/click" % self.element(selector))

    def type(self, selector, text):
        element = self.element(selector)
        self.post("/element/%s/clear" % element)
        self.post("/element/%s/value" % element, text=text)

    def keys(self, *keys):
        """Pressed and let go, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.post("/actions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def tab_to(self, selector, most=80):
        """Presses Tab until the focus is there. Wherever it is on the way has to be seen."""
        for _ in range(most):
            self.keys("\ue004")
            found, seen, what = self.js(
                "const a = document.activeElement; return [a.matches(arguments[0]), a === document.body ||"
                " getComputedStyle(a).outlineStyle !== 'none', a.outerHTML.slice(0, 200)]", selector)
            assert seen, "the focus is not seen on " + what
            if found:
                return
        raise AssertionError("%s is not reached by Tab" % selector)

    def point(self, selector, x, y):
        """Moves the pointer to a place in an element, as fractions of its size."""
        self.js("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        box = self.js("const b = document.querySelector(arguments[0]).getBoundingClientRect();"
                      "return [b.left, b.top, b.width, b.height]", selector)
        self.post("/actions", actions=[{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [
            {"type": "pointerMove", "duration": 0, "origin": "viewport", "x": int(box[0] + x * box[2]),
             "y": int(box[1] + y * box[3])}]}])

    def shot(self, path, whole=True):
        picture = self.cdp("Page.captureScreenshot", captureBeyondViewport=whole, format="png")["data"] if whole \
            else self.driver.call("GET", self.path + "/screenshot")
        with open(path, "wb") as f:
            f.write(base64.b64decode(picture))

    def complaints(self):
        """What the console has had since it was last asked, warnings and errors."""
        return [e["message"] for e in self.post("/se/log", type="browser") if e["level"] in ("WARNING", "SEVERE")]

    def processes(self):
        """The ids of the browser itself, without its children."""
        out = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as f:
                    words = f.read().decode("utf-8", "replace")
            except OSError:
                continue
            if self.profile in words and "--type=" not in words and "crashpad" not in words:
                out.append(int(pid))
        return out

    def kill(self):
        """As when the machine is switched off: nothing is said to anybody."""
        self.gone = True
        pids = self.processes()
        assert pids, "the browser's process is not found"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def quit(self):
        if not self.gone:
            self.gone = True
            self.driver.call("DELETE", self.path)
        shutil.rmtree(self.profile, ignore_errors=True)
