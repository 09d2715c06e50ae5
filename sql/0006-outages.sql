-- Outages are not silence: time in which nobody could renew is credited to the leases that were live when it began.

CREATE TABLE stillhere.pulse (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    alive_at timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE stillhere.pulse IS 'One row that every instance touches with each sweep: while it stands still nobody could renew.';
COMMENT ON COLUMN stillhere.pulse.one IS 'There is one row.';
COMMENT ON COLUMN stillhere.pulse.alive_at IS 'When an instance last found itself and the database at work, on the database clock.';
INSERT INTO stillhere.pulse (alive_at) VALUES (clock_timestamp());

CREATE TABLE stillhere.outage (
    began_at        timestamptz PRIMARY KEY,
    ended_at        timestamptz NOT NULL CHECK (ended_at > began_at),
    graces_credited boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE stillhere.outage IS 'Times in which the pulse stood still: the database or all instances were away, or the clock was set forward.';
COMMENT ON COLUMN stillhere.outage.began_at IS 'The last pulse before it.';
COMMENT ON COLUMN stillhere.outage.ended_at IS 'The first pulse after it.';
COMMENT ON COLUMN stillhere.outage.graces_credited IS 'Whether the users who were about to go offline have got the time.';
