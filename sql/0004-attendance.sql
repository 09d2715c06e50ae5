-- Attendance: what people said themselves, sign-in and sign-out, kept for good.
--
-- Nothing here comes from leases. Rows are only ever added: the triggers refuse every other change, whoever asks, and
-- fire in replicas' sessions too (ENABLE ALWAYS). What is wrong is put right by a further row.

CREATE TABLE stillhere.attendance (
    room_id         text COLLATE "C" NOT NULL CHECK (octet_length(room_id) BETWEEN 1 AND 128),
    id              bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    user_id         text COLLATE "C" NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 128),
    session_id      text COLLATE "C" CHECK (octet_length(session_id) BETWEEN 1 AND 128),
    action          text NOT NULL CHECK (action IN ('sign_in', 'sign_out')),
    note            text CHECK (octet_length(note) <= 1024),
    idempotency_key text COLLATE "C" CHECK (octet_length(idempotency_key) BETWEEN 1 AND 128),
    request_id      text,
    by              text,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (room_id, id)
);
CREATE UNIQUE INDEX attendance_key ON stillhere.attendance (room_id, user_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX attendance_user ON stillhere.attendance (room_id, user_id, id);
COMMENT ON TABLE stillhere.attendance IS 'Explicit sign-ins and sign-outs, append-only. Never derived from leases.';
COMMENT ON COLUMN stillhere.attendance.room_id IS 'The room.';
COMMENT ON COLUMN stillhere.attendance.id IS 'Grows within a room in the order of the commits, with gaps: a reader who goes on from the last one misses none.';
COMMENT ON COLUMN stillhere.attendance.user_id IS 'Whose attendance it is.';
COMMENT ON COLUMN stillhere.attendance.session_id IS 'The session that signed in or out, where it was said.';
COMMENT ON COLUMN stillhere.attendance.action IS 'sign_in or sign_out.';
COMMENT ON COLUMN stillhere.attendance.note IS 'Free text of the application, at most 1 KiB.';
COMMENT ON COLUMN stillhere.attendance.idempotency_key IS 'Idempotency-Key of the request: the same one again, for the same user, adds nothing.';
COMMENT ON COLUMN stillhere.attendance.request_id IS 'The request that added it.';
COMMENT ON COLUMN stillhere.attendance.by IS 'The name of the credential that added it; null without authentication.';
COMMENT ON COLUMN stillhere.attendance.at IS 'When it was added, on the database clock.';

CREATE FUNCTION stillhere.attendance_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'stillhere.attendance is append-only: % is refused', TG_OP
        USING ERRCODE = 'insufficient_privilege', HINT = 'Add a row that puts right what is wrong.';
END
$$;
COMMENT ON FUNCTION stillhere.attendance_refuse() IS 'Refuses every change of attendance but a new row.';

CREATE TRIGGER attendance_keep BEFORE UPDATE OR DELETE ON stillhere.attendance
    FOR EACH ROW EXECUTE FUNCTION stillhere.attendance_refuse();
CREATE TRIGGER attendance_keep_all BEFORE TRUNCATE ON stillhere.attendance
    FOR EACH STATEMENT EXECUTE FUNCTION stillhere.attendance_refuse();
ALTER TABLE stillhere.attendance ENABLE ALWAYS TRIGGER attendance_keep;
ALTER TABLE stillhere.attendance ENABLE ALWAYS TRIGGER attendance_keep_all;
