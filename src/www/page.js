// SPDX-License-Identifier: Apache-2.0
// The live page: rooms, the people in one, its events, the pulse of the server, a playground. What is open stands behind
// the # of the address: room=NAME, and as=NAME for whoever has joined the playground.
import { StillHere } from './stillhere.js';
import { $, el, every, named, say } from './dom.js';
import { Playground, someName } from './playground.js';
import { pulse } from './pulse.js';
import { RoomView } from './room.js';

const base = new URL('.', location.href).href.replace(/\/$/, '');
const ROOMS_MOST = 200;
const IN_MEMORY = 'It stays in the memory of this page and is gone with it.';
const REFUSED = 'The server does not take this token: it is wrong, or its time is over.';

let token = null;
let current = null; // the room that is open
let asked = false; // whether a credential was asked for
// Where the browser has more to ask than connections, what somebody waits for comes before polls.
const client = new StillHere({
  url: base,
  fetch: (url, options) => fetch(url, { ...options, priority: options.method === 'GET' ? 'low' : 'high' }),
});

// -- the line at the top -----------------------------------------------------------------------------------------------

let answering = null; // whether the server answered the last question for the rooms; null: it was not asked yet
let watching = 'none'; // the room: none, waiting, live, lost, refused

function showLink() {
  const lost = watching === 'lost' || answering === false;
  const live = watching === 'live' || answering === true;
  const needsToken = asked && !token && watching !== 'live';
  $('link').dataset.state = lost ? 'lost' : live && !needsToken ? 'live' : 'waiting';
  say($('link-text'), lost ? 'Disconnected, trying again …' : needsToken ? 'Waiting for a token' : live ? 'Connected' : 'Connecting …');
}

// -- tokens ------------------------------------------------------------------------------------------------------------

function askForToken() {
  asked = true;
  $('token-form').hidden = false;
  say($('token-note'), token ? REFUSED : IN_MEMORY);
  showLink();
}

/** The server takes the token that is in use, so nothing more need be asked. */
function tokenTaken() {
  const inside = $('token-form').contains(document.activeElement);
  $('token-form').hidden = true;
  if (inside) ($('join-name').disabled ? $('room-name') : $('join-name')).focus();
}

/** What a token says of itself; only to fill in the name, the server judges it. */
function claims(text) {
  try {
    const part = text.split('.')[1].replace(/-/g, '+').replace(/_/g, '/');
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(part), (c) => c.charCodeAt(0))));
  } catch {
    return {};
  }
}

function useToken(text) {
  token = text || null;
  const { sub, sid } = token ? claims(token) : {};
  playground.leave(); // while the token that it began with is in use
  client.setToken(token);
  playground.tokenSession = typeof sid === 'string' ? sid : undefined;
  if (typeof sub === 'string') $('join-name').value = sub;
  $('token').value = '';
  $('token-forget').hidden = token === null;
  say($('token-note'), token ? 'Asking the server …' : IN_MEMORY);
  open(current);
  lookForRooms();
}

$('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('token').value.trim();
  if (text) useToken(text);
});
$('token-forget').addEventListener('click', () => useToken(null));

// -- rooms -------------------------------------------------------------------------------------------------------------

const hashOf = (room, name) => `#room=${encodeURIComponent(room)}${name ? `&as=${encodeURIComponent(name)}` : ''}`;

