// SPDX-License-Identifier: Apache-2.0
// The client of stillhere, a presence server: hold leases, watch rooms, pass cursors on. For browsers and Node 18 or
// newer, without dependencies. README.md beside this file shows how; stillhere.d.ts says what each part takes and gives.
//
// Whether somebody is still here is judged by the server's database alone. Clocks of this side decide when to ask, and
// never what is true: a lease has ended when the server says so, or when its whole time has gone by without an answer.

const REQUEST_TIMEOUT_MS = 10_000;
const RETRY_FIRST_MS = 500;
const RETRY_MOST_MS = 30_000;
/** Between two looks at the clocks, and how much more than that means that the machine was asleep. */
const TICK_MS = 5_000;
const SLEPT_MS = 10_000;
/** A stream has a comment every 15 s; one that is silent for longer than this is dead. */
const STREAM_SILENT_MS = 45_000;
const REVISION_MAX = Number.MAX_SAFE_INTEGER;

/** What the server refused, or why there was no answer (status 0: `network`, `timeout`, `aborted`, `bad_reply`). */
export class StillHereError extends Error {
  constructor(status, code, detail, problem = {}, retryAfterMs = null) {
    super(detail || code);
    this.name = 'StillHereError';
    this.status = status;
    this.code = code;
    this.problem = problem;
    this.requestId = problem.request_id ?? null;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether the same request may well succeed later. */
  get transient() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

const systemClock = {
  /** Goes on while the machine sleeps, and may be set wrong or be set anew: never measured against the server's. */
  wall: () => Date.now(),
  /** Never goes back; may stand still while the machine sleeps. */
  steady: () => performance.now(),
  setTimeout: (f, ms) => globalThis.setTimeout(f, ms),
  clearTimeout: (id) => globalThis.clearTimeout(id),
};

/** A wait that can be ended early; ended while nobody waits, the next one ends at once. */
class Alarm {
  #clock;
  #rung = false;
  #end = null;

  constructor(clock) {
    this.#clock = clock;
  }

  ring() {
    if (this.#end) this.#end();
    else this.#rung = true;
  }

  wait(ms) {
    if (this.#rung) {
      this.#rung = false;
      return Promise.resolve();
    }
    return new Promise((resolve) => {
      const timer = this.#clock.setTimeout(() => this.#end(), ms);
      this.#end = () => {
        this.#clock.clearTimeout(timer);
        this.#end = null;
        resolve();
      };
    });
  }
}

/** Pauses that grow, with half of each left to chance, so that many clients do not come back together. */
class Backoff {
  #n = 0;

  reset() {
    this.#n = 0;
  }

  next(retryAfterMs = null, most = RETRY_MOST_MS) {
    const span = Math.max(100, Math.min(most, RETRY_FIRST_MS * 2 ** Math.min(this.#n++, 10)));
    const pause = span * (0.5 + Math.random() * 0.5);
    return retryAfterMs === null ? pause : retryAfterMs + Math.random() * span;
  }
}

/** Calls a handler; what it throws is reported as any uncaught error is, and breaks nothing here. */
function call(handler, ...args) {
  if (!handler) return undefined;
  const fail = (error) => queueMicrotask(() => {
    throw error;
  });
  try {
    const result = handler(...args);
    return typeof result?.then === 'function' ? result.then(undefined, fail) : result;
  } catch (error) {
    return fail(error);
  }
}

function checkId(value, what) {
  const text = String(value ?? '');
  const bytes = new TextEncoder().encode(text).length;
  // A lone surrogate would be sent as another character.
  const sound = bytes > 0 && bytes <= 128 && text !== '.' && text !== '..' && !/[\u0000-\u001f\u007f]/.test(text) &&
    !/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(text);
  if (!sound) throw new TypeError(`${what} must be 1 to 128 bytes without control characters, and not "." or ".."`);
  return text;
}

function randomId(prefix) {
  const bytes = new Uint8Array(12);
  if (globalThis.crypto?.getRandomValues) globalThis.crypto.getRandomValues(bytes);
  else for (let i = 0; i < bytes.length; i++) bytes[i] = Math.floor(Math.random() * 256);
  return prefix + Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');
}

const roomPath = (room, rest) => `/rooms/${encodeURIComponent(room)}/${rest}`;

function withQuery(path, query) {
  const parts = Object.entries(query).filter(([, v]) => v !== undefined && v !== null);
  return parts.length ? `${path}?${parts.map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join('&')}` : path;
}

/** One server (or several behind one address), one credential. */
export class StillHere {
  #url;
  #token;
  #known = null;
  #asking = null;
  #fetch;
  #members = new Set();
  #unlisten = null;

  constructor({ url, token = null, fetch = null, clock = {}, page } = {}) {
    const here = globalThis.location?.origin;
    this.#url = String(url ?? (here && here !== 'null' ? here : 'http://127.0.0.1:7470')).replace(/\/+$/, '');
    this.#token = token;
    this.#fetch = fetch ?? ((...args) => globalThis.fetch(...args));
    this.clock = { ...systemClock, ...clock };
    this.page = page !== undefined ? page : globalThis.document && globalThis.addEventListener ? globalThis : null;
  }

  /** Holds a lease of a session of `user` in `room` until it is closed. */
  join(room, user, options = {}) {
    return this.#add(new Stay(this, room, user, options));
  }

  /** Follows a room. */
  watch(room, options = {}) {
    return this.#add(new Watch(this, room, options));
  }

  /** Sends and follows the cursors of a room. */
  cursors(room, options = {}) {
    return this.#add(new Cursors(this, room, options));
  }

  /** Another credential from now on. */
  setToken(token) {
    this.#token = token;
    this.#known = null;
    for (const member of this.#members) member._wake(true);
  }

  /** Closes everything. */
  async close() {
    await Promise.all([...this.#members].map((member) => member.close()));
  }

  /** One request. @return its JSON; throws StillHereError. With `raw` the response itself, its body unread. */
  async request(method, path, options = {}) {
    try {
      return await this.#once(method, path, options, await this.#credential(false));
    } catch (error) {
      if (error.status !== 401 || typeof this.#token !== 'function') throw error;
      return this.#once(method, path, options, await this.#credential(true));
    }
  }

  /** A request that outlives the page; nobody waits for its answer, so it takes the token that is known already. */
  _farewell(method, path) {
    const headers = this.#headers(typeof this.#token === 'string' ? this.#token : this.#known, {});
    try {
      this.#fetch(this.#url + path, { method, headers, keepalive: true, cache: 'no-store' }).catch(() => {});
    } catch {
      // Then the lease runs out by itself.
    }
  }

  _gone(member) {
    this.#members.delete(member);
    if (this.#members.size === 0 && this.#unlisten) {
      this.#unlisten();
      this.#unlisten = null;
    }
  }

  #add(member) {
    this.#members.add(member);
    this.#unlisten ??= this.#listen();
    return member;
  }

  async #credential(again) {
    if (typeof this.#token !== 'function') return this.#token;
    if (this.#known !== null && !again) return this.#known;
    // Requests that fail together ask once together.
    const ask = this.#token;
    this.#asking ??= Promise.resolve().then(() => ask({ again })).then((known) => {
      if (ask === this.#token) this.#known = known;
      return known;
    }).finally(() => {
      this.#asking = null;
    });
    try {
      return await this.#asking;
    } catch (error) {
      throw new StillHereError(0, 'no_token', `the token function failed: ${error?.message ?? error}`);
    }
  }

  #headers(token, more) {
    return token ? { ...more, Authorization: `Bearer ${token}` } : { ...more };
  }

  async #once(method, path, { body, signal, timeoutMs = REQUEST_TIMEOUT_MS, accept, raw = false }, token) {
    const stop = new AbortController();
    let late = false;
    const timer = this.clock.setTimeout(() => {
      late = true;
      stop.abort();
    }, timeoutMs);
    const onAbort = () => stop.abort();
    if (signal?.aborted) stop.abort();
    signal?.addEventListener('abort', onAbort, { once: true });
    const headers = this.#headers(token, accept ? { Accept: accept } : {});
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    let handedOver = false;
    try {
      const response = await this.#fetch(this.#url + path, {
        method, headers, signal: stop.signal, cache: 'no-store',
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      if (!response.ok) throw await refusal(response);
      if (!raw || !response.headers.get('content-type')?.startsWith('text/event-stream')) return await jsonOf(response);
      handedOver = true;
      return { response, end: () => signal?.removeEventListener('abort', onAbort), stop: onAbort };
    } catch (error) {
      if (error instanceof StillHereError) throw error;
      const code = late ? 'timeout' : signal?.aborted ? 'aborted' : 'network';
      throw new StillHereError(0, code, `${method} ${path}: ${error?.cause?.message ?? error?.message ?? error}`);
    } finally {
      this.clock.clearTimeout(timer);
      if (!handedOver) signal?.removeEventListener('abort', onAbort);
    }
  }

  /** What the page, the machine and its network do. @return what ends the listening */
  #listen() {
    const page = this.page;
    const tell = (what, ...args) => () => {
      for (const member of [...this.#members]) member[what](...args);
    };
    const listeners = [
      ['pagehide', tell('_hide')],
      ['pageshow', (event) => event.persisted && tell('_show')()],
      ['resume', tell('_wake', true)],
      ['online', tell('_wake', true)],
      ['offline', tell('_wake', true)],
      ['visibilitychange', () => page.document?.visibilityState !== 'hidden' && tell('_wake', false)()],
    ];
    // `resume` and `visibilitychange` come from the document; the second bubbles up to the window, the first does not.
    const target = (name) => (name === 'resume' && page.document ? page.document : page);
    if (page) for (const [name, f] of listeners) target(name).addEventListener(name, f);
    const endTicks = this.#tick(tell('_wake', true));
    return () => {
      endTicks();
      if (page) for (const [name, f] of listeners) target(name).removeEventListener(name, f);
    };
  }

  /** Notices a sleep by what either clock says of the time between two looks. */
  #tick(slept) {
    const { clock } = this;
    let wall = clock.wall(), steady = clock.steady(), timer;
    const look = () => {
      const gap = Math.max(clock.wall() - wall, clock.steady() - steady);
      wall = clock.wall();
      steady = clock.steady();
      if (gap > TICK_MS + SLEPT_MS) slept();
      set();
    };
    const set = () => {
      timer = clock.setTimeout(look, TICK_MS);
      timer?.unref?.();
    };
    set();
    return () => clock.clearTimeout(timer);
  }
}

async function jsonOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    throw new StillHereError(0, 'bad_reply', `the reply is not JSON: ${text.slice(0, 80)}`);
  }
}

async function refusal(response) {
  const problem = await response.json().catch(() => ({}));
  const seconds = Number(response.headers.get('retry-after') || NaN);
  const retry = problem.retry_after_ms ?? (Number.isFinite(seconds) ? seconds * 1000 : null);
  return new StillHereError(response.status, problem.code ?? `http_${response.status}`, problem.detail, problem, retry);
}

/** What a stay, a watch and cursors have in common: a status that is told, an end, and a loop that can be paused. */
class Member {
  #ending = null;
  status = 'connecting';
  error = null;

  constructor(client, room, options) {
    this.client = client;
    this.room = checkId(room, 'room');
    this.options = options;
    this.alarm = new Alarm(client.clock);
    this.backoff = new Backoff();
    this.ended = new Promise((resolve) => {
      this.#ending = resolve;
    });
  }

  get over() {
    return this.status === 'closed' || this.status === 'ended';
  }

  _set(status, error = null) {
    if (this.over || (status === this.status && !error)) return;
    const changed = status !== this.status;
    this.status = status;
    if (error) this.error = error;
    else if (status === 'live') this.error = null;
    if (changed) call(this.options.onStatus, status, this.error);
    if (!this.over) return;
    this.client._gone(this);
    this.#ending({ status, error: this.error });
  }

  /** Runs `turn` again and again while the same run is on; it returns the time to the next one. */
  async _loop(turn) {
    const run = (this.run = new AbortController());
    const { signal } = run;
    while (!signal.aborted && !this.over) {
      let pause;
      try {
        pause = await turn(signal);
      } catch (error) {
        if (signal.aborted || this.over) return;
        pause = this._failed(error instanceof StillHereError ? error : new StillHereError(0, 'fault', String(error)));
      }
      if (signal.aborted || this.over) return;
      if (pause > 0) await this.alarm.wait(pause);
    }
  }

  _pause() {
    this.run?.abort();
    this.alarm.ring();
    this.alarm = new Alarm(this.client.clock);
  }
}

/** A lease that is held. */
export class Stay extends Member {
  #sent = 0;
  #expiry = null;
  #due = 0;
  #conflicts = 0;
  #busy = Promise.resolve();
  #settle;

  constructor(client, room, user, options) {
    super(client, room, options);
    this.user = checkId(user, 'user');
    // A name of its own for each page that is opened: a duplicated tab is another session, and a reload is one too.
    this.session = options.session === undefined ? randomId('s-') : checkId(options.session, 'session');
    this.meta = options.meta;
    // Nobody else can have used a session with a random name; one with a given name continues where it was.
    this.#sent = options.session === undefined ? 0 : null;
    this.status = 'joining';
    this.lease = null;
    this.ready = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    this.ready.catch(() => {});
    this.#start();
  }

  /** The highest revision that was sent or heard of. */
  get revision() {
    return this.#sent ?? 0;
  }

  /** Other metadata from now on, sent at once. */
  setMeta(meta) {
    this.meta = meta;
    this.renew();
  }

  /** Renews now. */
  renew() {
    this.#due = 0;
    this.alarm.ring();
  }

  /** Ends the stay. @return whether the server has said so; if not, the lease runs out by itself */
  async close() {
    if (this.over) return this.status === 'closed';
    this._pause();
    this._set('closed');
    this.#settle.reject(new StillHereError(0, 'closed', 'closed before it was granted'));
    await this.#busy;
    for (let attempt = 0; attempt < 3; attempt++) {
      try {
        await this.client.request('DELETE', this.#closePath());
        return true;
      } catch (error) {
        if (error.status === 404) return true;
        if (!error.transient) return false;
        await this.alarm.wait(this.backoff.next(error.retryAfterMs, 2000));
      }
    }
    return false;
  }

  /** The page goes, for ever or into the browser's memory. */
  _hide() {
    if (this.over || this.status === 'suspended') return;
    this._pause();
    this._set('suspended');
    if (this.options.closeOnPageHide !== false) this.client._farewell('DELETE', this.#closePath());
  }

  /** It came back out of it: a newer revision opens what was closed, and the close, should it be late, is too old. */
  _show() {
    if (this.status === 'suspended') this.#start();
  }

  _wake(sure) {
    if (this.over || this.status === 'suspended') return;
    if (sure || this.status !== 'live' || this.client.clock.steady() >= this.#due) this.renew();
  }

  #start() {
    if (this.status === 'suspended') this._set('joining');
    this.backoff.reset();
    this._loop((signal) => (this.#busy = this.#beat(signal).finally(() => {})).catch((error) => {
      throw error;
    }));
    this.#busy.catch(() => {});
  }

  #closePath() {
    const path = `leases/${encodeURIComponent(this.user)}/${encodeURIComponent(this.session)}`;
    return withQuery(roomPath(this.room, path), { revision: this.#sent || undefined });
  }

  /** One heartbeat, always with a revision of its own: one that was lost on its way and comes late is then too old. */
  async #beat(signal) {
    const { clock } = this.client;
    const began = clock.steady();
    if (this.#sent !== null) this.#sent++;
    const ttl = this.options.ttlMs;
    const answer = await this.client.request('PUT', '/leases', {
      signal,
      timeoutMs: Math.min(REQUEST_TIMEOUT_MS, ttl ? ttl / 3 : REQUEST_TIMEOUT_MS),
      body: { room_id: this.room, user_id: this.user, session_id: this.session, revision: this.#sent ?? undefined,
        ttl_ms: ttl, meta: this.meta },
    });
    // Both times are the server's: only their difference means anything here.
    const left = Date.parse(answer.lease.expires_at) - Date.parse(answer.server_time);
    this.#sent = Math.max(this.#sent ?? 0, answer.lease.revision);
    this.#expiry = began + left;
    this.#conflicts = 0;
    this.backoff.reset();
    const pause = Math.max(100, answer.renew_after_ms);
    this.#due = clock.steady() + pause;
    this.lease = answer.lease;
    this._set('live');
    this.#settle.resolve(answer);
    call(this.options.onAccepted, answer);
    return pause;
  }

  _failed(error) {
    const stored = error.problem.stored_revision;
    const older = error.code === 'ignored_old_revision' || error.code === 'session_closed';
    if (older && Number.isSafeInteger(stored) && stored < REVISION_MAX && this.#conflicts < 3) {
      this.#sent = Math.max(stored, this.#sent ?? 0);
      this.#conflicts++;
      return 1;
    }
    if (!older && !this.#curable(error)) {
      this.#settle.reject(error);
      this._set('ended', error);
      return 0;
    }
    if (older && this.#conflicts >= 3) this.#conflicts = 0;
    const left = this.#expiry === null ? null : this.#expiry - this.client.clock.steady();
    if (left !== null && left <= 0) this._set('lapsed', error);
    else this._set(left === null ? 'joining' : 'retrying', error);
    // While the lease may still live there is time for several more attempts, whatever the pauses have grown to.
    const most = left !== null && left > 0 ? Math.max(250, left / 4) : this.options.retryMostMs ?? RETRY_MOST_MS;
    const pause = this.backoff.next(error.retryAfterMs, most);
    return left !== null && left > 0 && error.retryAfterMs === null ? Math.min(pause, left) : pause;
  }

  #curable(error) {
    return error.transient || (error.status === 401 && typeof this.options.onUnauthorized === 'function' &&
      call(this.options.onUnauthorized, error) === true);
  }
}

// -- watching ----------------------------------------------------------------------------------------------------------

const ENDS = new Set(['lease.expired', 'session.closed', 'membership.revoked']);

/** Who is in a room, folded from a snapshot and the events after it. Useful without a watch as well. */
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
    if (event.kind === 'lease.granted' || event.kind === 'lease.renewed') {
      const before = user.sessions.get(event.session_id);
      user.sessions.set(event.session_id, {
        sessionId: event.session_id, revision: event.lease_revision, meta: event.meta ?? before?.meta ?? {},
        grantedAt: event.kind === 'lease.granted' ? event.at : before?.grantedAt ?? event.at,
      });
      user.leaving = false;
    } else if (ENDS.has(event.kind) && user && event.session_id != null) {
      user.sessions.delete(event.session_id);
      user.leaving = user.sessions.size === 0;
    }
    return true;
  }
}

/** Reads server-sent events. @return whether the response came to its end by itself */
async function readStream(response, clock, stop, take) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = '', message = {}, timer;
  const watchdog = () => {
    clock.clearTimeout(timer);
    timer = clock.setTimeout(stop, STREAM_SILENT_MS);
  };
  try {
    for (;;) {
      watchdog();
      const { value, done } = await reader.read();
      if (done) return true;
      text += decoder.decode(value, { stream: true });
      for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n')) {
        const line = text.slice(0, end).replace(/\r$/, '');
        text = text.slice(end + 1);
        if (line === '') {
          if (message.data !== undefined || message.id !== undefined) take(message);
          message = {};
          continue;
        }
        const colon = line.indexOf(':');
        if (colon === 0) continue;
        const field = colon < 0 ? line : line.slice(0, colon);
        const rest = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
        message[field] = field === 'data' && message.data !== undefined ? `${message.data}\n${rest}` : rest;
      }
    }
  } finally {
    clock.clearTimeout(timer);
  }
}

/** What watches and cursors have in common: they stop with the page and begin again with it. */
class Follower extends Member {
  _start() {
    this._loop((signal) => (this.options.stream ? this._streamed(signal) : this._polled(signal)));
  }

  async close() {
    if (this.over) return true;
    this._pause();
    this._set('closed');
    return true;
  }

  _hide() {
    if (this.over || this.status === 'suspended') return;
    this._pause();
    this._set('suspended');
  }

  _show() {
    if (this.status !== 'suspended') return;
    this._set('connecting');
    this.backoff.reset();
    this._start();
  }

  /** After a sleep the connection may be one that nobody answers any more. */
  _wake(sure) {
    if (this.over || this.status === 'suspended') return;
    if (!sure && this.status === 'live') return this.alarm.ring();
    this._pause();
    this.backoff.reset();
    this._start();
  }

  _failed(error) {
    if (!error.transient) {
      this._set('ended', error);
      return 0;
    }
    this._set('retrying', error);
    return this.backoff.next(error.retryAfterMs, this.options.retryMostMs ?? RETRY_MOST_MS);
  }

  _answered() {
    this.backoff.reset();
    this._set('live');
  }
}

/** Follows a room: a snapshot, then every event in order, each once. */
export class Watch extends Follower {
  #queue = [];
  #busy = false;
  #fresh = false;

  constructor(client, room, options) {
    super(client, room, options);
    this.state = new Room(this.room);
    this.known = new Room(this.room); // what has come, where `state` is what the handlers have been told
    this._start();
  }

  /** Forgets what was known and asks for a snapshot. */
  resync() {
    this.#forget();
    this._wake(true);
  }

  #forget() {
    this.known.revision = this.known.epoch = null;
    this.#queue = [];
    this.#fresh = true;
  }

  #path(wait) {
    const { kinds, limit } = this.options;
    const { epoch, revision } = this.known;
    return withQuery(roomPath(this.room, 'presence'), {
      since: revision ?? undefined, epoch: revision === null ? undefined : epoch, kinds: kinds?.join(','), limit,
      wait_ms: revision === null ? undefined : wait,
    });
  }

