# SPDX-License-Identifier: Apache-2.0
"""What the integration tests stand on: a private PostgreSQL, real daemons, HTTP helpers."""

import os

#: Timeouts and upper bounds are multiplied by this; for sanitizer builds and slow machines.
SLOW = float(os.environ.get("TEST_SLOW", "1"))

#: Whether the long load run was asked for (run --long).
LONG = os.environ.get("TEST_LONG", "") == "1"
