// SPDX-License-Identifier: Apache-2.0
// The people of one room, and what happens in it.
import { $, WAIT_MS, ago, el, every, flag, hue, initials, named, say } from './dom.js';

const PEOPLE_MOST = 200;
const EARLIER_MOST = 6;
const EVENTS_MOST = 200;
const HISTORY = 40;

const order = new Intl.Collator(undefined, { numeric: true });
const byName = (a, b) => order.compare(a.userId, b.userId) || (a.userId < b.userId ? -1 : 1);
const counted = (n, one, many) => `${n.toLocaleString('en')} ${n === 1 ? one : many}`;

/** What an event says. */
const WORDS = {
  'lease.granted': (who) => [who, ' opened a tab'],
  'lease.renewed': (who) => [who, ' changed what a tab says of itself'],
  'lease.expired': (who) => [who, ': a tab stopped renewing'],
  'session.closed': (who) => [who, ' closed a tab'],
  'membership.revoked': (who) => ['The membership of ', who, ' was revoked'],
  'user.online': (who) => [who, ' is here'],
  'user.offline': (who) => [who, ' has left'],
};

/** What came with a heartbeat just now. */
const ACTIVE = new Set(['lease.granted', 'lease.renewed']);

const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });
const day = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short' });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'long' });

/** When it was; of another day than today, the day. */
function timeOf(text) {
  const at = new Date(text);
  const today = at.toDateString() === new Date().toDateString();
  return el('time', { datetime: text, title: whole.format(at) }, (today ? clock : day).format(at));
}

export class RoomView {
  #client;
  #onState;
  #onEvent;
  #mySession;
  #watch = null;
  #rows = new Map();
  #seen = new Map(); // user -> when they were last active, by the clock of performance.now()
  #refresh;
  #soon = null;

