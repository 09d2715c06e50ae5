// SPDX-License-Identifier: Apache-2.0
// Where others point, and where this session does. Nothing of it is stored anywhere.
import { roomPath, withQuery } from './http.js';
import { Follower, call } from './member.js';
import { Alarm, Backoff } from './time.js';

const key = ({ user_id: user, session_id: session }) => `${user}\n${session}`;

export class Cursors extends Follower {
  #seq = null;
  #anew = false; // whether the last reply was a whole one
  #next = null;
  #sending = false;

  constructor(client, room, options) {
    super(client, room, options);
    this.cursors = new Map();
    this._start();
  }

  /**
   * Sends where `stay` points, at most every `throttleMs` (50); of several in between the last one goes.
   * @return when nothing waits any more; at once where an earlier call is still sending
   */
  async send(stay, data) {
    this.#next = { stay, data };
    if (this.#sending) return;
    this.#sending = true;
    const backoff = new Backoff(), alarm = new Alarm(this._client._clock);
    while (this.#next && !this.over) {
      const { stay: from, data: what } = this.#next;
      this.#next = null;
      let pause = this.options.throttleMs ?? 50;
      try {
        await this._client.request('POST', roomPath(this.room, 'cursors'),
          { body: { user_id: from.user, session_id: from.session, data: what } });
        backoff.reset();
      } catch (error) {
        call(this.options.onSendFailed, error); // the next one may do better
        if (error.transient) pause = Math.max(pause, backoff.next(error.retryAfterMs));
      }
      await alarm.wait(pause);
    }
    this.#sending = false;
  }

  async _polled(signal) {
    const wait = this.options.waitMs ?? 25_000;
    const first = this.#seq === null;
    const path = withQuery(roomPath(this.room, 'cursors'), { since: this.#seq, wait_ms: first ? null : wait });
    return this._poll(path, wait, signal, (reply) => {
      const before = this.#seq, anew = this.#anew;
      this.#anew = first || reply.reset === true;
      if (this.#anew) this.cursors.clear();
      for (const gone of reply.gone) this.cursors.delete(key(gone));
      for (const cursor of reply.cursors) this.#put(cursor);
      this.#seq = reply.seq;
      call(this.options.onChange, this.cursors);
      return this.#anew ? !anew : this.#seq !== before;
    });
  }

  _streamed(signal) {
    const first = this.#seq === null;
    if (first) this.cursors.clear();
    return this._stream(withQuery(roomPath(this.room, 'cursors'), { since: this.#seq }), signal, ({ event, data, id }) => {
      if (event === 'reset') this.cursors.clear();
      else if (event === 'gone') this.cursors.delete(key(JSON.parse(data)));
      else if (event === 'cursor') this.#put(JSON.parse(data));
      if (id !== undefined) this.#seq = Number(id);
      if (event !== undefined) call(this.options.onChange, this.cursors);
      return true;
    });
  }

  #put(cursor) {
    const { user_id: userId, session_id: sessionId, data, at, seq } = cursor;
    this.cursors.set(key(cursor), { userId, sessionId, data, at, seq });
  }
}
