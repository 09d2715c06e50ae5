// SPDX-License-Identifier: Apache-2.0
// A lease that is held: renewed when the server said, until it is closed or refused.
import { REQUEST_TIMEOUT_MS, StillHereError, roomPath, withQuery } from './http.js';
import { Member, call, checkId } from './member.js';
import { Alarm, RETRY_MOST_MS } from './time.js';

const REVISION_MAX = Number.MAX_SAFE_INTEGER;
/** The shortest time to live that a server grants, unless it was told otherwise. */
const SHORT_MS = 5_000;
/** How long a close waits for the answer to the first heartbeat, and at most for what the server asks for. */
const CLOSE_WAIT_MS = 2_000;
const CLOSE_RETRY_MOST_MS = 5_000;

function randomId(prefix) {
  const bytes = new Uint8Array(12);
  if (globalThis.crypto?.getRandomValues) globalThis.crypto.getRandomValues(bytes);
  else for (let i = 0; i < bytes.length; i++) bytes[i] = Math.floor(Math.random() * 256);
  return prefix + Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');
}

export class Stay extends Member {
  #sent = 0; // the highest revision that was sent or heard of
  #expiry = null; // by the steady clock; null: nothing was answered yet
  #due = 0;
  #conflicts = 0;
  #beating = null; // the heartbeat that is on its way
  #closing = null;
  #settle;

  constructor(client, room, user, options) {
    super(client, room, options);
    this.user = checkId(user, 'user');
    // A name of its own for each page that is opened: a duplicated tab is another session, and a reload is one too.
    this.session = options.session === undefined ? randomId('s-') : checkId(options.session, 'session');
    this.meta = options.meta;
    this.status = 'joining';
    this.lease = null;
    this.ready = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    this.ready.catch(() => {});
    this.#start();
  }

  get revision() {
    return this.#sent;
  }

  /** Other metadata from now on, sent at once. */
  setMeta(meta) {
    this.meta = meta;
    this.renew();
  }

  /** Another time to live from now on, sent at once. */
  setTtl(ttlMs) {
    this.options.ttlMs = ttlMs;
    this.renew();
  }

  /** Renews now, or as soon as the server lets it. */
  renew() {
    this.#due = 0;
    this._alarm.ring();
  }

  /** Ends the stay. @return whether the server has said so; if not, the lease runs out by itself */
  close() {
    if (this.status === 'ended') return Promise.resolve(false);
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close() {
    const alarm = new Alarm(this._client._clock);
    const unanswered = this.#unanswered;
    this._set('closed');
    this.#settle.reject(new StillHereError(0, 'closed', 'closed before it was granted'));
    if (unanswered) {
      await Promise.race([this.#beating, alarm.wait(CLOSE_WAIT_MS)]);
      alarm.ring();
    }
    this._pause();
    for (let attempt = 0; attempt < 3; attempt++) {
      try {
        await this._client.request('DELETE', this.#closePath());
        return true;
      } catch (error) {
        // Where the first heartbeat may still be on its way, it is looked for twice.
        const again = error.status === 404 ? unanswered && attempt === 0 : error.transient;
        if (error.status === 404 && !again) return true;
        if (!again || error.retryAfterMs > CLOSE_RETRY_MOST_MS) return false;
        await new Alarm(this._client._clock).wait(this._backoff.next(error.retryAfterMs, CLOSE_WAIT_MS));
      }
    }
    return false;
  }

  /** The page goes, for ever or into the browser's memory. */
  _hide() {
    if (this.over || this.status === 'suspended') return;
    const unanswered = this.#unanswered;
    this._pause();
    this._set('suspended');
    if (this.options.closeOnPageHide === false) return;
    this.#expiry = null;
    if (unanswered) {
      // The close may overtake the first heartbeat, and what never was cannot be closed; the lease would then stand for all
      // its time. A second heartbeat, newer and for hardly any time, makes the first one old wherever that is.
      this.#sent++;
      this._client._farewell('PUT', '/leases', this.#heartbeat(Math.min(this.options.ttlMs ?? SHORT_MS, SHORT_MS)));
    }
    this._client._farewell('DELETE', this.#closePath());
  }

  /** It came back out of it: a newer revision opens what was closed, and the close, should it be late, is too old. */
  _show() {
    if (this.status === 'suspended') this.#start();
  }

  /** @param sure whether what is on its way may be on a connection that nobody answers any more, as after a sleep */
  _wake(sure) {
    if (this.over || this.status === 'suspended') return;
    if (sure) {
      this._pause();
      this.#start();
    } else if (this.status !== 'live' || this._client._clock.steady() >= this.#due) {
      this._backoff.reset();
      this.renew();
    }
  }

  #start() {
    if (this.status === 'suspended') this._set('joining');
    this._backoff.reset();
    this._loop(async (signal) => {
      const beat = this.#beat(signal);
      const settled = (this.#beating = beat.catch(() => {}));
      try {
        return await beat;
      } finally {
        if (this.#beating === settled) this.#beating = null;
      }
    });
  }

  /** Whether a heartbeat is on its way before which there was none: nobody can say whether there is a lease. */
  get #unanswered() {
    return this.#beating !== null && this.#expiry === null;
  }

  #closePath() {
    const path = `leases/${encodeURIComponent(this.user)}/${encodeURIComponent(this.session)}`;
    return withQuery(roomPath(this.room, path), { revision: this.#sent });
  }

  #heartbeat(ttl) {
    return { room_id: this.room, user_id: this.user, session_id: this.session, revision: this.#sent, ttl_ms: ttl,
      meta: this.meta };
  }

  /**
   * One heartbeat, always with a revision of its own: one that was lost on its way and comes late is then too old. Where
   * the session was used before, the first one is refused, with the revision from which it goes on.
   */
  async #beat(signal) {
    const { steady } = this._client._clock;
    const began = steady();
    this.#sent++;
    const ttl = this.options.ttlMs;
    const answer = await this._client.request('PUT', '/leases', {
      signal,
      timeoutMs: Math.min(REQUEST_TIMEOUT_MS, ttl ? ttl / 3 : REQUEST_TIMEOUT_MS),
      body: this.#heartbeat(ttl),
    });
    this.#sent = Math.max(this.#sent, answer.lease.revision);
    if (signal.aborted || this.over) return 0;
    if (answer.decision !== 'accepted') return 1; // another page's heartbeat had this revision; nothing was renewed
    // Both times are the server's: only their difference means anything here.
    this.#expiry = began + Date.parse(answer.lease.expires_at) - Date.parse(answer.server_time);
    this.#conflicts = 0;
    this._backoff.reset();
    const pause = Math.max(100, answer.renew_after_ms);
    this.#due = steady() + pause;
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
      this.#sent = Math.max(stored, this.#sent);
      this.#conflicts++;
      return 1;
    }
    if (!older && !this._curable(error)) {
      this.#settle.reject(error);
      this._set('ended', error);
      return 0;
    }
    this.#conflicts = 0;
    const left = this.#expiry === null ? null : this.#expiry - this._client._clock.steady();
    if (left !== null && left <= 0) this._set('lapsed', error);
    else this._set(left === null ? 'joining' : 'retrying', error);
    // While the lease may still live there is time for several more attempts, whatever the pauses have grown to.
    const alive = left !== null && left > 0;
    const most = alive ? Math.max(250, left / 4) : this.options.retryMostMs ?? RETRY_MOST_MS;
    const pause = this._backoff.next(error.retryAfterMs, most);
    return alive && error.retryAfterMs === null ? Math.min(pause, left) : pause;
  }
}