function drawRooms(rooms, more) {
  const list = $('rooms');
  const old = new Map([...list.children].map((li) => [li.dataset.room, li]));
  rooms.forEach((room, i) => {
    let li = old.get(room.room_id);
    old.delete(room.room_id);
    if (!li) {
      li = el('li', { 'data-room': room.room_id }, el('a', { href: hashOf(room.room_id) },
        named(room.room_id, { class: 'name' }), el('span', { class: 'n' })));
    }
    const link = li.firstChild;
    say(link.lastChild, String(room.users));
    link.lastChild.setAttribute('title', room.users === 1 ? '1 person' : `${room.users} people`);
    if (room.room_id === current) link.setAttribute('aria-current', 'true');
    else link.removeAttribute('aria-current');
    if (list.children[i] !== li) list.insertBefore(li, list.children[i] ?? null);
  });
  for (const li of old.values()) li.remove();
  say($('rooms-note'), rooms.length === 0 ? 'Nobody has been here yet. A room exists as soon as it is named: open one, and join.'
    : more ? `The first ${rooms.length} rooms. Open others by their name.` : '');
  $('rooms-note').hidden = rooms.length > 0 && !more;
}

const lookForRooms = every(4_000, async () => {
  try {
    const reply = await client.request('GET', `/rooms?limit=${ROOMS_MOST}`);
    answering = true;
    if (token) tokenTaken();
    drawRooms(reply.rooms, reply.next != null);
    // Whoever came without an address sees where people are.
    if (current === null && !location.hash) {
      const busiest = reply.rooms.reduce((a, b) => (b.users > (a?.users ?? 0) ? b : a), null);
      if (busiest) {
        history.replaceState(null, '', hashOf(busiest.room_id));
        open(busiest.room_id);
      }
    }
  } catch (error) {
    answering = error.status !== 0 && error.status < 500;
    $('rooms-note').hidden = false;
    if (error.status === 401) {
      $('rooms').replaceChildren();
      say($('rooms-note'), 'Rooms are shown to those who may see them.');
      askForToken();
    } else if (error.status === 403) {
      $('rooms').replaceChildren();
      say($('rooms-note'), 'This token may not list rooms. Open one by its name.');
      if (token) tokenTaken();
    } else if ($('rooms').children.length > 0) {
      say($('rooms-note'), 'The server does not answer. These are the rooms as they were.');
    } else {
      say($('rooms-note'), 'The server does not answer.');
    }
  }
  showLink();
});

$('room-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const room = $('room-name').value;
  if (!room) return;
  $('room-name').value = '';
  location.hash = hashOf(room);
});

// -- what is open ------------------------------------------------------------------------------------------------------

const beat = pulse(async () => {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(`${base}/metrics`, { cache: 'no-store', headers, signal: AbortSignal.timeout(10_000) });
  if (!response.ok) throw Object.assign(new Error('refused'), { status: response.status });
  return response.text();
});

const view = new RoomView(client, {
  onState(state, error) {
    watching = state;
    if (state === 'refused' && error?.status === 401) askForToken();
    showLink();
  },
  onEvent: beat,
  mySession: () => playground.session,
});

const playground = new Playground(client, (name) => {
  if (current === null) return;
  history.replaceState(null, '', hashOf(current, name));
  offerSecond();
});

function offerSecond() {
  $('second').hidden = current === null;
  if (current !== null) $('second').href = hashOf(current, token ? null : someName([...view.people, playground.name]));
}

function open(room) {
  current = null; // so that leaving one room does not write the address of the next
  playground.open(null);
  watching = room === null ? 'none' : 'waiting';
  try {
    view.open(room);
    playground.open(room);
    current = room;
  } catch (error) {
    view.open(null);
    playground.open(null);
    watching = 'none';
    say($('people-note'), `That cannot be a room: ${error.message}.`);
  }
  document.title = current === null ? 'stillhere' : `${current} – stillhere`;
  for (const li of $('rooms').children) {
    if (li.dataset.room === current) li.firstChild.setAttribute('aria-current', 'true');
    else li.firstChild.removeAttribute('aria-current');
  }
  offerSecond();
  showLink();
}

function followAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1).replace(/\+/g, '%2B'));
  const room = wanted.get('room'), name = wanted.get('as');
  if (room === null) return;
  if (room !== current) open(room);
  if (name && !playground.name) playground.join(name);
}

$('join-name').value = someName();
addEventListener('hashchange', followAddress);
followAddress();
showLink();