  async _polled(signal) {
    const wait = this.options.waitMs ?? 25_000;
    const reply = await this.client.request('GET', this.#path(wait), { signal, timeoutMs: wait * 1.1 + REQUEST_TIMEOUT_MS });
    this._answered();
    this.#take(reply);
    return 0;
  }

  async _streamed(signal) {
    const reply = await this.client.request('GET', this.#path(undefined), { signal, accept: 'text/event-stream', raw: true });
    this._answered();
    if (!reply.response) {
      this.#take(reply);
      return this.backoff.next();
    }
    let givenUp = false;
    try {
      await readStream(reply.response, this.client.clock, reply.stop, (message) => {
        if (message.data === undefined) return this.#moved(Number(message.id));
        const data = JSON.parse(message.data);
        if (message.event === 'session') return undefined;
        this.#take(message.event === 'snapshot' ? data
          : { mode: 'events', epoch: this.known.epoch, revision: data.revision, events: [data] });
        if (this.known.revision !== null) return undefined;
        // What was given up comes back with a snapshot, and only a new stream begins with one.
        givenUp = true;
        return reply.stop();
      });
    } catch (error) {
      if (!givenUp) throw new StillHereError(0, 'network', `the stream broke: ${error?.message ?? error}`);
    } finally {
      reply.end();
    }
    return this.backoff.next();
  }

  /** With `kinds` the position moves on without events. */
  #moved(revision) {
    if (this.known.revision !== null && revision > this.known.revision) this.known.revision = revision;
  }

