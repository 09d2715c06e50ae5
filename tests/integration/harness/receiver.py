# SPDX-License-Identifier: Apache-2.0
"""A receiver of webhooks with scripted answers, and a check of signatures written from the Standard Webhooks
specification alone."""

import base64
import hashlib
import hmac
import json
import os
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def secret():
    return "whsec_" + base64.b64encode(os.urandom(32)).decode()


def verified(secret_text, headers, body):
    """Whether one of the signatures is right."""
    key = base64.b64decode(secret_text[len("whsec_"):])
    content = b"%s.%s.%s" % (headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body)
    right = "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(right, given) for given in headers["webhook-signature"].split(" "))


class Delivery:
    def __init__(self, headers, body, at):
        self.headers, self.body, self.at = headers, body, at
        self.id = headers["webhook-id"]
        self.json = json.loads(body)
        self.events = self.json["data"]["events"]
        self.room = self.json["data"]["room_id"]
        self.status = None


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """A daemon that is killed leaves connections behind."""


class Receiver:
    """Answers with answer(delivery): a status, or (status, headers). Several threads at once call it."""

    def __init__(self, answer=None, tls=None, host="127.0.0.1"):
        self.answer = answer or (lambda delivery: 200)
        self.deliveries = []
        self.lock = threading.Lock()
        self.connections = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                delivery = Delivery({k.lower(): v for k, v in self.headers.items()}, body, time.monotonic())
                with receiver.lock:
                    receiver.deliveries.append(delivery)
                answer = receiver.answer(delivery)
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                delivery.status = status
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *unused):
                pass

        self.server = Server((host, 0), Handler)
        self.port = self.server.server_address[1]
        self.url = "%s://%s:%d/hook" % ("https" if tls else "http", host, self.port)
        if tls:  # each connection by its own thread: one that breaks off holds up no other
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.cert, tls.key)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def all(self):
        with self.lock:
            return list(self.deliveries)

    def taken(self):
        """Deliveries that were answered with 2xx."""
        return [d for d in self.all() if d.status is not None and 200 <= d.status < 300]

    def events(self, room=None):
        """The events that were taken, in the order of their coming; again for each time."""
        return [e for d in self.taken() for e in d.events if room in (None, d.room)]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
