# SPDX-License-Identifier: Apache-2.0
"""What tests/bench/compare is made of. The harness of the integration tests starts PostgreSQL and the daemon."""

import os
import sys

BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(BENCH), "integration"))


class Missing(Exception):
    """What a figure needs is not there: the figure is not measured, and the table says why."""


class Broken(Exception):
    """A run that cannot count: a server ended, refused or answered wrongly. Its side of the row is not measured."""