  /** A reply, in the order in which they come. */
  #take(reply) {
    const gaps = this.options.kinds !== undefined;
    if (reply.mode === 'snapshot') {
      this.known.reset(reply);
      this.#queue = [{ snapshot: reply }];
      this.#fresh = false;
    } else {
      for (const event of reply.events ?? []) {
        const seen = this.known.revision !== null && event.revision <= this.known.revision;
        if (!this.known.apply(event, { gaps })) return this.#forget(); // one is missing: from a snapshot on
        if (!seen) this.#queue.push({ event });
      }
      if (gaps) this.#moved(reply.revision);
    }
    // Whoever takes longer than the room moves gets where it is now instead of all that led there.
    if (this.#queue.length > (this.options.bufferMost ?? 1000)) return this.#forget();
    return this.#tell();
  }

  /** Hands on what has come, one after the other; a handler may be asynchronous, and what comes meanwhile waits. */
  async #tell() {
    if (this.#busy) return;
    this.#busy = true;
    while (this.#queue.length > 0 && !this.over) {
      const { snapshot, event } = this.#queue.shift();
      if (snapshot) {
        this.state.reset(snapshot);
        await call(this.options.onSnapshot, this.state, snapshot);
      } else {
        this.state.apply(event, { gaps: this.options.kinds !== undefined });
        await call(this.options.onEvent, event, this.state);
      }
      if (this.#queue.length === 0 && !this.#fresh) await call(this.options.onChange, this.state);
    }
    this.#busy = false;
  }
}

/** Where others point, and where this session does. Nothing of it is stored anywhere. */
export class Cursors extends Follower {
  #seq = null;
  #next = null;
  #sending = false;

