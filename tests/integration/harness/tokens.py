# SPDX-License-Identifier: Apache-2.0
"""Tokens and API keys as an issuer makes them, and as an attacker would: nothing is checked here."""

import base64
import hashlib
import hmac
import json
import os
import secrets
import signal
import subprocess
import time

from .case import ENVIRONMENT, Case


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def packed(document):
    """A dict, or text that is JSON already (or not)."""
    text = document if isinstance(document, str) else json.dumps(document, separators=(",", ":"))
    return b64(text.encode("utf-8"))


def openssl(*args, **more):
    return subprocess.run(["openssl"] + list(args), check=True, capture_output=True, **more).stdout


def ecdsa_raw(der):
    """A DER signature as the two numbers of 32 bytes that JWS wants."""
    at = 3 if der[1] & 0x80 else 2
    out = b""
    for _ in range(2):
        length = der[at + 1]
        out += der[at + 2:at + 2 + length].lstrip(b"\0").rjust(32, b"\0")
        at += 2 + length
    return out


class Key:
    """What tokens are signed with. `file` is for jwt_key_file."""

    def __init__(self, directory, name, algorithm="HS256"):
        self.algorithm, self.name = algorithm, name
        self.file = os.path.join(directory, name + (".key" if algorithm == "HS256" else ".pem"))
        self.private = os.path.join(directory, name + ".private.pem")
        if algorithm == "HS256":
            self.secret = secrets.token_bytes(48)
            with open(self.file, "wb") as f:
                f.write(self.secret + b"\n")
        else:
            options = {"RS256": ["RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
                       "ES256": ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"]}[algorithm]
            openssl("genpkey", "-algorithm", *options, "-out", self.private)
            openssl("pkey", "-in", self.private, "-pubout", "-out", self.file)
        os.chmod(self.file, 0o640)

    def sign(self, text):
        if self.algorithm == "HS256":
            return hmac.new(self.secret, text.encode(), hashlib.sha256).digest()
        der = openssl("dgst", "-sha256", "-sign", self.private, input=text.encode())
        return der if self.algorithm == "RS256" else ecdsa_raw(der)

    def token(self, header=None, **claims):
        """A signed token that is good for an hour, unless the claims say otherwise; None leaves a claim out."""
        return self.seal(dict({"alg": self.algorithm, "typ": "JWT"}, **(header or {})), full(claims))

    def seal(self, header, payload):
        """A token of just these parts, dicts or text."""
        text = packed(header) + "." + packed(payload)
        return text + "." + b64(self.sign(text))


def full(claims):
    """The claims and what is left out of them."""
    document = {"sub": "an", "exp": int(time.time()) + 3600, "rooms": ["*"], "scope": "presence:read presence:write"}
    document.update(claims)
    return {k: v for k, v in document.items() if v is not None}


def bearer(credential):
    """The headers of a request; None shows nothing."""
    return {} if credential is None else {"Authorization": "Bearer " + credential}


class ApiKeys:
    """An api_keys_file."""

    def __init__(self, directory):
        self.file = os.path.join(directory, "api.keys")
        self.lines = {}
        self.write()

    def add(self, name, scope, rooms="*"):
        """Makes a key and writes the file. @return what is shown as a credential"""
        key = "sh_" + secrets.token_urlsafe(24)
        self.lines[name] = "%s %s %s %s\n" % (name, hashlib.sha256(key.encode()).hexdigest(), scope, rooms)
        self.write()
        return key

    def revoke(self, name):
        del self.lines[name]
        self.write()

    def write(self):
        with open(self.file, "w", encoding="utf-8") as f:
            f.write("# name, sha256, scopes, rooms\n" + "".join(self.lines.values()))
        os.chmod(self.file, 0o640)


class Guarded(Case):
    """A daemon that asks who calls: tokens signed with `key` (or `old_key`), API keys out of `keys`."""

    algorithm = "HS256"

    @classmethod
    def begin(cls):
        cls.key_directory = os.path.join(ENVIRONMENT["directory"], cls.__module__ + "." + cls.__name__ + ".keys")
        os.makedirs(cls.key_directory, exist_ok=True)
        cls.key = Key(cls.key_directory, "main", cls.algorithm)
        cls.old_key = Key(cls.key_directory, "old", cls.algorithm)
        cls.keys = ApiKeys(cls.key_directory)
        cls.config = dict({"jwt_leeway_ms": 1000}, **cls.config)
        cls.config.update(auth="jwt", jwt_algorithm=cls.algorithm, api_keys_file=cls.keys.file,
                          jwt_key_file=cls.key.file + "," + cls.old_key.file)
        super().begin()

    @classmethod
    def reload(cls):
        """SIGHUP, and waits until every daemon has read its keys again, or said that it could not."""
        for d in cls.daemons:
            before = len(d.text())
            d.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 10
            while "SIGHUP" not in d.text()[before:]:
                if time.monotonic() > deadline:
                    raise AssertionError("%s does not reload:\n%s" % (d.name, d.tail()))
                time.sleep(0.01)
