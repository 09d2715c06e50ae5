# SPDX-License-Identifier: Apache-2.0
"""The JavaScript client in Node against a real daemon: a page that comes and goes, and its credentials."""

import threading

from harness.case import SLOW, Case, json, lease, time
from harness.node import Middle, Node
from harness.tokens import Guarded


class ComingAndGoing(Case):
    """What a page does, by events that a browser would send."""

    config = {"ttl_min_ms": 500, "offline_grace_ms": 1000}
    weight = 3

    def test_a_page_that_is_hidden_and_comes_back(self):
        room, node = self.room(), Node(self, self.base, trace=True)
        node.tell("watch", name="w", room=room)
        node.tell("join", name="a", room=room, user="an", ttlMs=60000)
        before = node.until(what="accepted", name="a")
        node.tell("page", event="pagehide", persisted=True)
        self.assertTrue(node.until(what="request", method="DELETE")["keepalive"], "it must outlive the page")
        self.wait_until(lambda: self.events(room, kind="session.closed"), 5, "the close")
        self.assertIsNone(self.stored(room, before["session"], "an"))
        polls = len(node.requests("GET"))
        self.grant(room, "s", user="bo")  # what happens while it is away
        self.pause(1)
        self.assertEqual(len(node.requests("GET")), polls, "a hidden page is quiet")
        node.tell("page", event="pageshow", persisted=False)  # this one never comes for a page that was hidden
        node.tell("page", event="pageshow", persisted=True)
        after = node.until(what="accepted", name="a", granted=True)
        self.assertEqual(after["session"], before["session"])
        self.assertGreater(after["revision"], before["revision"])
        self.wait_until(lambda: node.state()["counts"] == {"users": 2, "sessions": 2}, 10, "what happened meanwhile")
        self.assertEqual(self.count("lease", room_id=room, user_id="an"), 1, "no ghost")
        self.assertEqual(self.events(room, kind="lease.expired"), [])

    def test_a_page_that_leaves_its_lease(self):
        room, node = self.room(), Node(self, self.base, trace=True)
        node.tell("join", name="a", room=room, user="an", ttlMs=60000, closeOnPageHide=False)
        node.until(what="accepted", name="a")
        node.tell("page", event="pagehide", persisted=True)
        node.until(what="status", name="a", status="suspended")
        node.tell("page", event="pageshow", persisted=True)
        node.until(what="accepted", name="a", granted=False)
        self.assertEqual(node.requests("DELETE"), [])

    def test_a_page_that_is_hidden_before_its_first_answer(self):
        """Its first heartbeat is slow, and what it says at its end overtakes that. The lease must not stand for a minute."""
        room, slow, go = self.room(), set(), threading.Event()

        def first(method, path, body):
            if method == "PUT" and body["user_id"] not in slow:
                slow.add(body["user_id"])
                go.wait(60)
        self.addCleanup(go.set)
        middle = Middle(self, self.base, first)
        node = Node(self, middle.base, trace=True)
        node.tell("join", name="a", room=room, user="an", ttlMs=60000)
        node.tell("join", name="b", room=room, user="bo", ttlMs=60000, session="tab")
        self.wait_until(lambda: slow == {"an", "bo"}, 10, "the first heartbeats")
        node.tell("page", event="pagehide", persisted=True)
        self.wait_until(lambda: len([a for a in middle.answered if a[0] == "DELETE"]) == 2, 10, "the closes")
        self.pause(0.5)  # for whatever else is said at the end
        go.set()
        self.wait_until(lambda: {a[2]["user_id"] for a in middle.answered if a[0] == "PUT" and a[2]["ttl_ms"] == 60000} ==
                        {"an", "bo"}, 10, "the late heartbeats")
        self.wait_until(lambda: self.count("lease", room_id=room) == 0, 5 + 2 + 5, "an empty room")
        node.tell("page", event="pageshow", persisted=True)
        for name in ("a", "b"):
            self.wait_until(lambda: [line for line in node.now() if line.get("name") == name and line["what"] == "accepted"], 10,
                            "another stay")
        self.assertEqual(self.count("lease", room_id=room), 2)

    def test_one_that_is_closed_before_its_first_answer(self):
        room, slow, go = self.room(), threading.Event(), threading.Event()

        def first(method, path, body):
            if method == "PUT":
                slow.set()
                go.wait(60)
        self.addCleanup(go.set)
        middle = Middle(self, self.base, first)
        node = Node(self, middle.base)
        node.tell("join", name="a", room=room, user="an", ttlMs=60000)
        self.assertTrue(slow.wait(10 * SLOW))
        node.tell("close", name="a")
        self.pause(0.5)
        go.set()
        self.assertTrue(node.until(20, what="closed", name="a")["told"])
        self.wait_until(lambda: [a for a in middle.answered if a[0] == "PUT"], 20, "the late heartbeat")
        self.pause(0.2)
        self.assertEqual(self.count("lease", room_id=room), 0)

    def test_a_session_with_a_name_goes_on(self):
        """Another page of the same name was there before: live, closed, expired, or at the same revision."""
        room = self.room()
        self.grant(room, "live", revision=7, user="an")
        self.grant(room, "same", revision=1, user="an")
        self.grant(room, "closed", revision=7, user="an")
        self.ok(self.client.close(self.base, room, "an", "closed"))
        self.grant(room, "expired", revision=7, user="an", ttl_ms=500)
        self.wait_until(lambda: self.events(room, kind="lease.expired"), 5, "an end")
        node = Node(self, self.base)
        for session in ("live", "same", "closed", "expired"):
            node.tell("join", name=session, room=room, user="an", session=session, ttlMs=20000, meta={"new": True})
            line = node.until(what="accepted", name=session)
            self.assertEqual([line["ttl"], line["granted"]], [20000, session in ("closed", "expired")], session)
            self.assertEqual(self.stored(room, session, "an")["meta"], {"new": True})

    def test_a_server_that_says_when_to_come_again(self):
        """Neither what the page does nor the next thing to say makes it come sooner."""
        busy = threading.Event()

        def first(method, path, body):
            if not busy.is_set():
                return None
            if method == "PUT":
                return 503, {"Retry-After": "2"}, {"code": "unavailable"}
            return 429, {}, {"code": "too_many_requests", "retry_after_ms": 2000}
        room, middle = self.room(), Middle(self, self.base, first)
        node = Node(self, middle.base, trace=True)
        node.tell("join", name="a", room=room, user="an", ttlMs=60000)
        session = node.until(what="accepted", name="a")["session"]
        busy.set()
        node.tell("watch", name="w", room=room)
        node.tell("meta", name="a", meta={"n": 1})
        node.until(what="status", name="a", status="retrying")
        for _ in range(5):
            node.tell("page", event="visibilitychange")
            node.tell("meta", name="a", meta={"n": 2})
            self.pause(0.2)
        for method, granted in (("PUT", 1), ("GET", 0)):
            self.wait_until(lambda: len(node.requests(method)) >= granted + 2, 15, "another attempt")
            times = [line["at"] for line in node.requests(method)][granted:]
            self.assertGreaterEqual(times[1] - times[0], 1990, method)
        busy.clear()
        self.wait_until(lambda: self.stored(room, session, "an")["meta"] == {"n": 2}, 15, "what was to be said")
        self.wait_until(lambda: node.state()["counts"]["users"] == 1, 15, "the room")


