# SPDX-License-Identifier: Apache-2.0
"""The rows of the table, in its order, and how each is called."""

from . import crash, rows_beat, rows_expiry, rows_scale, rows_storage, rows_watch

#: name, work, unit of its sides, function
ROWS = (
    ("heartbeats", "accepted heartbeats, 64 keep-alive connections, 10 000 sessions in 1000 rooms", "1/s",
     rows_beat.heartbeats),
    ("jwt", "the same with auth=jwt", "1/s", rows_beat.jwt),
    ("batches", "batch heartbeats, 100 a request", "1/s", rows_beat.batches),
    ("storage", "what PostgreSQL alone takes on, one connection, 26 renewals a commit", "1/s", rows_storage.storage),
    ("parked", "heartbeats while polls are parked", "1/s", rows_beat.parked),
    ("million", "heartbeats with 1 000 000 live leases", "1/s", rows_beat.million),
    ("latency", "heartbeat latency at a quarter of the load", "ms", rows_beat.latency),
    ("memory", "what a parked poll costs", "KB", rows_watch.memory),
    ("event", "one event to all parked polls, last reply", "ms", rows_watch.event),
    ("unchanged", "polls answered 304 from memory", "1/s", rows_watch.unchanged),
    ("snapshot", "snapshot of 1000 users, shared", "1/s", rows_watch.snapshot),
    ("expiry", "100 000 leases expire in the same second", "1/s", rows_expiry.expiry),
    ("sweeper", "the sweeper with nothing to do, CPU", "% of a core", rows_expiry.sweeper),
    ("join", "join on one instance to the watcher on another", "ms", rows_watch.join),
    ("instances", "heartbeats shared by several instances, 10 000 sessions in 1000 rooms", "1/s", rows_scale.instances),
    ("standby", "heartbeats with a standby", "1/s", rows_scale.standby),
    ("crash", "a crash of PostgreSQL in the middle of the load", "missing", crash.crash),
)
