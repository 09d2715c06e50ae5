# SPDX-License-Identifier: Apache-2.0
"""The two database roles: one migrates, the other does the daily work and can do nothing else (doc/security.md)."""

import re
import signal
import subprocess

from harness import roles
from harness.case import Case, json
from harness.daemon import daemon_environment, program
from harness.pg import SqlError

#: What the daemon does with each table and view. A new one is a decision, so this fails until somebody takes it.
GRANTS = {
    "attendance": "SELECT",
    "event": "DELETE INSERT SELECT",
    "incarnation": "SELECT UPDATE",
    "last_seen": "SELECT",
    "lease": "DELETE INSERT SELECT UPDATE",
    "member": "INSERT SELECT UPDATE",
    "outage": "DELETE INSERT SELECT UPDATE",
    "pulse": "INSERT SELECT UPDATE",
    "room": "INSERT SELECT UPDATE",
    "room_last_seen": "INSERT SELECT UPDATE",
    "room_user": "DELETE INSERT SELECT UPDATE",
    "schema_migration": "SELECT",
    "tombstone": "DELETE INSERT SELECT UPDATE",
    "user_last_seen": "INSERT SELECT UPDATE",
    "webhook_event": "DELETE INSERT SELECT UPDATE",
    "webhook_lane": "DELETE INSERT SELECT UPDATE",
}
#: What it fills in; the database counts and dates the rows.
ATTENDANCE_INSERT = {"room_id", "user_id", "session_id", "action", "note", "idempotency_key", "request_id", "by"}
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")

DENIED = r"permission denied|must be owner|must be superuser|must be member|cannot"


