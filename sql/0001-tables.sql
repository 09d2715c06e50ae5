-- The tables of stillhere. Applied by stillhered as one transaction (src/db/migrate.c).
--
-- Rules that hold for every table of a room:
--   * room_id is in every key, so that the tables can one day be distributed by it;
--   * no index on a column that a heartbeat changes (renewals stay HOT);
--   * text compares byte for byte (COLLATE "C"): identifiers are bytes, not words,
--     and the daemon sorts its batches the same way to keep one lock order.

CREATE TABLE stillhere.room (
    room_id         text COLLATE "C" NOT NULL PRIMARY KEY
                    CHECK (octet_length(room_id) BETWEEN 1 AND 128),
    revision        bigint NOT NULL CHECK (revision BETWEEN 0 AND 9007199254740991),
    pruned_revision bigint NOT NULL DEFAULT 0 CHECK (pruned_revision BETWEEN 0 AND 9007199254740991),
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (pruned_revision <= revision)
);
COMMENT ON TABLE stillhere.room IS 'A scope that people watch. Its row is locked last and briefly, to hand out room revisions in commit order.';
COMMENT ON COLUMN stillhere.room.room_id IS 'Identifier, UTF-8, 1 to 128 bytes, compared byte for byte.';
COMMENT ON COLUMN stillhere.room.revision IS 'Revision of the newest event, 0 before the first: +1 for each event, no gaps.';
COMMENT ON COLUMN stillhere.room.pruned_revision IS 'Events up to this revision are no longer kept; a cursor below it gets a snapshot.';
COMMENT ON COLUMN stillhere.room.changed_at IS 'When the newest event was written, on the database clock.';

CREATE TABLE stillhere.lease (
    room_id        text COLLATE "C" NOT NULL CHECK (octet_length(room_id) BETWEEN 1 AND 128),
    user_id        text COLLATE "C" NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 128),
    session_id     text COLLATE "C" NOT NULL CHECK (octet_length(session_id) BETWEEN 1 AND 128),
    revision       bigint NOT NULL CHECK (revision BETWEEN 1 AND 9007199254740991),
    prior_revision bigint CHECK (prior_revision BETWEEN 1 AND 9007199254740991),
    revision_given boolean NOT NULL,
    ttl_ms         integer NOT NULL CHECK (ttl_ms > 0),
    granted_at     timestamptz NOT NULL,
    renewed_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    meta           json,
    request_id     text,
    PRIMARY KEY (room_id, user_id, session_id)
) WITH (
    -- Room on each page for the new version of a renewed row: without it renewals are not HOT.
    fillfactor = 50,
    -- HOT pruning cleans up after renewals; vacuum has only the rest to do, in small steps.
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1
);
COMMENT ON TABLE stillhere.lease IS 'One row for each session that is here: a lease that ends unless it is renewed before expires_at.';
COMMENT ON COLUMN stillhere.lease.room_id IS 'The room that the session is in.';
COMMENT ON COLUMN stillhere.lease.user_id IS 'The person.';
COMMENT ON COLUMN stillhere.lease.session_id IS 'One tab, device or connection of the person.';
COMMENT ON COLUMN stillhere.lease.revision IS 'Orders everything about this session, 1 to 2^53-1, only ever grows.';
COMMENT ON COLUMN stillhere.lease.prior_revision IS 'The revision before the newest renewal (for the decision log); null after a first grant.';
COMMENT ON COLUMN stillhere.lease.revision_given IS 'Whether the newest heartbeat named its revision itself; if not, it was counted up here.';
COMMENT ON COLUMN stillhere.lease.ttl_ms IS 'Time to live that the newest heartbeat asked for, milliseconds.';
COMMENT ON COLUMN stillhere.lease.granted_at IS 'When this stay began, on the database clock.';
COMMENT ON COLUMN stillhere.lease.renewed_at IS 'When the newest heartbeat was accepted, on the database clock.';
COMMENT ON COLUMN stillhere.lease.expires_at IS 'From this moment on the lease counts as expired, swept or not.';
COMMENT ON COLUMN stillhere.lease.meta IS 'A JSON object of the client, at most 2 KiB; null where none was ever given.';
COMMENT ON COLUMN stillhere.lease.request_id IS 'Request id of the newest accepted heartbeat.';

