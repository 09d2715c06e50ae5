-- The tables of stillhere on the nodes of a Citus cluster: those of rooms by room, so that all of a room lies on one node.
--
-- Read doc/scaling.md first: it says what was run and what it costs, and that several databases, each with its own
-- rooms, are the way to more heartbeats than one PostgreSQL commits.
--
-- Run it on the coordinator as a superuser, after `stillhered --migrate` and with no daemon running; any number of times,
-- and again after a migration that brings a table. citus must be in shared_preload_libraries of all nodes, and
-- max_prepared_transactions at least as large as max_connections: what changes more than one node commits in two
-- phases. On each node, in the database:
--
--   CREATE EXTENSION citus
--
-- and then on the coordinator (db0 and db1 are how the nodes reach each other):
--
--   psql -d stillhere -c "SELECT citus_set_coordinator_host('db0', 5432)" -c "SELECT citus_add_node('db1', 5432)"
--   psql -d stillhere -f roles.sql
--   psql -d stillhere -f citus.sql
--
-- A statement for many rooms goes to every shard, so a few for each node are best: -v shards=8, the default.

\set ON_ERROR_STOP on
\if :{?shards}
\else
\set shards 8
\endif

BEGIN;

SET LOCAL client_min_messages = warning;
SELECT set_config('citus.shard_count', :'shards', true) \g /dev/null

-- The triggers of attendance look at nothing but the row that they refuse to change: they are right on any node.
SET LOCAL citus.enable_unsafe_triggers = on;

-- What belongs to no room stays on the coordinator: pulse, outage, incarnation, schema_migration.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['room', 'lease', 'tombstone', 'event', 'member', 'room_user', 'room_last_seen',
                                'attendance', 'webhook_event', 'webhook_lane', 'user_last_seen']
    LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_dist_partition
                              WHERE logicalrelid = format('stillhere.%I', name)::regclass);
        IF name = 'room' THEN
            PERFORM create_distributed_table('stillhere.room', 'room_id', colocate_with => 'none');
        ELSIF name = 'user_last_seen' THEN
            PERFORM create_distributed_table('stillhere.user_last_seen', 'user_id', colocate_with => 'none');
        ELSE
            PERFORM create_distributed_table(format('stillhere.%I', name), 'room_id', colocate_with => 'stillhere.room');
        END IF;
    END LOOP;
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

-- What the daemon sets for its own session does not reach the workers: among it how long is waited for a lock there,
-- which ends long before the deadlock of two batches that met crosswise is found (two seconds). And one connection to each
-- worker is enough for each of the daemon's: a statement takes its shards there one after the other then, and a commit is
-- one PREPARE on each node that it has changed. Citus brings these to the workers.
DO $$
DECLARE
    setting text;
BEGIN
    FOREACH setting IN ARRAY ARRAY['lock_timeout = ''250ms''', 'jit = off', 'citus.max_adaptive_executor_pool_size = 1']
    LOOP
        EXECUTE format('ALTER DATABASE %I SET %s', current_database(), setting);
    END LOOP;
END
$$;
