# SPDX-License-Identifier: Apache-2.0
"""What another implementation of JSON Schema says: Debian's python3-jsonschema, which only the system's Python has."""

import json
import subprocess
import sys

PYTHON = "/usr/bin/python3"


def ask(document, pairs):
    """@a pairs: (schema, value), with references into the document. @return what is wrong with each, as lists of texts; and
    last with the document's own schemas, which have to be sound"""
    done = subprocess.run([PYTHON, "-I", __file__], input=json.dumps([document, pairs]), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError("python3-jsonschema could not be asked:\n" + done.stderr)
    return json.loads(done.stdout)


def answer():
    from jsonschema import Draft202012Validator, RefResolver, SchemaError
    document, asked = json.load(sys.stdin)
    resolver = RefResolver("", document)
    out = [[e.message[:200] for e in Draft202012Validator(schema, resolver=resolver).iter_errors(value)]
           for schema, value in asked]
    unsound = []
    for name, schema in document["components"]["schemas"].items():
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as e:
            unsound.append("%s: %s" % (name, e.message[:200]))
    json.dump(out + [unsound], sys.stdout)


if __name__ == "__main__":
    answer()
