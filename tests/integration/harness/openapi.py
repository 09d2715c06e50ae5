# SPDX-License-Identifier: Apache-2.0
"""doc/openapi.json as a judge of replies: which operation a request was, and what its answer may be.

The schemas use a small part of JSON Schema, which is all that is known here; a keyword that is not known is an error and
never passed over."""

import functools
import gzip
import json
import os
import re
import urllib.parse

DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3, "doc", "openapi.json")
METHODS = ("get", "put", "post", "delete")
#: What is in the pages that libmicrohttpd answers by itself, before the daemon sees a request. (Of a wrong Content-Length
#: it sends the head twice, so that the page is not at the body's beginning.)
NOT_OURS = b"<html><head><title>Request"
SAYS_NOTHING = {"$ref", "default", "description", "examples", "title"}
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}


def load():
    with open(DOCUMENT, encoding="utf-8") as f:
        return json.load(f)


class Schemas:
    """Checks values. Errors are texts that begin with where it is."""

    def __init__(self, document):
        self.document = document

    def at(self, thing):
        """What a $ref means."""
        while "$ref" in thing:
            target = self.document
            for part in thing["$ref"].lstrip("#/").split("/"):
                target = target[part]
            thing = target
        return thing

    def errors(self, schema, value, where="$"):
        for keyword in schema:
            if keyword not in SAYS_NOTHING and not hasattr(self, "_" + keyword):
                raise ValueError("the keyword %r is not known here" % keyword)
        # What stands beside a $ref holds as well.
        out = self.errors(self.at(schema), value, where) if "$ref" in schema else []
        for keyword, argument in schema.items():
            if keyword not in SAYS_NOTHING:
                out += getattr(self, "_" + keyword)(schema, argument, value, where)
        return out

    def _type(self, schema, names, value, where):
        for name in [names] if isinstance(names, str) else names:
            if isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool)):
                return []
        return ["%s: %.80r is no %s" % (where, value, names)]

    def _required(self, schema, names, value, where):
        return ["%s: %s is missing" % (where, n) for n in names if isinstance(value, dict) and n not in value]

    def _properties(self, schema, properties, value, where):
        if not isinstance(value, dict):
            return []
        return [e for n in value if n in properties for e in self.errors(properties[n], value[n], where + "." + n)]

    def _additionalProperties(self, schema, allowed, value, where):  # noqa: N802
        if allowed is not False:
            raise ValueError("additionalProperties can only be false here")
        extra = set(value) - set(schema.get("properties", {})) if isinstance(value, dict) else ()
        return ["%s: %s is not in the schema" % (where, n) for n in extra]

    def _items(self, schema, item, value, where):
        if not isinstance(value, list):
            return []
        return [e for i, v in enumerate(value) for e in self.errors(item, v, "%s[%d]" % (where, i))]

    def _oneOf(self, schema, choices, value, where):  # noqa: N802
        found = [self.errors(c, value, where) for c in choices]
        fits = sum(not f for f in found)
        return [] if fits == 1 else ["%s: fits %d of %d: %s" % (where, fits, len(choices), min(found, key=len)[:3])]

    def _enum(self, schema, values, value, where):
        return [] if value in values else ["%s: %.80r is none of %s" % (where, value, values)]

    def _const(self, schema, wanted, value, where):
        return self._enum(schema, [wanted], value, where)

    @staticmethod
    def _bound(wrong, where, keyword, value):
        return ["%s: %.80r is outside %s" % (where, value, keyword)] if wrong else []

    def _minimum(self, schema, n, value, where):
        return self._bound(isinstance(value, int) and value < n, where, "minimum", value)

    def _maximum(self, schema, n, value, where):
        return self._bound(isinstance(value, int) and value > n, where, "maximum", value)

    def _minLength(self, schema, n, value, where):  # noqa: N802
        return self._bound(isinstance(value, str) and len(value) < n, where, "minLength", value)

    def _maxLength(self, schema, n, value, where):  # noqa: N802
        return self._bound(isinstance(value, str) and len(value) > n, where, "maxLength", value)

    def _minItems(self, schema, n, value, where):  # noqa: N802
        return self._bound(isinstance(value, list) and len(value) < n, where, "minItems", value)

    def _maxItems(self, schema, n, value, where):  # noqa: N802
        return self._bound(isinstance(value, list) and len(value) > n, where, "maxItems", value)

    def _pattern(self, schema, pattern, value, where):
        return self._bound(isinstance(value, str) and not re.search(pattern, value), where, "pattern", value)


