// SPDX-License-Identifier: Apache-2.0
// What a stay, a watch and cursors have in common: a status that is told, an end, and a loop that the page's coming and
// going, a sleep of the machine and a new credential interrupt.
import { REQUEST_TIMEOUT_MS, StillHereError } from './http.js';
import { Alarm, Backoff, RETRY_MOST_MS } from './time.js';

/** Browsers have few connections to a server, and what waits must not hold up heartbeats. */
const BEHIND = { priority: 'low' };
/** The longest pause between polls of a server that answers at once with nothing that leads on. */
const HASTY_MOST_MS = 5_000;
/** A stream that stood for so long was a good one. */
const STREAM_STOOD_MS = 5_000;

/** Calls a handler; what it throws is reported as any uncaught error is, and breaks nothing here. */
export function call(handler, ...args) {
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

export function checkId(value, what) {
  const text = String(value ?? '');
  const bytes = new TextEncoder().encode(text).length;
  // A lone surrogate would be sent as another character.
  const sound = bytes > 0 && bytes <= 128 && text !== '.' && text !== '..' && !/[\u0000-\u001f\u007f]/.test(text) &&
    !/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(text);
  if (!sound) throw new TypeError(`${what} must be 1 to 128 bytes without control characters, and not "." or ".."`);
  return text;
}

export class Member {
  #ending = null;
  status = 'connecting';
  error = null;

  constructor(client, room, options) {
    this._client = client;
    this.room = checkId(room, 'room');
    this.options = options;
    this._alarm = new Alarm(client._clock);
    this._backoff = new Backoff();
    this.ended = new Promise((resolve) => {
      this.#ending = resolve;
    });
  }

  /** Whether it has ended for good. */
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
    this._client._gone(this);
    this.#ending({ status, error: this.error });
  }

  /** Runs `turn` again and again while the same run is on; it returns the time to the next one. */
  async _loop(turn) {
    const { signal } = (this._run = new AbortController());
    const goesOn = () => !signal.aborted && !this.over;
    while (goesOn()) {
      let pause, held = false;
      try {
        pause = await turn(signal);
      } catch (error) {
        if (!goesOn()) return;
        const known = error instanceof StillHereError ? error : new StillHereError(0, 'fault', String(error));
        pause = this._failed(known);
        held = known.retryAfterMs !== null;
      }
      if (goesOn() && pause > 0) await this.#rest(pause, held, goesOn);
    }
  }

  /** A pause that the server asked for is `held`: nothing here shortens it but an interruption of the run. */
  async #rest(pause, held, goesOn) {
    const { steady } = this._client._clock;
    const until = steady() + pause;
    do await this._alarm.wait(Math.max(1, until - steady()));
    while (held && goesOn() && steady() < until);
  }

  /** Interrupts the run, with what is on its way. */
  _pause() {
    this._run?.abort();
    this._alarm.ring();
    this._alarm = new Alarm(this._client._clock);
  }

  /** Whether it is worth while to try again. */
  _curable(error) {
    return error.transient || (error.status === 401 && call(this.options.onUnauthorized, error) === true);
  }
}

/** What watches and cursors have in common: they stop with the page and begin again with it. */
export class Follower extends Member {
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
    this._backoff.reset();
    this._start();
  }

  /** @param sure whether the connection may be one that nobody answers any more, as after a sleep */
  _wake(sure) {
    if (this.over || this.status === 'suspended') return;
    this._backoff.reset();
    if (!sure) return this._alarm.ring();
    this._pause();
    this._start();
  }

  _failed(error) {
    if (!this._curable(error)) {
      this._set('ended', error);
      return 0;
    }
    this._set('retrying', error);
    return this._backoff.next(error.retryAfterMs, this.options.retryMostMs ?? RETRY_MOST_MS);
  }

  /**
   * One long poll. @param take gets the reply, and says whether that led on; null: the next one begins anew
   * @return the pause to the next one: none after news; some where the server does not wait although it should
   */
  async _poll(path, wait, signal, take) {
    const { steady } = this._client._clock;
    const began = steady();
    const reply = await this._client.request('GET', path, { signal, timeoutMs: wait * 1.1 + REQUEST_TIMEOUT_MS, ...BEHIND });
    const waited = steady() - began >= Math.min(wait, 1000) / 2;
    this._set('live');
    const led = take(reply);
    if (led === null) return this._backoff.next(null, HASTY_MOST_MS);
    if (wait === 0) return led && reply.more ? 0 : reply.next_poll_ms ?? 25_000;
    if (!led && !waited) return this._backoff.next(null, HASTY_MOST_MS);
    this._backoff.reset();
    return 0;
  }

  /** One stream from its beginning to its end. @param take says false to give it up. @return the pause to the next one */
  async _stream(path, signal, take) {
    const { steady } = this._client._clock;
    const stream = await this._client.request('GET', path, { signal, stream: true, ...BEHIND });
    const began = steady();
    this._set('live');
    let givenUp = false;
    try {
      await stream.read((message) => {
        if (givenUp || take(message) !== false) return;
        givenUp = true;
        stream.stop();
      });
    } catch (error) {
      if (!givenUp) throw error;
    } finally {
      if (steady() - began >= STREAM_STOOD_MS) this._backoff.reset();
    }
    return givenUp ? this._backoff.next() : stream.retryMs ?? this._backoff.next();
  }
}
