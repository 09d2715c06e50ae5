// SPDX-License-Identifier: Apache-2.0
// A lease of one's own in the open room, and everybody's cursors on a pad.
import { $, WAIT_MS, el, flag, hue, named, say } from './dom.js';

/** A window that is killed takes its cursor with it after so long; hidden pages may hardly run timers, and get longer. */
const TTL_MS = 15_000;
const TTL_HIDDEN_MS = 180_000;
/** Not at once: a browser that is quit hides its pages first, and may never let them say goodbye. */
const HIDDEN_AFTER_MS = 2_000;
const ttl = () => (document.visibilityState === 'hidden' ? TTL_HIDDEN_MS : TTL_MS);
const STEP = 0.02;

const NAMES = ['Ada', 'Bo', 'Chidi', 'Dao', 'Emi', 'Farid', 'Grace', 'Hana', 'Ines', 'Jun', 'Kofi', 'Lea', 'Mika', 'Noor', 'Oti', 'Pia'];
const ARROW = 'M1 1l5.2 14.2 2.3-6.2 6.5-2.1z';

export function someName(taken = []) {
  const free = NAMES.filter((n) => !taken.includes(n));
  const from = free.length ? free : NAMES;
  return from[Math.floor(Math.random() * from.length)];
}

function arrow() {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 16 16');
  const shape = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  shape.setAttribute('d', ARROW);
  svg.append(shape);
  return svg;
}

/** What others send is theirs: only two numbers between 0 and 1 count as a place. */
function place(data) {
  const fraction = (v) => (typeof v === 'number' && Number.isFinite(v) ? Math.min(1, Math.max(0, v)) : null);
  const x = fraction(data?.x), y = fraction(data?.y);
  return x === null || y === null ? null : { x, y };
}

export class Playground {
  #client;
  #room = null;
  #cursors = null;
  #hidden;
  #stay = null;
  #shown = new Map();
  #own = null;
  #at = { x: 0.5, y: 0.5 };
  #onJoined;
  #pad = $('pad');
  /** The session that the token names, if it names one. */
  tokenSession = undefined;

  /** @param onJoined is called with the name, or null, when that changes */
  constructor(client, onJoined) {
    this.#client = client;
    this.#onJoined = onJoined;
    $('join-form').addEventListener('submit', (event) => {
      event.preventDefault();
      this.join($('join-name').value.trim());
    });
    $('leave').addEventListener('click', () => this.leave());
    this.#pad.addEventListener('pointermove', (event) => this.#point(event));
    this.#pad.addEventListener('pointerdown', (event) => this.#point(event));
    this.#pad.addEventListener('keydown', (event) => this.#key(event));
    document.addEventListener('visibilitychange', () => {
      clearTimeout(this.#hidden);
      this.#hidden = setTimeout(() => this.#stay?.setTtl(ttl()), document.visibilityState === 'hidden' ? HIDDEN_AFTER_MS : 0);
    });
    this.#controls();
  }

  get name() {
    return this.#stay?.user ?? null;
  }

  get session() {
    return this.#stay?.session ?? null;
  }

  /** Another room; the stay in the one before ends. */
  open(room) {
    this.leave();
    this.#cursors?.close();
    this.#cursors = null;
    this.#draw(new Map());
    this.#room = room;
    if (room !== null) {
      this.#cursors = this.#client.cursors(room, {
        waitMs: WAIT_MS,
        throttleMs: 60,
        retryMostMs: 5_000,
        onChange: (cursors) => this.#draw(cursors),
        onStatus: (status) => flag(this.#pad.parentElement, 'data-stale', status === 'retrying'),
        onSendFailed: (error) => {
          if (error.status === 409 || error.status === 403) say($('join-note'), 'Your cursor is not passed on: you have no lease right now.');
        },
      });
    }
    this.#controls();
  }

  /** @param session of the token, where it names one */
  join(name, session) {
    if (this.#room === null || this.#stay) return;
    try {
      this.#stay = this.#client.join(this.#room, name, {
        session: session ?? this.tokenSession,
        ttlMs: ttl(),
        retryMostMs: 5_000,
        meta: { page: true },
        onStatus: (status, error) => this.#status(status, error),
      });
    } catch (error) {
      say($('join-note'), `That cannot be a name: ${error.message}.`);
      return;
    }
    this.#onJoined(this.#stay.user);
    this.#status('joining', null);
    this.#controls();
    this.#showOwn();
  }

  leave() {
    const stay = this.#stay;
    if (!stay) return;
    this.#stay = null;
    stay.close();
    this.#left('You have left.');
    this.#onJoined(null);
  }

  #left(why) {
    this.#own?.remove();
    this.#own = null;
    say($('join-note'), why);
    this.#controls();
  }

  #status(status, error) {
    const words = {
      joining: 'Joining …',
      live: 'You are here: point, or use the arrow keys. Close the window, and your cursor goes.',
      retrying: 'The server does not answer; your lease still runs. Trying again …',
      lapsed: 'Your lease has run out while the server did not answer. Trying again …',
    };
    if (status === 'live') this.#send();
    if (status === 'ended') {
      this.#stay = null;
      this.#onJoined(null);
      this.#left(`You cannot stay here: ${error?.message ?? 'refused'}.`);
    } else if (words[status]) {
      say($('join-note'), words[status]);
    }
  }

  #controls() {
    const joined = this.#stay !== null;
    $('join').hidden = joined;
    $('leave').hidden = !joined;
    $('join-name').disabled = joined || this.#room === null;
    $('join').disabled = this.#room === null;
    if (joined) $('join-name').value = this.#stay.user;
    flag(this.#pad, 'data-joined', joined);
  }

  #point(event) {
    if (!this.#stay) return;
    const box = this.#pad.getBoundingClientRect();
    this.#move((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  }

  #key(event) {
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    if (!this.#stay || (dx === 0 && dy === 0)) return;
    event.preventDefault();
    const step = event.shiftKey ? STEP * 5 : STEP;
    this.#move(this.#at.x + dx * step, this.#at.y + dy * step);
  }

  #move(x, y) {
    const round = (v) => Math.round(Math.min(1, Math.max(0, v)) * 10_000) / 10_000;
    this.#at = { x: round(x), y: round(y) };
    this.#showOwn();
    this.#send();
  }

  #send() {
    if (this.#stay?.status === 'live' && this.#cursors) this.#cursors.send(this.#stay, this.#at);
  }

  #showOwn() {
    if (!this.#stay) return;
    if (!this.#own) {
      this.#own = this.#make(this.#stay.user, 'you');
      this.#own.setAttribute('data-own', '');
    }
    this.#put(this.#own, this.#at);
  }

  #make(user, label) {
    const node = el('div', { class: 'cursor' }, arrow(), named(label, { class: 'label' }));
    node.style.setProperty('--hue', hue(user));
    this.#pad.append(node);
    return node;
  }

  #put(node, at) {
    node.style.left = `${at.x * 100}%`;
    node.style.top = `${at.y * 100}%`;
    flag(node, 'data-flip', at.x > 0.75);
    flag(node, 'data-low', at.y > 0.85);
  }

  #draw(cursors) {
    for (const [key, node] of this.#shown) {
      if (cursors.has(key)) continue;
      node.remove();
      this.#shown.delete(key);
    }
    for (const [key, cursor] of cursors) {
      const at = place(cursor.data);
      if (!at || cursor.sessionId === this.session) continue;
      let node = this.#shown.get(key);
      if (!node) this.#shown.set(key, (node = this.#make(cursor.userId, cursor.userId)));
      this.#put(node, at);
    }
  }
}