CREATE TABLE stillhere.tombstone (
    room_id    text COLLATE "C" NOT NULL CHECK (octet_length(room_id) BETWEEN 1 AND 128),
    user_id    text COLLATE "C" NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 128),
    session_id text COLLATE "C" NOT NULL CHECK (octet_length(session_id) BETWEEN 1 AND 128),
    revision   bigint NOT NULL CHECK (revision BETWEEN 1 AND 9007199254740991),
    reason     text NOT NULL CHECK (reason IN ('expired', 'closed', 'revoked')),
    ended_at   timestamptz NOT NULL,
    event_id   text NOT NULL,
    request_id text,
    PRIMARY KEY (room_id, user_id, session_id)
);
CREATE INDEX tombstone_ended_at ON stillhere.tombstone (ended_at);
COMMENT ON TABLE stillhere.tombstone IS 'What remains of an ended lease, so that an old or doubled message cannot bring it back.';
COMMENT ON COLUMN stillhere.tombstone.room_id IS 'The room that the session was in.';
COMMENT ON COLUMN stillhere.tombstone.user_id IS 'The person.';
COMMENT ON COLUMN stillhere.tombstone.session_id IS 'The session that ended.';
COMMENT ON COLUMN stillhere.tombstone.revision IS 'Highest lease revision known when it ended; only a newer one begins again.';
COMMENT ON COLUMN stillhere.tombstone.reason IS 'Why it ended: expired, closed or revoked.';
COMMENT ON COLUMN stillhere.tombstone.ended_at IS 'When it ended, on the database clock.';
COMMENT ON COLUMN stillhere.tombstone.event_id IS 'The event that told of it.';
COMMENT ON COLUMN stillhere.tombstone.request_id IS 'Request id of what ended it: the close, or the last renewal before it expired.';

CREATE TABLE stillhere.event (
    room_id        text COLLATE "C" NOT NULL CHECK (octet_length(room_id) BETWEEN 1 AND 128),
    revision       bigint NOT NULL CHECK (revision BETWEEN 1 AND 9007199254740991),
    event_id       text NOT NULL,
    kind           text NOT NULL CHECK (kind IN ('lease.granted', 'lease.renewed', 'lease.expired',
                                                 'session.closed', 'membership.revoked',
                                                 'user.online', 'user.offline')),
    at             timestamptz NOT NULL,
    user_id        text COLLATE "C" NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 128),
    session_id     text COLLATE "C" CHECK (octet_length(session_id) BETWEEN 1 AND 128),
    lease_revision bigint CHECK (lease_revision BETWEEN 1 AND 9007199254740991),
    user_sessions  integer NOT NULL CHECK (user_sessions >= 0),
    request_id     text,
    overdue_ms     bigint CHECK (overdue_ms >= 0),
    meta           json,
    PRIMARY KEY (room_id, revision)
);
CREATE INDEX event_at ON stillhere.event (at);
COMMENT ON TABLE stillhere.event IS 'The visible changes of a room, one at each room revision. Kept for a while, then pruned from the front.';
COMMENT ON COLUMN stillhere.event.room_id IS 'The room that changed.';
COMMENT ON COLUMN stillhere.event.revision IS 'Room revision: unique, no gaps, commit order.';
COMMENT ON COLUMN stillhere.event.event_id IS 'epoch:room_id:revision as of the writing; the same on every delivery.';
COMMENT ON COLUMN stillhere.event.kind IS 'What happened.';
COMMENT ON COLUMN stillhere.event.at IS 'When, on the database clock.';
COMMENT ON COLUMN stillhere.event.user_id IS 'Whose session or state changed.';
COMMENT ON COLUMN stillhere.event.session_id IS 'The session, where the event is about one.';
COMMENT ON COLUMN stillhere.event.lease_revision IS 'The lease revision at that moment.';
COMMENT ON COLUMN stillhere.event.user_sessions IS 'How many sessions the user has in the room after this event.';
COMMENT ON COLUMN stillhere.event.request_id IS 'The request that caused it; for an expiry the last renewal.';
COMMENT ON COLUMN stillhere.event.overdue_ms IS 'For lease.expired: how long after expires_at it was written, milliseconds.';
COMMENT ON COLUMN stillhere.event.meta IS 'For lease.granted and lease.renewed: the meta from then on.';

CREATE TABLE stillhere.member (
    room_id    text COLLATE "C" NOT NULL CHECK (octet_length(room_id) BETWEEN 1 AND 128),
    user_id    text COLLATE "C" NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 128),
    role       text NOT NULL DEFAULT '' CHECK (octet_length(role) <= 128),
    granted_at timestamptz,
    revoked_at timestamptz,
    PRIMARY KEY (room_id, user_id)
);
COMMENT ON TABLE stillhere.member IS 'Durable authorization of a user in a room. Presence never grants or removes it.';
COMMENT ON COLUMN stillhere.member.room_id IS 'The room.';
COMMENT ON COLUMN stillhere.member.user_id IS 'The person.';
COMMENT ON COLUMN stillhere.member.role IS 'A word of the application, never interpreted here.';
COMMENT ON COLUMN stillhere.member.granted_at IS 'When the membership was granted, on the database clock.';
COMMENT ON COLUMN stillhere.member.revoked_at IS 'When it was revoked; null while it is active.';

CREATE TABLE stillhere.user_last_seen (
    user_id      text COLLATE "C" NOT NULL PRIMARY KEY CHECK (octet_length(user_id) BETWEEN 1 AND 128),
    last_seen_at timestamptz NOT NULL
);
COMMENT ON TABLE stillhere.user_last_seen IS 'When a person was last seen anywhere, for dashboards that read SQL. Written in batches, only ever forward.';
COMMENT ON COLUMN stillhere.user_last_seen.user_id IS 'The person.';
COMMENT ON COLUMN stillhere.user_last_seen.last_seen_at IS 'The last accepted heartbeat that has been written here, on the database clock.';
