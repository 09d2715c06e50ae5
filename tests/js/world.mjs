// SPDX-License-Identifier: Apache-2.0
// A world for the client that has nothing to do with the real one: a clock that goes on when the test says so, a server
// that answers as the test says, a page that comes and goes.
import { StillHere } from '../../contrib/js/stillhere.js';

const URL = 'http://world.invalid';
/** More requests than any test wants: whoever asks without a pause is stopped here, since time would not go on. */
const REQUESTS_MOST = 20_000;
/** The server's clock, against this side's. */
const SKEW_MS = -25_200_000;

const settled = () => new Promise((resolve) => { setImmediate(resolve); });

export class World {
  #answer;
  #timers = new Map();
  #id = 0;
  now = 0;
  requests = [];
  page = Object.assign(new EventTarget(), { document: Object.assign(new EventTarget(), { visibilityState: 'visible' }) });
  clock = {
    wall: () => 1_700_000_000_000 + this.now,
    steady: () => this.now,
    setTimeout: (f, ms) => {
      this.#timers.set(++this.#id, { at: this.now + ms, f });
      return this.#id;
    },
    clearTimeout: (id) => this.#timers.delete(id),
  };

  /** @param answer called with a request and this world; gives [status, JSON, headers], or a promise of that, or throws */
  constructor(answer) {
    this.#answer = async (...args) => answer(...args); // what it throws is no network
  }

  client(options = {}) {
    return new StillHere({ url: URL, clock: this.clock, fetch: (...args) => this.#fetch(...args), page: this.page, ...options });
  }

  /** Lets time go on. Whatever is due happens at its time, one after the other. */
  async pass(ms) {
    const end = this.now + ms;
    for (;;) {
      await settled();
      let due = null;
      for (const [id, timer] of this.#timers) if (timer.at <= end && !(due?.at <= timer.at)) due = { id, ...timer };
      if (!due) break;
      this.now = Math.max(this.now, due.at);
      this.#timers.delete(due.id);
      due.f();
    }
    this.now = end;
  }

  /** For what comes later. */
  later(ms, value) {
    return new Promise((resolve) => { this.clock.setTimeout(() => resolve(value), ms); });
  }

  /** What a browser says to its page. */
  tell(name, properties = {}) {
    (name === 'resume' ? this.page.document : this.page).dispatchEvent(Object.assign(new Event(name), properties));
  }

  of(method) {
    return this.requests.filter((request) => request.method === method);
  }

  iso(ms = 0) {
    return new Date(this.clock.wall() + SKEW_MS + ms).toISOString();
  }

  /** A heartbeat's answer. */
  accepted({ body }, renewAfterMs = 20_000) {
    const ttl = body.ttl_ms ?? 90_000;
    return [200, { decision: 'accepted', granted: false, epoch: 'e', room_revision: 1, renew_after_ms: renewAfterMs,
      server_time: this.iso(), request_id: 'q',
      lease: { ...body, ttl_ms: ttl, granted_at: this.iso(), renewed_at: this.iso(), expires_at: this.iso(ttl) } }];
  }

  async #fetch(url, { method, headers, body, keepalive = false, signal }) {
    if (this.requests.length >= REQUESTS_MOST) throw new TypeError('too many requests');
    const [path, query] = url.slice(URL.length).split('?');
    const request = { at: this.now, method, path, keepalive, aborted: false, token: headers.Authorization?.slice(7),
      query: Object.fromEntries(new URLSearchParams(query)), body: body === undefined ? null : JSON.parse(body) };
    this.requests.push(request);
    const gone = new Promise((_, reject) => {
      signal?.addEventListener('abort', () => {
        request.aborted = true;
        reject(new DOMException('given up', 'AbortError'));
      });
    });
    gone.catch(() => {});
    const [status, reply, more] = await Promise.race([gone, this.#answer(request, this)]);
    const response = { ok: status < 300, status, headers: new Headers({ 'content-type': 'application/json', ...more }) };
    const read = reply?.read;
    if (read) response.body = { getReader: () => ({ read: () => Promise.race([gone, read()]) }) };
    else response.text = async () => JSON.stringify(reply);
    return response;
  }
}

// -- what a room answers -----------------------------------------------------------------------------------------------

export const event = (revision) => ({ event_id: `e:r:${revision}`, revision, kind: 'lease.granted', user_id: `u${revision}`,
  session_id: 's', lease_revision: 1, user_sessions: 1, at: '2026-11-30T15:00:00.000Z', meta: {} });

export const snapshot = (revision, epoch = 'e', reason = 'requested') => [200, { room_id: 'r', epoch, mode: 'snapshot', reason,
  revision, users: [], counts: { users: 0, sessions: 0 }, next_poll_ms: 28_000 }];

export const events = (...revisions) => [200, { room_id: 'r', epoch: 'e', mode: 'events', events: revisions.map(event),
  revision: revisions.at(-1), next_poll_ms: 28_000 }];

/**
 * One reply after the other, some made by a function when their turn comes; when there are no more, polls wait as long as
 * they said, and find nothing.
 */
export function script(...replies) {
  const nothing = ({ query }, world) => world.later(Number(query.wait_ms ?? 25_000),
    [200, { mode: 'unchanged', events: [], revision: Number(query.since) }]);
  return (request, world) => {
    const next = replies.shift() ?? nothing;
    return typeof next === 'function' ? next(request, world) : next;
  };
}

/** A stream of these messages, JSON or as they are sent, which then ends, or breaks, after a time. */
export function stream(world, messages, { endsAfterMs = Infinity, breaks = false } = {}) {
  const texts = messages.map((m) => (typeof m === 'string' ? m
    : `event: ${m.mode ?? m.kind}\nid: ${m.revision}\ndata: ${JSON.stringify(m)}\n\n`));
  const end = () => (breaks ? Promise.reject(new TypeError('broken')) : { done: true });
  const last = () => (endsAfterMs === Infinity ? new Promise(() => {}) : world.later(endsAfterMs).then(end));
  const read = async () => (texts.length > 0 ? { value: new TextEncoder().encode(texts.shift()) } : last());
  return [200, { read }, { 'content-type': 'text/event-stream' }];
}