  /**
   * onState is told ('waiting'|'live'|'lost'|'refused', error), and onEvent of each event as it happens; mySession gives the
   * session that this page holds, or null.
   */
  constructor(client, { onState, onEvent, mySession }) {
    this.#client = client;
    this.#onState = onState;
    this.#onEvent = onEvent;
    this.#mySession = mySession;
    this.#refresh = every(10_000, () => this.#lastSeen());
    every(5_000, () => this.#words());
  }

  get people() {
    return this.#watch ? [...this.#watch.state.users.keys()] : [];
  }

  /** Another room, or null. Throws TypeError for what cannot be a name. */
  open(room) {
    this.#watch?.close();
    this.#watch = null;
    this.#clear();
    $('events').replaceChildren();
    say($('people-room'), room ?? '');
    $('people-in').hidden = room === null;
    this.#note(room === null ? 'No room is open.' : 'Looking who is here …');
    $('events-note').hidden = false;
    flag($('people').parentElement, 'data-stale', false);
    if (room === null) return;
    const watch = this.#client.watch(room, {
      waitMs: WAIT_MS,
      retryMostMs: 5_000,
      onSnapshot: (state, snapshot) => watch === this.#watch && this.#begin(watch, snapshot),
      onEvent: (event) => watch === this.#watch && this.#happened(event),
      onChange: () => watch === this.#watch && this.#people(),
      onStatus: (status, error) => watch === this.#watch && this.#status(status, error),
    });
    this.#watch = watch;
  }

  #status(status, error) {
    flag($('people').parentElement, 'data-stale', status === 'retrying');
    if (status === 'live') {
      this.#people();
    } else if (status === 'retrying') {
      this.#note('No connection: this is how it was. Trying again …');
    } else if (status === 'ended') {
      this.#clear();
      this.#note(error?.status === 401 ? 'A room is shown to those who may see it.'
        : `This room cannot be watched: ${error?.message ?? 'refused'}.`);
    }
    this.#onState({ live: 'live', retrying: 'lost', ended: 'refused' }[status] ?? 'waiting', error);
  }

  #clear() {
    this.#rows.clear();
    this.#seen.clear();
    $('people').replaceChildren();
    $('earlier').hidden = true;
    say($('people-count'), '');
  }

  #note(text) {
    say($('people-note'), text);
    $('people-note').hidden = text === '';
  }

  // -- people ----------------------------------------------------------------------------------------------------------

  #people() {
    const { users, counts, revision } = this.#watch.state;
    if (revision === null) return;
    const all = [...users.values()].sort(byName);
    const shown = all.slice(0, PEOPLE_MOST);
    const wanted = new Set(shown.map((u) => u.userId));
    for (const [user, row] of this.#rows) {
      if (wanted.has(user)) continue;
      row.node.remove();
      this.#rows.delete(user);
    }
    shown.forEach((user, i) => {
      let row = this.#rows.get(user.userId);
      if (!row) this.#rows.set(user.userId, (row = this.#row(user)));
      row.user = user;
      const at = $('people').children[i];
      if (at !== row.node) $('people').insertBefore(row.node, at ?? null);
    });
    say($('people-count'), counts.users === 0 ? '' : `${counted(counts.users, 'person', 'people')}, ${counted(counts.sessions, 'tab', 'tabs')}`);
    const left = all.length - shown.length;
    this.#note(all.length === 0 ? 'Nobody is here right now.' : left > 0 ? `The first ${PEOPLE_MOST}; ${counted(left, 'more is', 'more are')} not shown.` : '');
    this.#words();
    this.#soon ??= setTimeout(() => {
      this.#soon = null;
      this.#refresh();
    }, 1_000);
  }

  #row(user) {
    const avatar = el('span', { class: 'avatar', 'aria-hidden': 'true' }, initials(user.userId));
    avatar.style.setProperty('--hue', hue(user.userId));
    const you = el('span', { class: 'tag', hidden: '' }, 'you');
    const simulated = el('span', { class: 'tag', hidden: '' }, 'simulated');
    const about = el('span', { class: 'about' });
    const title = el('span', { class: 'title' }, named(user.userId, { class: 'name' }), you, simulated);
    return { node: el('li', { class: 'person' }, avatar, title, about), about, you, simulated, user };
  }

  /** What changes by itself as time goes by. */
  #words() {
    const now = performance.now();
    for (const [id, row] of this.#rows) {
      const { user } = row;
      const at = this.#seen.get(id);
      const active = at === undefined ? '' : `active ${ago(now - at)}`;
      const n = user.sessions.size;
      flag(row.node, 'data-leaving', user.leaving);
      say(row.about, [user.leaving ? 'leaving' : active, user.leaving ? active : n > 1 ? `${n} tabs` : ''].filter(Boolean).join(' · ') || 'here');
      row.you.hidden = !user.sessions.has(this.#mySession());
      if (n > 0) row.simulated.hidden = [...user.sessions.values()].every((s) => s.meta?.simulated !== true);
    }
    for (const node of $('earlier-list').children) say(node.lastChild, ago(now - Number(node.dataset.at)));
  }

  async #lastSeen() {
    const watch = this.#watch;
    if (!watch || watch.status !== 'live') return;
    let reply;
    try {
      reply = await this.#client.request('GET', `/rooms/${encodeURIComponent(watch.room)}/last-seen?limit=${PEOPLE_MOST + EARLIER_MOST}`);
    } catch {
      return; // the state of the watch says what is wrong
    }
    if (watch !== this.#watch) return;
    const now = performance.now();
    this.#seen = new Map(reply.users.filter((u) => u.last_seen_ago_ms !== null).map((u) => [u.user_id, now - u.last_seen_ago_ms]));
    const gone = reply.users.filter((u) => !watch.state.users.has(u.user_id) && this.#seen.has(u.user_id)).slice(0, EARLIER_MOST);
    $('earlier').hidden = gone.length === 0;
    $('earlier-list').replaceChildren(...gone.map((u) => {
      const at = this.#seen.get(u.user_id);
      return el('li', { 'data-at': at }, named(u.user_id, { class: 'name' }), el('span', { class: 'when' }, ago(now - at)));
    }));
    this.#words();
  }

  // -- events ----------------------------------------------------------------------------------------------------------

  /** A snapshot: the room as it is. What led there is fetched once, as far as the server keeps it. */
  async #begin(watch, snapshot) {
    this.#refresh();
    const list = $('events');
    if (snapshot.reason !== 'requested' && list.children.length > 0) {
      list.prepend(el('li', { class: 'gap' }, `Some events are not shown here: the room was read anew (${snapshot.reason}).`));
      return;
    }
    if (list.children.length > 0 || snapshot.revision === 0) return;
    try {
      const since = Math.max(0, snapshot.revision - HISTORY);
      const reply = await this.#client.request('GET', `/rooms/${encodeURIComponent(watch.room)}/presence?since=${since}` +
        `&epoch=${encodeURIComponent(snapshot.epoch)}&wait_ms=0&limit=${HISTORY}`);
      if (watch !== this.#watch) return;
      for (const event of reply.events ?? []) {
        if (event.revision <= snapshot.revision) this.#write(event, 'past');
      }
    } catch {
      // Then the list begins with what comes.
    }
  }

  #happened(event) {
    if (ACTIVE.has(event.kind)) this.#seen.set(event.user_id, performance.now());
    this.#write(event, 'new');
    this.#onEvent(event);
  }

  #write(event, className) {
    const who = named(event.user_id, { class: 'who' });
    const detail = el('span', { class: 'detail' }, el('span', { class: 'kind' }, event.kind));
    if (event.session_id != null) detail.append(' ', named(event.session_id, { class: 'session' }));
    if (event.overdue_ms > 0) detail.append(` noticed ${event.overdue_ms} ms late`);
    const list = $('events');
    list.prepend(el('li', { class: className }, timeOf(event.at),
      el('span', { class: 'what' }, ...(WORDS[event.kind]?.(who) ?? [who]), detail),
      el('span', { class: 'revision', title: event.event_id }, String(event.revision))));
    while (list.children.length > EVENTS_MOST) list.lastChild.remove();
    $('events-note').hidden = true;
  }
}
