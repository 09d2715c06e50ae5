# SPDX-License-Identifier: Apache-2.0
"""Every reply that the harness's clients get, to be held against doc/openapi.json after the class: a sample, and whatever
has names that were not seen before. TEST_OPENAPI=0 turns it off."""

import os
import re
import threading

from . import openapi

#: Of each operation, status and set of names so many are kept; of large ones, which take long to judge, only a few.
SAMPLES, LARGE_SAMPLES = 20, 2
LARGE = 16384
#: And of each operation and status so many in all, whatever names the tests make up.
MOST = 1000
NAMES = re.compile(rb'"(\w+)":')
REQUEST = re.compile(rb"(?:\r\n)*([A-Za-z]+) (/\S*|\*|https?://\S*) HTTP/1\.[01]\r\n")
LENGTH = re.compile(rb"\r\ncontent-length: *([^\r]*)", re.I)


class Recorder:
    def __init__(self, on=True):
        self.on = on
        self.lock = threading.Lock()
        self.seen, self.kept = {}, []

    def _wanted(self, key, body, names=True):
        """Counts one more of a kind. @a names: it is JSON. @return whether it is to be kept"""
        most = LARGE_SAMPLES if len(body) > LARGE else SAMPLES
        one = key, frozenset(NAMES.findall(body[:LARGE])) if names else None
        with self.lock:
            self.seen[one] = self.seen.get(one, 0) + 1
            wanted = self.seen[one] <= most and self.seen.get(key, 0) < MOST
            if wanted:
                self.seen[key] = self.seen.get(key, 0) + 1
        return wanted

    def note(self, method, target, status, headers, body, sent=None):
        """A whole reply. @a method: None where it is not known what was asked; @a sent: the request's body, if known"""
        if not self.on or status < 200:
            return
        template = openapi.api().template(target) if method else None
        text = headers.get("content-type", "").endswith("json") and "content-encoding" not in headers
        if self._wanted((method, template, status), body, text):
            self._keep((method, target, template, status, headers, body, sent))

    def note_message(self, target, event, data):
        """A message of a stream."""
        if not self.on:
            return
        template = openapi.api().template(target)
        if self._wanted((template, event), data.encode()):
            self._keep((None, target, template, event, None, data, None))

    def _keep(self, item):
        with self.lock:
            self.kept.append(item)

    def violations(self):
        """What the document does not allow, as texts; forgets all."""
        with self.lock:
            kept, self.kept = self.kept, []
        api = openapi.api()
        out = []
        for method, target, template, status, headers, body, sent in kept:
            if headers is None:
                wrong = api.message_errors(template, status, body)
            else:
                wrong = api.errors(method, template, status, headers, body)
                # What was taken must be what may be sent; in a batch, an item may be refused.
                refused = "content-encoding" in headers or b'"status":400' in body
                if method and 200 <= status < 300 and not refused:
                    wrong += api.request_errors(method, template, target, sent)
            if wrong:
                out.append("doc/openapi.json does not allow %s to %s %s: %s\n    %.300r" %
                           (status, method, target[:200], "; ".join(wrong[:3]), body))
        return out


#: Each class of tests has a process, and so a recorder, of its own.
RECORDER = Recorder(os.environ.get("TEST_OPENAPI") != "0")


class Asked:
    """What was asked on a connection under full control, in the order of the replies. Where it cannot be told, since the
    framing is odd or the reply came before the request was whole, nothing is from there on."""

    def __init__(self):
        self.data, self.lost = b"", False

    def send(self, data):
        if RECORDER.on and not self.lost:
            self.data += data

    def head_only(self):
        asked = None if self.lost else REQUEST.match(self.data)
        return bool(asked) and asked.group(1) == b"HEAD"

    def next(self):
        """(method, target), or (None, "")."""
        asked = None if self.lost else REQUEST.match(self.data)
        self.lost = True
        if not asked:
            return None, ""
        end = self.data.find(b"\r\n\r\n")
        head = self.data[:end]
        lengths = LENGTH.findall(head)
        if end >= 0 and b"\0" not in head and b"transfer-encoding" not in head.lower() and len(lengths) <= 1:
            length = int(lengths[0]) if lengths and lengths[0].isdigit() else 0 if not lengths else -1
            if 0 <= length <= len(self.data) - end - 4:
                self.data = self.data[end + 4 + length:]
                self.lost = False
        return asked.group(1).decode(), asked.group(2).decode("latin-1")

    def note(self, reply):
        """A reply that has come."""
        if RECORDER.on and reply.status >= 200:
            method, target = self.next()
            if "transfer-encoding" not in reply.headers:
                RECORDER.note(method, target, reply.status, reply.headers, reply.body)
