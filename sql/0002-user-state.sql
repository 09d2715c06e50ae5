-- Who is online in a room, and who will be offline when their grace is over.
--
-- A row is there from a user's `user.online` to their `user.offline`. It changes when a session begins or ends, never
-- with a heartbeat, so its index on the end of the grace costs renewals nothing.

CREATE TABLE stillhere.room_user (
    room_id      text COLLATE "C" NOT NULL CHECK (octet_length(room_id) BETWEEN 1 AND 128),
    user_id      text COLLATE "C" NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 128),
    online_since timestamptz NOT NULL,
    offline_at   timestamptz,
    PRIMARY KEY (room_id, user_id)
);
CREATE INDEX room_user_offline_at ON stillhere.room_user (offline_at) WHERE offline_at IS NOT NULL;
COMMENT ON TABLE stillhere.room_user IS 'One row for each user who is online in a room, with sessions or in grace. Written under the row of the room.';
COMMENT ON COLUMN stillhere.room_user.room_id IS 'The room.';
COMMENT ON COLUMN stillhere.room_user.user_id IS 'The person.';
COMMENT ON COLUMN stillhere.room_user.online_since IS 'When the user came online, on the database clock.';
COMMENT ON COLUMN stillhere.room_user.offline_at IS 'The last session has ended, and without a new one the user is offline from then on; null while there is a session.';

CREATE TABLE stillhere.room_last_seen (
    room_id      text COLLATE "C" NOT NULL CHECK (octet_length(room_id) BETWEEN 1 AND 128),
    user_id      text COLLATE "C" NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 128),
    last_seen_at timestamptz NOT NULL,
    PRIMARY KEY (room_id, user_id)
) WITH (fillfactor = 80);
COMMENT ON TABLE stillhere.room_last_seen IS 'When a person was last seen in a room. Written in batches and when a lease ends, only ever forward.';
COMMENT ON COLUMN stillhere.room_last_seen.room_id IS 'The room.';
COMMENT ON COLUMN stillhere.room_last_seen.user_id IS 'The person.';
COMMENT ON COLUMN stillhere.room_last_seen.last_seen_at IS 'The last accepted heartbeat in this room that has been written here, on the database clock.';

-- Those who are here already are online, without an event: nobody has seen them offline.
INSERT INTO stillhere.room_user (room_id, user_id, online_since)
SELECT room_id, user_id, min(granted_at) FROM stillhere.lease GROUP BY room_id, user_id;
