# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made by the openssl command, and what clients trust."""

import os
import ssl
import subprocess

#: By base URL: the file with the certificate that a client of this test process trusts there.
TRUSTED = {}


class Pair:
    """A certificate that is its own authority, and its key."""

    def __init__(self, directory, name, algorithm="ec"):
        self.cert = os.path.join(directory, name + ".pem")
        self.key = os.path.join(directory, name + ".key")
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"] if algorithm == "ec" else ["-newkey", "rsa:2048"]
        subprocess.run(["openssl", "req", "-x509", *kind, "-nodes", "-keyout", self.key, "-out", self.cert, "-days", "2",
                        "-subj", "/CN=" + name, "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.chmod(self.key, 0o644)  # the daemon may run as another user than the one who made it

    @property
    def settings(self):
        """The keys of a daemon with this certificate."""
        return {"tls_cert_file": self.cert, "tls_key_file": self.key}

    @property
    def der(self):
        with open(self.cert) as f:
            return ssl.PEM_cert_to_DER_cert(f.read())


def context(base):
    """What a client of this daemon verifies with."""
    return ssl.create_default_context(cafile=TRUSTED[base])
