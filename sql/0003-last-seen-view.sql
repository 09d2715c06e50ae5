-- Last seen, for dashboards that read SQL, and what finds a user's leases across rooms.

-- A heartbeat changes none of its columns, so renewals stay HOT.
CREATE INDEX lease_user ON stillhere.lease (user_id, room_id);

-- A flush brings most rows of a page up to date at once: with half of the page free all of them stay HOT. There is no
-- index on last_seen_at, and there must be none.
ALTER TABLE stillhere.user_last_seen SET (fillfactor = 50);
ALTER TABLE stillhere.room_last_seen SET (fillfactor = 50);

-- statement_timestamp(), not now(): in a long transaction the latter stands still.
CREATE VIEW stillhere.last_seen AS
SELECT user_id, max(seen_at) AS last_seen_at, bool_or(live) AS online
FROM (SELECT user_id, last_seen_at AS seen_at, false AS live FROM stillhere.user_last_seen
      UNION ALL
      SELECT user_id, renewed_at, expires_at > statement_timestamp() FROM stillhere.lease) seen
GROUP BY user_id;
COMMENT ON VIEW stillhere.last_seen IS 'Everybody who was ever seen, as of now: what was written down, or a newer heartbeat of a lease. Ask for single users by user_id.';
COMMENT ON COLUMN stillhere.last_seen.user_id IS 'The person.';
COMMENT ON COLUMN stillhere.last_seen.last_seen_at IS 'The last accepted heartbeat in any room, on the database clock. Not when a lease ended.';
COMMENT ON COLUMN stillhere.last_seen.online IS 'Whether any session holds a lease that has not run out, in any room.';
