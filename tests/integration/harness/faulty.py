# SPDX-License-Identifier: Apache-2.0
"""A server that is wrong in one way: a proxy in front of a right one that alters its answers."""

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import SLOW
from .client import hostport

#: What belongs to one connection and not to the answer.
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "date"}


class Faulty:
    """Listens on `base`. @a alter: called with (method, path, request body, status, answer), JSON or None each; it may
    change the answer in place or give another (status, answer)."""

    def __init__(self, behind, alter):
        self.behind, self.alter = behind, alter
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.server.daemon_threads = True
        self.base = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def ask(self, method, path, body=None, headers=None):
        """What the right server says. @return (status, headers, bytes)"""
        connection = http.client.HTTPConnection(*hostport(self.behind), timeout=60 * SLOW)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def path(self, path):
        """What the right server is asked for instead."""
        return path

    def answer(self, method, path, body, headers):
        """What the right server says, altered. @return (status, headers, bytes)"""
        status, headers, data = self.ask(method, self.path(path), body, headers)
        kept = [(n, v) for n, v in headers if n.lower() not in HOP]
        document = json.loads(data) if data[:1] == b"{" else None
        with self.lock:
            other = self.alter(method, path, json.loads(body) if body else None, status, document)
        if other is not None:
            status, document = other
        return status, kept, data if document is None else json.dumps(document).encode()

    def handler(self):
        faulty = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *unused):
                pass

            def pass_on(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else None
                headers = {n: v for n, v in self.headers.items() if n.lower() in ("authorization", "content-type")}
                status, headers, data = faulty.answer(self.command, self.path, body, headers)
                try:
                    self.send_response(status)
                    for name, value in headers:
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # the client has given up its poll
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_DELETE = pass_on

        return Handler
