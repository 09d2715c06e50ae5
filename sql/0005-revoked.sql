-- Who must not watch: each instance keeps the revoked users of the rooms that it has in memory, and reads them together
-- with a room's events.

-- By the time too: of a room with very many of them those revoked last are kept.
CREATE INDEX member_revoked ON stillhere.member (room_id, revoked_at) INCLUDE (user_id) WHERE revoked_at IS NOT NULL;
