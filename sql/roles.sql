-- SPDX-License-Identifier: Apache-2.0
-- The two roles of stillhere and what each may do in this database. For psql, as a superuser, in the database itself:
--
--     psql -d stillhere -f roles.sql     once before the first `stillhered --migrate`, for the roles and the schema,
--                                        and after each one, for the grants on what is new
--
-- It may be run as often as you like, and takes over a schema that another role has made. Passwords are not its
-- business: see doc/security.md.
--
--   stillhere_owner   owns the schema and migrates it. No daemon runs as this role.
--   stillhere_app     does the daily work and no more: it reads and writes rows where the daemon does, cannot change,
--                     delete or date a row of attendance, cannot delete a member, empties no table, creates nothing,
--                     and reads no file, of which it only sees how large and how old those of the server are.
--
-- A new table gets its line in "what the daemon does" below; a test compares.

\set ON_ERROR_STOP on
\set QUIET on
SET client_min_messages = warning;
BEGIN;

-- -- roles: looked at first, since they are shared by all databases of the cluster --------------------------------------

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['stillhere_owner', 'stillhere_app'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS', name);
        ELSIF EXISTS (SELECT FROM pg_roles WHERE rolname = name
                      AND (rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls)) THEN
            EXECUTE format('ALTER ROLE %I NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS', name);
        END IF;
    END LOOP;
    -- The daily work must not be able to become the owner, nor anybody else.
    FOR name IN SELECT r.rolname FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid
                JOIN pg_roles a ON a.oid = m.member WHERE a.rolname = 'stillhere_app' LOOP
        EXECUTE format('REVOKE %I FROM stillhere_app', name);
    END LOOP;
END
$$;

-- -- the database: for these two and nobody else, since whoever may connect may also NOTIFY ------------------------------

DO $$
BEGIN
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC, stillhere_owner, stillhere_app', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO stillhere_owner, stillhere_app', current_database());
    -- Databases made before PostgreSQL 15 let everybody create in public.
    IF EXISTS (SELECT FROM pg_namespace WHERE nspname = 'public') THEN
        REVOKE CREATE ON SCHEMA public FROM PUBLIC, stillhere_app;
    END IF;
END
$$;

-- -- the schema and who owns it ----------------------------------------------------------------------------------------

CREATE SCHEMA IF NOT EXISTS stillhere;
COMMENT ON SCHEMA stillhere IS 'Presence: who is still here. Owned and migrated by stillhered.';
ALTER SCHEMA stillhere OWNER TO stillhere_owner;

DO $$
DECLARE
    command text;
BEGIN
    -- Indexes, toast tables and the sequences of identity columns follow their tables.
    FOR command IN
        SELECT format('ALTER %s %s OWNER TO stillhere_owner',
                      CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass)
        FROM pg_class c
        WHERE c.relnamespace = 'stillhere'::regnamespace AND c.relowner <> 'stillhere_owner'::regrole
          AND (c.relkind IN ('r', 'p', 'v')
               OR c.relkind = 'S' AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
                                                  AND d.objid = c.oid AND d.deptype IN ('a', 'i')))
        UNION ALL
        SELECT format('ALTER ROUTINE %s OWNER TO stillhere_owner', p.oid::regprocedure)
        FROM pg_proc p
        WHERE p.pronamespace = 'stillhere'::regnamespace AND p.proowner <> 'stillhere_owner'::regrole
    LOOP
        EXECUTE command;
    END LOOP;
END
$$;

-- -- nothing by default ------------------------------------------------------------------------------------------------

REVOKE ALL ON SCHEMA stillhere FROM PUBLIC, stillhere_app;
REVOKE ALL ON ALL TABLES IN SCHEMA stillhere FROM PUBLIC, stillhere_app;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA stillhere FROM PUBLIC, stillhere_app;
REVOKE ALL ON ALL ROUTINES IN SCHEMA stillhere FROM PUBLIC, stillhere_app;
-- Functions of later migrations are not for everybody either. (A trigger's function needs no right to run.)
ALTER DEFAULT PRIVILEGES FOR ROLE stillhere_owner REVOKE ALL ON ROUTINES FROM PUBLIC;

-- -- what the daemon does ----------------------------------------------------------------------------------------------

GRANT USAGE ON SCHEMA stillhere TO stillhere_app;

DO $$
DECLARE
    name text;
    rights text;
BEGIN
    FOR name, rights IN VALUES
        ('room',             'SELECT, INSERT, UPDATE'),
        ('lease',            'SELECT, INSERT, UPDATE, DELETE'),
        ('tombstone',        'SELECT, INSERT, UPDATE, DELETE'),
        ('event',            'SELECT, INSERT, DELETE'),
        ('member',           'SELECT, INSERT, UPDATE'),
        ('room_user',        'SELECT, INSERT, UPDATE, DELETE'),
        ('user_last_seen',   'SELECT, INSERT, UPDATE'),
        ('room_last_seen',   'SELECT, INSERT, UPDATE'),
        -- Not id and not at: the database counts and dates the rows itself.
        ('attendance',       'SELECT, INSERT (room_id, user_id, session_id, action, note, idempotency_key, request_id, by)'),
        ('pulse',            'SELECT, INSERT, UPDATE'),
        ('outage',           'SELECT, INSERT, UPDATE, DELETE'),
        ('incarnation',      'SELECT, UPDATE'),
        ('webhook_event',    'SELECT, INSERT, UPDATE, DELETE'),
        ('webhook_lane',     'SELECT, INSERT, UPDATE, DELETE'),
        ('last_seen',        'SELECT'),
        ('schema_migration', 'SELECT')
    LOOP
        -- Before the first migration nothing is there yet.
        IF EXISTS (SELECT FROM pg_class WHERE relnamespace = 'stillhere'::regnamespace AND relname = name) THEN
            EXECUTE format('GRANT %s ON stillhere.%I TO stillhere_app', rights, name);
        END IF;
    END LOOP;
END
$$;

-- When the files of the server were last changed shows whether an older copy of them was put back, which nothing in them
-- can (src/db/incarnation.c). Sizes and times of files inside the data directory, and nothing of what is in them.
DO $$
BEGIN
    IF has_function_privilege('pg_catalog.pg_stat_file(text)', 'EXECUTE WITH GRANT OPTION') THEN
        GRANT EXECUTE ON FUNCTION pg_catalog.pg_stat_file(text) TO stillhere_app;
    END IF;
END
$$;

COMMIT;
