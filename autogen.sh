#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes ./configure in a fresh clone. Needs autoconf, automake and pkg-config.
set -eu
cd "$(dirname "$0")"
exec autoreconf --install --warnings=all,no-portability,no-obsolete
