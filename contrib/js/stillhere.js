// SPDX-License-Identifier: Apache-2.0
// The client of stillhere, a presence server: hold leases, watch rooms, pass cursors on. For browsers and Node 18 or
// newer, without dependencies. README.md beside this file shows how; stillhere.d.ts says what each part takes and gives.
//
// Whether somebody is still here is judged by the server's database alone. Clocks of this side decide when to ask, and
// never what is true: a lease has ended when the server says so, or when its whole time has gone by without an answer.
import { Cursors } from './cursors.js';
import { Room } from './fold.js';
import { Http, StillHereError } from './http.js';
import { Stay } from './lease.js';
import { systemClock, watchSleep } from './time.js';
import { Watch } from './watch.js';

export { Cursors, Room, Stay, StillHereError, Watch };

/** One server (or several behind one address), one credential. */
export class StillHere {
  #http;
  #page;
  #members = new Set();
  #unlisten = null;

  constructor({ url, token = null, fetch = null, clock = {}, page } = {}) {
    const here = globalThis.location?.origin;
    const base = String(url ?? (here && here !== 'null' ? here : 'http://127.0.0.1:7470')).replace(/\/+$/, '');
    this._clock = { ...systemClock, ...clock };
    this.#http = new Http(base, token, fetch ?? ((...args) => globalThis.fetch(...args)), this._clock);
    this.#page = page !== undefined ? page : globalThis.document && globalThis.addEventListener ? globalThis : null;
  }

  /** Holds a lease of a session of `user` in `room` until it is closed. */
  join(room, user, options = {}) {
    return this.#add(new Stay(this, room, user, { ...options }));
  }

  /** Follows a room. */
  watch(room, options = {}) {
    return this.#add(new Watch(this, room, { ...options }));
  }

  /** Sends and follows the cursors of a room. */
  cursors(room, options = {}) {
    return this.#add(new Cursors(this, room, { ...options }));
  }

  /** Another credential from now on; what waits for an answer asks again with it. */
  setToken(token) {
    this.#http.setToken(token);
    for (const member of [...this.#members]) member._wake(true);
  }

  /** Closes everything. */
  async close() {
    await Promise.all([...this.#members].map((member) => member.close()));
  }

  /** One request. @return its JSON; throws StillHereError */
  request(method, path, options) {
    return this.#http.request(method, path, options);
  }

  _farewell(method, path, body) {
    this.#http.farewell(method, path, body);
  }

  _gone(member) {
    this.#members.delete(member);
    if (this.#members.size > 0) return;
    this.#unlisten?.();
    this.#unlisten = null;
  }

  #add(member) {
    this.#members.add(member);
    this.#unlisten ??= this.#listen();
    return member;
  }

  /** What the page, the machine and its network do. @return what ends the listening */
  #listen() {
    const page = this.#page;
    const tell = (what, ...args) => {
      for (const member of [...this.#members]) member[what](...args);
    };
    const listeners = [
      ['pagehide', () => tell('_hide')],
      ['pageshow', (event) => event.persisted && tell('_show')],
      ['resume', () => tell('_wake', true)],
      ['online', () => tell('_wake', true)],
      ['offline', () => tell('_wake', true)],
      ['visibilitychange', () => page.document?.visibilityState !== 'hidden' && tell('_wake', false)],
    ];
    // `resume` and `visibilitychange` come from the document; the second bubbles up to the window, the first does not.
    const target = (name) => (name === 'resume' && page.document ? page.document : page);
    if (page) for (const [name, f] of listeners) target(name).addEventListener(name, f);
    const unwatch = watchSleep(this._clock, () => tell('_wake', true));
    return () => {
      unwatch();
      if (page) for (const [name, f] of listeners) target(name).removeEventListener(name, f);
    };
  }
}
