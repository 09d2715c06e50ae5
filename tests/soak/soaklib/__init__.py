# SPDX-License-Identifier: Apache-2.0
"""The soak: random load on three instances, faults at random, and a check of every promise at the end."""
