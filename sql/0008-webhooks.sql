-- Webhooks: what has to be told to each target, written in the transaction of the event itself.

CREATE TABLE stillhere.webhook_event (
    room_id    text        COLLATE "C" NOT NULL,
    target     text        COLLATE "C" NOT NULL,
    replay     boolean     NOT NULL DEFAULT false,
    revision   bigint      NOT NULL,
    event_id   text        NOT NULL,
    payload    text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    message    bigint,
    attempts   integer     NOT NULL DEFAULT 0,
    dead_at    timestamptz,
    error      text,
    PRIMARY KEY (room_id, target, replay, revision)
);
COMMENT ON TABLE stillhere.webhook_event IS 'Events that a target of webhooks has still to be told, and those that were given up.';
COMMENT ON COLUMN stillhere.webhook_event.room_id IS 'The room of the event.';
COMMENT ON COLUMN stillhere.webhook_event.target IS 'Name of the target in the configuration.';
COMMENT ON COLUMN stillhere.webhook_event.replay IS 'Sent again by hand, on a lane of its own.';
COMMENT ON COLUMN stillhere.webhook_event.revision IS 'Revision of the room.';
COMMENT ON COLUMN stillhere.webhook_event.event_id IS 'Stable id of the event.';
COMMENT ON COLUMN stillhere.webhook_event.payload IS 'The event as JSON, byte for byte as it is sent.';
COMMENT ON COLUMN stillhere.webhook_event.created_at IS 'When it was written, or asked for again.';
COMMENT ON COLUMN stillhere.webhook_event.message IS 'Of a dead or replayed event: the highest revision of the message that it was sent in.';
COMMENT ON COLUMN stillhere.webhook_event.attempts IS 'How often it was sent before it was given up.';
COMMENT ON COLUMN stillhere.webhook_event.dead_at IS 'When it was given up.';
COMMENT ON COLUMN stillhere.webhook_event.error IS 'Why it was given up.';
CREATE INDEX webhook_event_dead ON stillhere.webhook_event (target, room_id, message) WHERE dead_at IS NOT NULL;

CREATE TABLE stillhere.webhook_lane (
    room_id         text        COLLATE "C" NOT NULL,
    target          text        COLLATE "C" NOT NULL,
    replay          boolean     NOT NULL DEFAULT false,
    newest          bigint      NOT NULL,
    done            bigint      NOT NULL DEFAULT 0,
    message_through bigint,
    attempts        integer     NOT NULL DEFAULT 0,
    due_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    claim           text,
    claimed_until   timestamptz,
    failing_since   timestamptz,
    last_error      text,
    PRIMARY KEY (room_id, target, replay)
);
COMMENT ON TABLE stillhere.webhook_lane IS 'One for each room and target: how far it has been told. Its events go out one message after the other.';
COMMENT ON COLUMN stillhere.webhook_lane.room_id IS 'The room.';
COMMENT ON COLUMN stillhere.webhook_lane.target IS 'Name of the target in the configuration.';
COMMENT ON COLUMN stillhere.webhook_lane.replay IS 'The lane of what is sent again by hand.';
COMMENT ON COLUMN stillhere.webhook_lane.newest IS 'Highest revision that was written for it.';
COMMENT ON COLUMN stillhere.webhook_lane.done IS 'Delivered or given up to here. Nothing to do while it is not below newest.';
COMMENT ON COLUMN stillhere.webhook_lane.message_through IS 'Highest revision of the message that is being sent: fixed until that one is done.';
COMMENT ON COLUMN stillhere.webhook_lane.attempts IS 'Failed attempts of that message.';
COMMENT ON COLUMN stillhere.webhook_lane.due_at IS 'Not before this.';
COMMENT ON COLUMN stillhere.webhook_lane.claim IS 'Token of whoever is sending it.';
COMMENT ON COLUMN stillhere.webhook_lane.claimed_until IS 'When the claim runs out by itself.';
COMMENT ON COLUMN stillhere.webhook_lane.failing_since IS 'First failure since the last success.';
COMMENT ON COLUMN stillhere.webhook_lane.last_error IS 'Why the newest attempt failed.';
CREATE INDEX webhook_lane_due ON stillhere.webhook_lane (target, due_at) WHERE newest > done;