class RuntimeRole(Case):
    """A daemon that connects as stillhere_app, and what that role tries beside it."""

    runtime_role = True
    config = {"ttl_min_ms": 100, "sweep_interval_ms": 100, "offline_grace_ms": 100, "last_seen_flush_ms": 200,
              "event_retention_ms": 1000, "tombstone_retention_ms": 1000}

    def as_role(self, user):
        session = self.pg.session(self.database, user)
        self.addCleanup(session.close)
        return session

    def refused(self, session, statement, by=DENIED):
        with self.subTest(statement=statement):
            with self.assertRaises(SqlError) as raised:
                session.run(statement)
            self.assertRegex(str(raised.exception), by)

    def test_it_does_the_daily_work(self):
        room = self.room()
        self.assertEqual(self.q("SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = current_database() AND "
                                "application_name LIKE 'stillhered %'"), roles.RUNTIME)
        self.grant(room, "s", meta={"a": 1})
        self.grant(room, "s", meta={"a": 2})
        self.grant(room, "short", ttl_ms=150)
        self.ok(self.client.close(self.base, room, "u", "s"))
        self.wait_until(lambda: self.events(room, kind="user.offline"), 10, "the end of the grace")
        self.wait_until(lambda: self.count("tombstone", room_id=room) == 0 and not self.events(room), 20, "retention")
        self.grant(room, "again")
        self.wait_until(lambda: self.count("room_last_seen", room_id=room) == 1, 10, "the last-seen writer")
        for path in ("/rooms/%s/users/u/explain" % room, "/users/u/presence", "/rooms/%s/last-seen" % room, "/rooms",
                     "/rooms/%s/leases" % room, "/last-seen?user_id=u"):
            self.ok(self.client.get(self.base, path))

    def test_each_table_has_its_grants_and_no_more(self):
        held = dict(line.split("|") for line in self.q(
            "SELECT c.relname, coalesce(string_agg(p.name, ' ' ORDER BY p.name) FILTER (WHERE "
            "has_table_privilege('%s', c.oid, p.name)), '') FROM pg_class c, unnest('{%s}'::text[]) AS p(name) "
            "WHERE c.relnamespace = 'stillhere'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f') "
            "GROUP BY c.relname" % (roles.RUNTIME, ",".join(RIGHTS))).splitlines())
        self.assertEqual(held, GRANTS, "a table without a line in sql/roles.sql, or with another one")
        columns = self.q("SELECT attrelid::regclass, attname, privilege_type FROM pg_attribute, aclexplode(attacl) WHERE "
                         "attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'stillhere'::regnamespace)")
        self.assertEqual({tuple(line.split("|")) for line in columns.splitlines()},
                         {("stillhere.attendance", name, "INSERT") for name in ATTENDANCE_INSERT})

    def test_nobody_else_has_any_right(self):
        for what, acl in (("the schema", "SELECT nspacl FROM pg_namespace WHERE nspname = 'stillhere'"),
                          ("the database", "SELECT datacl FROM pg_database WHERE datname = current_database()")):
            with self.subTest(of=what):
                grantees = self.q("SELECT string_agg(DISTINCT CASE grantee WHEN 0 THEN 'public' ELSE "
                                  "grantee::regrole::text END, ' ') FROM aclexplode((%s))" % acl)
                self.assertEqual(set(grantees.split()) - {"postgres"}, {roles.OWNER, roles.RUNTIME})
        self.assertEqual(self.q("SELECT count(*) FROM pg_class, aclexplode(relacl) WHERE relnamespace = "
                                "'stillhere'::regnamespace AND grantee NOT IN ('%s'::regrole, '%s'::regrole)" %
                                (roles.OWNER, roles.RUNTIME)), "0")
        self.assertEqual(self.q("SELECT coalesce(string_agg(proname, ' '), '') FROM pg_proc WHERE pronamespace = "
                                "'stillhere'::regnamespace AND (has_function_privilege('%s', oid, 'EXECUTE') OR prosecdef)"
                                % roles.RUNTIME), "")
        self.assertEqual(self.q("SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls FROM "
                                "pg_roles WHERE rolname = '%s'" % roles.RUNTIME), "f")
        self.assertEqual(self.q("SELECT count(*) FROM pg_auth_members WHERE member = '%s'::regrole" % roles.RUNTIME), "0")
        self.assertEqual(self.q("SELECT count(*) FROM pg_class WHERE relnamespace = 'stillhere'::regnamespace AND "
                                "relowner <> '%s'::regrole" % roles.OWNER), "0")

    def test_everything_else_is_refused(self):
        room = self.room()
        self.grant(room)
        mine = self.as_role(roles.RUNTIME)
        before = self.q("SELECT count(*) FROM pg_class WHERE relnamespace = 'stillhere'::regnamespace")
        for table in sorted(GRANTS):
            if table not in ("last_seen", "attendance"):
                self.refused(mine, "TRUNCATE stillhere.%s" % table)
                self.refused(mine, "DROP TABLE stillhere.%s" % table)
                self.refused(mine, "ALTER TABLE stillhere.%s ADD COLUMN x int" % table)
        for statement in (
                "DELETE FROM stillhere.member",
                "DELETE FROM stillhere.room",
                "DELETE FROM stillhere.user_last_seen",
                "UPDATE stillhere.event SET kind = 'user.online'",
                "INSERT INTO stillhere.schema_migration (number, name) VALUES (9999, 'x')",
                "DELETE FROM stillhere.schema_migration",
                "DROP VIEW stillhere.last_seen",
                "DROP SCHEMA stillhere CASCADE",
                "DROP OWNED BY %s" % roles.OWNER,
                "ALTER SCHEMA stillhere OWNER TO %s" % roles.RUNTIME,
                "ALTER TABLE stillhere.lease OWNER TO %s" % roles.RUNTIME,
                "CREATE TABLE stillhere.mine (x int)",
                "CREATE FUNCTION stillhere.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
                "CREATE TRIGGER mine BEFORE DELETE ON stillhere.lease FOR EACH ROW EXECUTE FUNCTION "
                "suppress_redundant_updates_trigger()",
                "CREATE RULE mine AS ON DELETE TO stillhere.lease DO INSTEAD NOTHING",
                "CREATE INDEX ON stillhere.lease (expires_at)",
                "CREATE TABLE public.mine (x int)",
                "CREATE TEMPORARY TABLE mine (x int)",
                "CREATE SCHEMA mine",
                "CREATE EXTENSION pgcrypto",
                "CREATE ROLE mine",
                "CREATE DATABASE mine",
                "SET session_replication_role = replica",
                "SET ROLE %s" % roles.OWNER,
                "SET ROLE postgres",
                "SET SESSION AUTHORIZATION postgres",
                "ALTER ROLE %s SUPERUSER" % roles.RUNTIME,
                "ALTER SYSTEM SET fsync = off",
                "COPY (SELECT 1) TO PROGRAM 'true'",
                "COPY (SELECT 1) TO '/tmp/mine'",
                "SELECT pg_read_file('PG_VERSION')",
                "SELECT pg_ls_dir('.')",
                "SELECT pg_stat_file('PG_VERSION', true)",
                "SELECT rolpassword FROM pg_authid"):
            self.refused(mine, statement)
        # Of the server's own files how large and how old they are, and of no others even that.
        mine.run("SELECT change FROM pg_stat_file('PG_VERSION')")
        for path in ("/etc/passwd", "../log"):
            self.refused(mine, "SELECT pg_stat_file('%s')" % path, "absolute path not allowed|path must be in or below")
        mine.run("GRANT DELETE ON stillhere.member TO %s" % roles.RUNTIME)  # PostgreSQL only warns
        self.assertEqual(self.q("SELECT has_table_privilege('%s', 'stillhere.member', 'DELETE')" % roles.RUNTIME), "f")
        self.assertEqual(self.q("SELECT count(*) FROM pg_class WHERE relnamespace = 'stillhere'::regnamespace"), before)
        self.assertEqual(self.stored(room, "s")["revision"], 1)

    def test_attendance_stays_as_it_was_written(self):
        room = self.room()
        sent = self.client.request(self.base, "POST", "/rooms/%s/attendance" % room,
                                   body=json.dumps({"user_id": "u", "action": "sign_in", "note": "here"}),
                                   headers={"Content-Type": "application/json"})
        self.assertEqual(sent.status, 201, sent)
        whole = "SELECT json_agg(a ORDER BY id) FROM stillhere.attendance a WHERE room_id = '%s'" % room
        before = self.q(whole)
        mine, owner = self.as_role(roles.RUNTIME), self.as_role(roles.OWNER)
        self.refused(mine, "INSERT INTO stillhere.attendance (room_id, user_id, action, at) VALUES ('%s', 'u', 'sign_in', "
                     "'2001-01-01')" % room)
        self.refused(mine, "INSERT INTO stillhere.attendance (id, room_id, user_id, action) OVERRIDING SYSTEM VALUE "
                     "VALUES (1, '%s', 'u', 'sign_in')" % room)
        changes = ("UPDATE stillhere.attendance SET action = 'sign_out'",
                   "UPDATE stillhere.attendance SET at = at + interval '1 hour' WHERE room_id = '%s'" % room,
                   "DELETE FROM stillhere.attendance",
                   "DELETE FROM stillhere.attendance WHERE room_id = '%s'" % room,
                   "TRUNCATE stillhere.attendance",
                   "MERGE INTO stillhere.attendance a USING (SELECT 1) x ON a.room_id = '%s' WHEN MATCHED THEN DELETE" % room,
                   "INSERT INTO stillhere.attendance OVERRIDING SYSTEM VALUE SELECT * FROM stillhere.attendance WHERE room_id = "
                   "'%s' ON CONFLICT (room_id, id) DO UPDATE SET note = 'changed'" % room)
        for statement in changes:
            self.refused(mine, statement)
        for statement in ("ALTER TABLE stillhere.attendance DISABLE TRIGGER ALL",
                          "ALTER TABLE stillhere.attendance DISABLE TRIGGER USER",
                          "DROP TABLE stillhere.attendance",
                          "ALTER TABLE stillhere.attendance DROP COLUMN at",
                          "ALTER TABLE stillhere.attendance RENAME TO attendance_of_before",
                          "CREATE RULE mine AS ON INSERT TO stillhere.attendance DO INSTEAD NOTHING",
                          "SET session_replication_role = replica"):
            self.refused(mine, statement)
        for name in self.q("SELECT tgname FROM pg_trigger WHERE tgrelid = 'stillhere.attendance'::regclass AND "
                           "NOT tgisinternal").splitlines():
            self.refused(mine, "DROP TRIGGER %s ON stillhere.attendance" % name)
            self.refused(mine, "ALTER TABLE stillhere.attendance DISABLE TRIGGER %s" % name)
        # The owner has the rights, and meets the triggers: a slip of an administrator changes nothing either.
        for statement in changes[:5]:
            self.refused(owner, statement, r"append|attendance")
        self.assertEqual(self.q(whole), before)

    def test_other_roles_cannot_connect(self):
        self.pg.psql("postgres", "DO $$ BEGIN CREATE ROLE stillhere_test_guest LOGIN; EXCEPTION WHEN duplicate_object "
                     "OR unique_violation THEN NULL; END $$")
        done = subprocess.run(self.pg.psql_args(self.database, "stillhere_test_guest") + ["-c", "SELECT 1"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn("permission denied for database", done.stdout)


class Migrate(Case):
    """stillhered --migrate, and a daemon that may not."""

    autostart = False

    def empty(self, name):
        """A database of the test's own."""
        database = "%s_%s" % (self.database, name)
        self.pg.create_database(database)
        self.addCleanup(self.pg.drop_database, database)
        return database

    def run_daemon(self, url):
        """Runs a daemon that is to give up by itself. @return its exit status and log"""
        d = self.start_daemon(wait=False, database_url=url)
        self.wait_until(lambda: not d.alive(), 20, "its end")
        self.forget(d)
        return d.process.returncode, d.text()

    def test_it_brings_a_database_up_to_date(self):
        database = self.empty("fresh")
        roles.run_script(self.pg, database)
        done = roles.migrate(self.pg.url(database, roles.OWNER))
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        applied = self.pg.psql(database, "SELECT string_agg(name, ' ' ORDER BY number) FROM stillhere.schema_migration")
        self.assertEqual([m for m in applied.split() if "migration %s applied" % m not in done.stderr], [])
        self.assertIn("run sql/roles.sql once more", done.stderr)
        roles.run_script(self.pg, database)
        again = roles.migrate(self.pg.url(database, roles.OWNER))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertNotRegex(again.stderr, "applied|roles.sql")
        # Nothing to do takes no right to do it, and no lock.
        held = self.pg.session(database)
        self.addCleanup(held.close)
        held.run("BEGIN")
        held.run("SELECT pg_advisory_xact_lock(126892349417330)")
        self.assertEqual(roles.migrate(self.pg.url(database, roles.RUNTIME)).returncode, 0)

    def test_it_works_without_roles(self):
        database = self.empty("plain")
        done = roles.migrate(self.pg.url(database))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("warning", done.stderr)

    def test_it_says_why_not(self):
        done = roles.migrate("postgresql:///?host=/nowhere")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "error: .*not up to date")
        wrong = subprocess.run([program(), "--migrate", "--config", "/nowhere"], env=daemon_environment({}),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(wrong.returncode, 2, wrong.stderr)
        database = self.empty("refused")
        roles.run_script(self.pg, database)
        done = roles.migrate(self.pg.url(database, roles.RUNTIME))
        self.assertEqual(done.returncode, 1)
        self.assertIn("stillhered --migrate", done.stderr)

    def test_a_daemon_that_may_not_migrate_says_what_to_do(self):
        database = self.empty("old")
        roles.run_script(self.pg, database)
        status, log = self.run_daemon(self.pg.url(database, roles.RUNTIME))
        self.assertEqual(status, 1, log)
        (line,) = [line for line in log.splitlines() if " error: " in line]
        self.assertRegex(line, "0001-tables.sql.*%s.*stillhered --migrate.*roles.sql" % roles.RUNTIME)
        # One migration is missing.
        roles.prepare(self.pg, database)
        newest = self.pg.psql(database, "DELETE FROM stillhere.schema_migration WHERE number = (SELECT max(number) FROM "
                              "stillhere.schema_migration) RETURNING name")
        status, log = self.run_daemon(self.pg.url(database, roles.RUNTIME))
        self.assertEqual(status, 1, log)
        (line,) = [line for line in log.splitlines() if " error: " in line]
        self.assertIn(newest, line)

    def test_a_daemon_whose_grants_are_old_says_so(self):
        database = self.empty("ungranted")
        roles.run_script(self.pg, database)
        self.assertEqual(roles.migrate(self.pg.url(database, roles.OWNER)).returncode, 0)
        status, log = self.run_daemon(self.pg.url(database, roles.RUNTIME))
        self.assertEqual(status, 1, log)
        (line,) = [line for line in log.splitlines() if " error: " in line]
        self.assertIn("sql/roles.sql", line)
        # A table of a later migration, before roles.sql ran again.
        roles.run_script(self.pg, database)
        self.pg.psql(database, "SET ROLE %s; CREATE TABLE stillhere.newer (x int)" % roles.OWNER)
        status, log = self.run_daemon(self.pg.url(database, roles.RUNTIME))
        self.assertEqual(status, 1, log)
        (line,) = [line for line in log.splitlines() if " error: " in line]
        self.assertIn("stillhere.newer", line)

    def test_roles_take_over_an_older_database(self):
        database = self.empty("inherited")
        self.assertEqual(roles.migrate(self.pg.url(database)).returncode, 0)  # owned by the superuser, as it used to be
        d = self.start_daemon(database_url=self.pg.url(database))
        self.ok(self.hb(d.base, "r", "u", "s", 5))
        self.stop_now(d)
        for _ in range(3):
            roles.run_script(self.pg, database)
        self.assertEqual(self.pg.psql(database, "SELECT DISTINCT relowner::regrole FROM pg_class WHERE relnamespace = "
                                      "'stillhere'::regnamespace"), roles.OWNER)
        d = self.start_daemon(database_url=self.pg.url(database, roles.RUNTIME))
        self.assertEqual(self.hb(d.base, "r", "u", "s", 5).json()["decision"], "already_applied")
        self.stop_now(d)
        self.assertEqual(roles.migrate(self.pg.url(database, roles.OWNER)).returncode, 0)

    def test_a_wait_for_the_migration_ends_with_sigterm(self):
        database = self.empty("stopped")
        held = self.pg.session(database)
        self.addCleanup(held.close)
        held.run("BEGIN")
        held.run("SELECT pg_advisory_xact_lock(126892349417330)")
        d = self.start_daemon(wait=False, database_url=self.pg.url(database))
        self.wait_until(lambda: d.status("/healthz") == 200, 10, "the daemon")
        self.assertEqual(d.status("/readyz"), 503)
        d.process.send_signal(signal.SIGTERM)
        self.wait_until(lambda: not d.alive(), 15, "its end")
        self.forget(d)
        self.assertEqual(d.process.returncode, 0, d.tail())


class Takeover(Case):
    """Roles that were tampered with are put right."""

    autostart = False
    runtime_role = True

    def test_what_was_added_by_hand_is_taken_away(self):
        self.q("GRANT DELETE ON stillhere.member TO %s" % roles.RUNTIME)
        self.q("GRANT UPDATE ON stillhere.attendance TO PUBLIC")
        self.q("GRANT CREATE ON SCHEMA stillhere TO %s" % roles.RUNTIME)
        self.q('GRANT ALL ON DATABASE "%s" TO PUBLIC' % self.database)
        roles.run_script(self.pg, self.database)
        self.assertEqual(self.q("SELECT has_table_privilege('{0}', 'stillhere.member', 'DELETE'), "
                                "has_table_privilege('{0}', 'stillhere.attendance', 'UPDATE'), "
                                "has_schema_privilege('{0}', 'stillhere', 'CREATE'), "
                                "has_database_privilege('{0}', current_database(), 'CREATE,TEMPORARY')".format(
                                    roles.RUNTIME)), "f|f|f|f")
