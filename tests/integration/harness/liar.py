# SPDX-License-Identifier: Apache-2.0
"""A server that wrote its events wrongly from the start: a proxy in front of a right one that leaves events out,
doubles or alters them, and gives the others the revisions that they would have had then. Nothing in its answers has a
gap: only who knows what happened can tell."""

import bisect
import json
import re

from .faulty import Faulty

ROOM = re.compile(r"^/rooms/([^/?]+)")
SINCE = re.compile(r"(?<=[?&]since=)\d+")
LIMIT = re.compile(r"(?<=[?&]limit=)\d+")


def told_id(event_id, revision):
    return "%s:%d" % (event_id.rpartition(":")[0], revision)


class Story:
    """What is told of one room."""

    def __init__(self):
        self.heads = [0]  # for each revision of the right server, 0 too, the last one that was told by then
        self.told = []  # the events; the first has revision 1

    def add(self, events):
        for event in events:
            revision = len(self.told) + 1
            self.told.append(dict(event, revision=revision, event_id=told_id(event["event_id"], revision)))
        self.heads.append(len(self.told))

    def after(self, since, upto):
        return self.told[since:self.heads[upto]]


class Liar(Faulty):
    """@a lie: called with each event once; what is told for it, a list of events."""

    def __init__(self, behind, lie):
        self.lie, self.stories = lie, {}
        super().__init__(behind, self.retell)

    def story(self, room, upto):
        """The story of a room with all up to a revision of the right server."""
        story = self.stories.setdefault(room, Story())
        known = len(story.heads) - 1
        if known < upto:
            _, _, data = self.ask("GET", "/rooms/%s/presence?since=%d&wait_ms=0" % (room, known))
            for event in json.loads(data)["events"]:
                story.add(self.lie(event))
        return story

    def path(self, path):
        room, since = ROOM.match(path), SINCE.search(path)
        if not room or not since or "/presence" not in path:
            return path
        since = int(since.group())
        with self.lock:
            heads = self.story(room.group(1), 0).heads
            # The last revision that was told as this one; beyond the head as far beyond it.
            real = bisect.bisect_right(heads, since) - 1 + max(0, since - heads[-1])
        return SINCE.sub(str(real), path)

    def retell(self, method, path, body, status, answer):
        """Gives an answer the revisions of the story."""
        room = ROOM.match(path)
        room = room.group(1) if room else (body or {}).get("room_id")
        if status != 200 or not answer or not room:
            return
        if method == "PUT" and "room_revision" in answer:
            real = answer["room_revision"]
            answer["room_revision"] = self.story(room, real).heads[real]
        elif method == "DELETE" and ":" in (answer.get("event_id") or ""):
            real = int(answer["event_id"].rpartition(":")[2])
            answer["event_id"] = told_id(answer["event_id"], self.story(room, real).heads[real - 1] + 1)
        elif "mode" in answer:
            self.retell_presence(self.story(room, answer["revision"]), path, answer)

    @staticmethod
    def retell_presence(story, path, answer):
        real = answer["revision"]
        answer["revision"] = story.heads[real]
        if answer["mode"] == "snapshot":
            return
        since, limit = int(SINCE.search(path).group()), LIMIT.search(path)
        events = story.after(since, real)[:int(limit.group()) if limit else None]
        answer.update(events=events, mode="events" if events else "unchanged",
                      revision=events[-1]["revision"] if events else since)
        answer["from"] = since