  constructor(client, room, options) {
    super(client, room, options);
    this.cursors = new Map();
    this._start();
  }

  /** Sends where `stay` points, at most every `throttleMs` (50); of several in between the last one goes. */
  async send(stay, data) {
    this.#next = { stay, data };
    if (this.#sending) return;
    this.#sending = true;
    while (this.#next && !this.over) {
      const { stay: from, data: what } = this.#next;
      this.#next = null;
      try {
        await this.client.request('POST', roomPath(this.room, 'cursors'),
          { body: { user_id: from.user, session_id: from.session, data: what } });
      } catch (error) {
        call(this.options.onSendFailed, error); // the next one may do better
      }
      await new Promise((resolve) => this.client.clock.setTimeout(resolve, this.options.throttleMs ?? 50));
    }
    this.#sending = false;
  }

  async _polled(signal) {
    const wait = this.options.waitMs ?? 25_000;
    const path = withQuery(roomPath(this.room, 'cursors'),
      { since: this.#seq ?? undefined, wait_ms: this.#seq === null ? undefined : wait });
    const reply = await this.client.request('GET', path, { signal, timeoutMs: wait * 1.1 + REQUEST_TIMEOUT_MS });
    this._answered();
    if (reply.reset || this.#seq === null) this.cursors.clear();
    for (const { user_id: user, session_id: session } of reply.gone ?? []) this.cursors.delete(`${user}\n${session}`);
    for (const c of reply.cursors) {
      this.cursors.set(`${c.user_id}\n${c.session_id}`,
        { userId: c.user_id, sessionId: c.session_id, data: c.data, at: c.at, seq: c.seq });
    }
    this.#seq = reply.seq;
    call(this.options.onChange, this.cursors);
    return 0;
  }

  _streamed(signal) {
    return this._polled(signal); // twenty replies a second are as good as a stream
  }
}