class Credentials(Guarded):
    config = {"ttl_min_ms": 500}

    def asked(self, node):
        return [line["again"] for line in node.now() if line["what"] == "asked"]

    def test_a_refused_token_is_fetched_anew_once(self):
        room, bad = self.room(), self.key.token(exp=int(time.time()) - 3600)
        node = Node(self, self.base, tokens=[bad, self.key.token()])
        node.tell("watch", name="w", room=room)
        node.tell("join", name="a", room=room, user="an")
        node.until(what="accepted", name="a")
        self.wait_until(lambda: node.state()["counts"]["users"] == 1, 10, "the room")
        self.assertEqual(self.asked(node), [False, True], "once for both")
        # And where the next one is no better, that is an end.
        node = Node(self, self.base, tokens=[bad], trace=True)
        node.tell("join", name="a", room=room, user="an")
        self.assertEqual(node.until(what="status", name="a", status="ended")["code"], "token_expired")
        self.pause(0.5)
        self.assertEqual([self.asked(node), len(node.requests("PUT"))], [[False, True], 2])

    def test_a_token_that_runs_out_meanwhile(self):
        room = self.room()
        node = Node(self, self.base, tokens=[self.key.token(exp=int(time.time()) + 1), self.key.token()], trace=True)
        node.tell("watch", name="w", room=room, waitMs=20000)
        node.tell("join", name="a", room=room, user="an", ttlMs=4000)
        session = node.until(what="accepted", name="a")["session"]
        self.wait_until(lambda: self.asked(node) == [False, True], 10, "another token")
        node.until(what="accepted", name="a", granted=False)
        self.grant_as(room, "bo")
        self.wait_until(lambda: node.state()["counts"]["users"] == 2, 10, "the room")
        self.assertEqual([line for line in node.now() if line.get("status") in ("retrying", "lapsed", "ended")], [])
        self.assertEqual(self.asked(node), [False, True])
        # What a page says at its end is said with the token.
        node.tell("page", event="pagehide", persisted=False)
        self.wait_until(lambda: self.stored(room, session, "an") is None, 3, "the close")
        self.assertEqual(self.events(room, kind="lease.expired"), [])

    def grant_as(self, room, user):
        reply = self.client.request(self.base, "PUT", "/leases", body=json.dumps(lease(room, user, "s")),
                                    headers={"Authorization": "Bearer " + self.key.token(sub=user)})
        self.assertEqual(reply.status, 200, reply)

    def test_another_token(self):
        room, node = self.room(), Node(self, self.base)
        node.tell("join", name="patient", room=room, user="an", patient=True, retryMostMs=60000)
        node.tell("join", name="plain", room=room, user="an")
        node.until(what="status", name="plain", status="ended", code="no_credential")
        node.tell("token", value=self.key.token())
        node.until(what="accepted", name="patient")
