-- Attendance, the one table that grows for ever, on the nodes of a Citus cluster; all others stay on the coordinator.
--
-- Read doc/scaling.md first: it says why these and no others, what was run, and that several databases, each with its own
-- rooms, are the way to more heartbeats than one PostgreSQL commits.
--
-- Run it on the coordinator as a superuser, after `stillhered --migrate` and with no daemon running; any number of times.
-- citus must be in shared_preload_libraries of all nodes, and max_prepared_transactions at least as large as
-- max_connections: a sign-out that closes a lease commits on two nodes, in two phases. On each node, in the database:
--
--   CREATE EXTENSION citus
--
-- and then on the coordinator (db0 and db1 are how the nodes reach each other):
--
--   psql -d stillhere -c "SELECT citus_set_coordinator_host('db0', 5432)" -c "SELECT citus_add_node('db1', 5432)"
--   psql -d stillhere -f roles.sql
--   psql -d stillhere -f citus.sql

\set ON_ERROR_STOP on

BEGIN;

SET LOCAL client_min_messages = warning;

-- The triggers of attendance look at nothing but the row that they refuse to change: they are right on any node.
SET LOCAL citus.enable_unsafe_triggers = on;

-- Everything of a room on one node: each statement that the daemon has for attendance names one room.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = 'stillhere.attendance'::regclass) THEN
        PERFORM create_distributed_table('stillhere.attendance', 'room_id', colocate_with => 'none');
    END IF;
END
$$;

COMMIT;

-- Citus checks the rights on columns where the daemon asks, on the coordinator, and then wants rights on the rows' own
-- table, to which it adds what the coordinator has filled in: id and at. So stillhere_app must not be let into a worker
-- by anybody but the coordinator (pg_hba.conf).
DO $$
DECLARE
    fault text;
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'stillhere_app') THEN
        SELECT result INTO fault FROM run_command_on_shards('stillhere.attendance',
                                                            'GRANT SELECT, INSERT ON %s TO stillhere_app')
        WHERE NOT success LIMIT 1;
        IF fault IS NOT NULL THEN
            RAISE EXCEPTION 'rights on a node: %', fault;
        END IF;
    END IF;
END
$$;
