// SPDX-License-Identifier: Apache-2.0
// Who is in a room, folded from a snapshot and the events after it.

const ENDS = new Set(['lease.expired', 'session.closed', 'membership.revoked']);

/** The people in a room. Useful without a watch as well. */
export class Room {
  constructor(roomId) {
    this.roomId = roomId;
    this.epoch = null;
    this.revision = null;
    this.users = new Map();
  }

  /** People (those who are leaving included) and sessions. */
  get counts() {
    let sessions = 0;
    for (const user of this.users.values()) sessions += user.sessions.size;
    return { users: this.users.size, sessions };
  }

  /** Takes a snapshot: what was known before is forgotten. */
  reset(snapshot) {
    this.epoch = snapshot.epoch;
    this.revision = snapshot.revision;
    this.users = new Map((snapshot.users ?? []).map((user) => [user.user_id, {
      userId: user.user_id,
      onlineSince: user.online_since,
      leaving: user.offline_at != null,
      sessions: new Map((user.sessions ?? []).map((s) => [s.session_id, {
        sessionId: s.session_id, revision: s.revision, grantedAt: s.granted_at, meta: s.meta ?? {},
      }])),
    }]));
  }

  /** Takes one event. @return false when one before it is missing; what was seen already changes nothing */
  apply(event, { gaps = false } = {}) {
    if (this.revision === null) return false;
    if (event.revision <= this.revision) return true;
    if (event.revision !== this.revision + 1 && !gaps) return false;
    this.revision = event.revision;
    if (event.kind === 'user.offline') {
      this.users.delete(event.user_id);
      return true;
    }
    let user = this.users.get(event.user_id);
    if (!user && !ENDS.has(event.kind)) {
      user = { userId: event.user_id, onlineSince: event.at, leaving: false, sessions: new Map() };
      this.users.set(event.user_id, user);
    }
    if (event.kind === 'user.online') user.onlineSince = event.at;
    if (event.kind === 'lease.granted' || event.kind === 'lease.renewed') this.#holds(user, event);
    else if (ENDS.has(event.kind) && user && event.session_id != null) {
      user.sessions.delete(event.session_id);
      user.leaving = user.sessions.size === 0;
    }
    return true;
  }

  #holds(user, event) {
    const before = user.sessions.get(event.session_id);
    user.sessions.set(event.session_id, {
      sessionId: event.session_id, revision: event.lease_revision, meta: event.meta ?? before?.meta ?? {},
      grantedAt: event.kind === 'lease.granted' ? event.at : before?.grantedAt ?? event.at,
    });
    user.leaving = false;
  }
}
