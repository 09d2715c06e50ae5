// SPDX-License-Identifier: Apache-2.0
// Following a room: a snapshot, then every event in order, each once.
import { Room } from './fold.js';
import { roomPath, withQuery } from './http.js';
import { Follower, call } from './member.js';

export class Watch extends Follower {
  #epoch = null;
  #revision = null; // of the last that has come, where `state` is what the handlers have been told; null: no snapshot yet
  #queue = [];
  #busy = false;
  #anew = false; // whether the last reply was a snapshot
  #stale = false; // a snapshot is on its way, and `state` is not to be believed to the end

  constructor(client, room, options) {
    super(client, room, options);
    this.state = new Room(this.room);
    this._start();
  }

  /** Forgets what was known and asks for a snapshot. */
  resync() {
    this.#forget();
    this._wake(true);
  }

  #forget() {
    this.#revision = null;
    this.#queue = [];
    this.#stale = true;
    return false;
  }

  #path(wait) {
    const { kinds, limit } = this.options;
    const since = this.#revision;
    const from = since === null ? {} : { since, epoch: this.#epoch, wait_ms: wait };
    return withQuery(roomPath(this.room, 'presence'), { ...from, kinds: kinds?.join(','), limit });
  }

  async _polled(signal) {
    const wait = this.options.waitMs ?? 25_000;
    return this._poll(this.#path(wait), wait, signal, (reply) => {
      const before = this.#revision, anew = this.#anew;
      this.#anew = reply.mode === 'snapshot';
      if (!this.#take(reply)) return null;
      return this.#anew ? !anew : this.#revision !== before; // one snapshot after the other leads nowhere
    });
  }

  _streamed(signal) {
    return this._stream(this.#path(null), signal, ({ event, data, id }) => {
      if (data === undefined) return this.#moved(Number(id));
      if (event === 'session') return true;
      const news = JSON.parse(data);
      return this.#take(event === 'snapshot' ? news : { events: [news], revision: news.revision });
    });
  }

  /** With `kinds` the position moves on without events. */
  #moved(revision) {
    if (this.#revision !== null && revision > this.#revision) this.#revision = revision;
    return true;
  }

  /** A reply, in the order in which they come. @return false when it goes on from a snapshot */
  #take(reply) {
    const gaps = this.options.kinds !== undefined;
    if (reply.mode === 'snapshot') {
      this.#epoch = reply.epoch;
      this.#revision = reply.revision;
      this.#queue = [{ snapshot: reply }];
      this.#stale = false;
    } else {
      for (const event of reply.events ?? []) {
        if (this.#revision === null || (event.revision > this.#revision + 1 && !gaps)) return this.#forget(); // one is missing
        if (event.revision <= this.#revision) continue; // seen already
        this.#revision = event.revision;
        this.#queue.push({ event });
      }
      if (gaps) this.#moved(reply.revision);
    }
    // Whoever takes longer than the room moves gets where it is now instead of all that led there.
    if (this.#queue.length > (this.options.bufferMost ?? 1000)) return this.#forget();
    this.#tell();
    return true;
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
      if (this.#queue.length === 0 && !this.#stale) await call(this.options.onChange, this.state);
    }
    this.#busy = false;
  }
}
