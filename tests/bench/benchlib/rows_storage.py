# SPDX-License-Identifier: Apache-2.0
"""The ceiling of storage: what other designs of it would bring at most, without HTTP, JSON and decisions."""

import random

from . import asks, load
from .ours import filled

#: What the writer commits at once under 64 connections, about.
BATCH = 26

#: The least that keeps one row for each lease.
BARE = """UPDATE stillhere.lease AS l SET revision = l.revision + 1, renewed_at = clock_timestamp(),
    expires_at = clock_timestamp() + interval '1 hour'
    FROM unnest('{%s}'::text[], '{%s}'::text[], '{%s}'::text[]) AS i(room_id, user_id, session_id)
    WHERE l.room_id = i.room_id AND l.user_id = i.user_id AND l.session_id = i.session_id"""

#: Renewals only noted, a row for each commit. Whatever reads leases would have to look here as well, and each renewal
#: is yet to be folded into its row: what it saves is saved only for sessions that renew again before that.
JOURNAL = """INSERT INTO storage_journal VALUES (clock_timestamp(), '{%s}', '{%s}', '{%s}', '{%s}')"""


def bare(sessions):
    keys = sorted((asks.room(i), asks.user(i), asks.session(i)) for i in sessions)
    return BARE % tuple(",".join(column) for column in zip(*keys))


def journal(sessions):
    n = len(sessions)
    return JOURNAL % (",".join(str(i) for i in sessions), ",".join(["42"] * n), ",".join([str(asks.TTL_MS)] * n),
                      ",".join(["00000000-0000-0000-0000-000000000000"] * n))


def storage(world, row):
    database = world.database(asks.SESSIONS)
    statement = database.statement()
    database.sql("CREATE TABLE storage_journal (at timestamptz, lease int8[], revision int8[], ttl_ms int4[],"
                 " request_id text[])")
    groups = [random.sample(range(asks.SESSIONS), BATCH) for _ in range(100)]
    ours, least, noted = "the statement that renews", "a bare update by key", "a journal, not folded"
    for name, make, promises in (
            (ours, lambda group: filled(statement, group), "what an accepted heartbeat promises"),
            (least, bare, "a committed row; no decision, no revision back"),
            (noted, journal, "a committed row for all; who reads leases has to look here too")):
        scripts = [make(group) for group in groups]
        row.peer(name, lambda: world.programs.need("pgbench"), lambda _, s=scripts: load.pgbench(
            world.programs, database.cluster, database.name, s, statement.settings, world.seconds, 1, BATCH), promises)
    row.measure()
    row.ratio(ours, least)
    row.ratio(ours, noted)