class Api:
    """The document, ready to be asked."""

    def __init__(self, document=None):
        self.document = document or load()
        self.schemas = Schemas(self.document)
        self.patterns = {}  # by the number of segments; those without a parameter first
        for template in sorted(self.document["paths"], key=lambda p: p.count("{")):
            segments = template.split("/")
            self.patterns.setdefault(len(segments), []).append((segments, template))

    def operations(self):
        """(METHOD, template, operation) of all."""
        return [(m.upper(), p, item[m]) for p, item in self.document["paths"].items() for m in METHODS if m in item]

    def parameters(self, operation, kind):
        """Those of an operation that are in the path, the query or a header, in order."""
        return [p for p in map(self.schemas.at, operation.get("parameters", [])) if p["in"] == kind]

    def template(self, target):
        """The path of the document that a request's target is one of, or None. Splits and decodes as the daemon does."""
        path = urllib.parse.urlsplit(target).path or "/" if "://" in target[:8] else target.partition("?")[0]
        given = [urllib.parse.unquote(s) for s in path.split("/")]
        for segments, template in self.patterns.get(len(given), ()):
            if all(s == g or s.startswith("{") for s, g in zip(segments, given)):
                return template
        return None

    def operation(self, method, template):
        item = self.document["paths"].get(template, {}) if method.isupper() else {}
        return item.get("get" if method == "HEAD" else method.lower())

    # -- replies -------------------------------------------------------------------------------------------------------

    def errors(self, method, template, status, headers, body):
        """What is wrong with a reply. @a method: None where it is not known what was asked"""
        if "x-request-id" not in headers and (status >= 400 and NOT_OURS in body or "server" in headers):
            return []  # libmicrohttpd's own, or a proxy's
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body) if body else body
        if method is None:
            return self._problem(headers, body) if status >= 400 and body else []
        operation = self.operation(method, template)
        if operation is None:
            return self._elsewhere(method, status, headers, body)
        response = operation["responses"].get(str(status))
        if response is None:
            return ["the status is not in the document"]
        response = self.schemas.at(response)
        out = []
        for name, header in response.get("headers", {}).items():
            header, value = self.schemas.at(header), headers.get(name.lower())
            if value is not None:
                out += self.schemas.errors(header["schema"], value, name)
            elif header.get("required"):
                out.append("the header %s is missing" % name)
        return out + self._body(response.get("content", {}), method, headers, body)

    def _problem(self, headers, body):
        return self._body({"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}, "", headers,
                          body)

    def _elsewhere(self, method, status, headers, body):
        """A path or method that is not there, or OPTIONS."""
        wrong = ["the header Allow is missing"] if status in (204, 405) and "allow" not in headers else []
        if method == "OPTIONS" and status == 204:
            return wrong + (["there is a body"] if body else [])
        if status < 400:
            return ["a status of success where nothing is"]
        return wrong + (self._problem(headers, body) if method != "HEAD" else [])

    def _body(self, content, method, headers, body):
        kind = headers.get("content-type", "").split(";")[0]
        if method == "HEAD" or not content:
            return ["there is a body"] if body else []
        if kind not in content:
            return ["the type %r is not in the document" % kind]
        if re.search(r"[/+]json$", kind):
            return self._json(content[kind]["schema"], body)
        line = content[kind].get("x-line")
        return [e for text in body.splitlines() for e in self._json(line, text)] if line else []

    def _json(self, schema, text):
        try:
            value = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
        except ValueError as e:
            return ["no JSON: %s" % e]
        return self.schemas.errors(schema, value)

    def message_errors(self, template, event, data):
        """What is wrong with a message of a stream."""
        content = self.schemas.at(self.operation("GET", template)["responses"]["200"])["content"]
        schema = content.get("text/event-stream", {}).get("x-messages", {}).get(event)
        return self._json(schema, data) if schema else ["no message %r is in the document" % event]

    # -- requests ------------------------------------------------------------------------------------------------------

    def request_errors(self, method, template, target, sent):
        """What is wrong with a request that was answered with success. @a sent: its body, or None: not known"""
        operation = self.operation(method, template)
        if operation is None:
            return []
        query = urllib.parse.parse_qs(target.partition("?")[2], keep_blank_values=True)
        known = {p["name"]: p for p in self.parameters(operation, "query")}
        out = ["the query parameter %s is not in the document" % n for n in query if n not in known]
        out += ["the query parameter %s is required" % n for n, p in known.items() if p.get("required") and n not in query]
        for name in query.keys() & known.keys():
            schema = self.schemas.at(known[name]["schema"])
            value = query[name] if schema.get("type") == "array" else query[name][0]
            number = schema.get("type") == "integer" and value.isdigit()
            out += self.schemas.errors(schema, int(value) if number else value, name)
        if isinstance(sent, (str, bytes)) and "requestBody" in operation:
            out += self._json(operation["requestBody"]["content"]["application/json"]["schema"], sent)
        return out


@functools.lru_cache(maxsize=None)
def api():
    """The one of this process."""
    return Api()
