-- The index by user is for who asks for a user's leases in all rooms, and says so by room_id <> '', which is always true.
-- Whoever names room, user and session is not offered it: a plan made while the table looked empty would take it as
-- readily as the primary key, and read all sessions of that user in the room for each of them.

DROP INDEX stillhere.lease_user;
-- A heartbeat changes none of its columns, so renewals stay HOT.
CREATE INDEX lease_user ON stillhere.lease (user_id, room_id) WHERE room_id <> '';

CREATE OR REPLACE VIEW stillhere.last_seen AS
SELECT user_id, max(seen_at) AS last_seen_at, bool_or(live) AS online
FROM (SELECT user_id, last_seen_at AS seen_at, false AS live FROM stillhere.user_last_seen
      UNION ALL
      SELECT user_id, renewed_at, expires_at > statement_timestamp() FROM stillhere.lease WHERE room_id <> '') seen
GROUP BY user_id;
