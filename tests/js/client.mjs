// SPDX-License-Identifier: Apache-2.0
// The JavaScript client as a process that a test tells what to do: a line of JSON in, lines of JSON out.
import { createInterface } from 'node:readline';

const { url, skewMs = 0, tokens, trace = false } = JSON.parse(process.argv[2]);
if (skewMs) {
  const now = Date.now.bind(Date);
  Date.now = () => now() + skewMs;
}
const { StillHere } = await import('../../contrib/js/stillhere.js');

const say = (what, more = {}) => process.stdout.write(`${JSON.stringify({ what, ...more })}\n`);

/** A window and its document, as far as they come and go. */
const page = new EventTarget();
page.document = new EventTarget();
page.document.visibilityState = 'visible';

/** Wall time as it is after a sleep of the machine, in which the steady clock and all timers stood still. */
let slept = 0;
const clock = { wall: () => Date.now() + slept };

function traced(address, init) {
  if (trace) {
    const body = init.body === undefined ? {} : JSON.parse(init.body);
    say('request', { method: init.method, path: address.slice(url.length), keepalive: init.keepalive === true,
      revision: body.revision, ttl: body.ttl_ms, at: performance.now() });
  }
  return fetch(address, init);
}

/** Each is given once, and the last again and again. */
const token = tokens && (async ({ again }) => {
  say('asked', { again });
  return tokens.length > 1 ? tokens.shift() : tokens[0];
});

const client = new StillHere({ url, token, page, clock, fetch: traced });
const stays = new Map();
const watches = new Map();
const cursors = new Map();

const seen = (state) => ({
  epoch: state.epoch,
  revision: state.revision,
  counts: state.counts,
  users: [...state.users.values()].map((u) => [u.userId, u.leaving, [...u.sessions.values()].map((s) => [s.sessionId, s.meta])]),
});

const told = (name, patient) => ({
  retryMostMs: 1000,
  onStatus: (status, error) => say('status', { name, status, code: error?.code }),
  onUnauthorized: patient ? () => true : undefined,
});

const commands = {
  join({ name, room, user, patient, ...options }) {
    stays.set(name, client.join(room, user, {
      ...told(name, patient),
      ...options,
      onAccepted: (answer) => say('accepted', { name, revision: answer.lease.revision, granted: answer.granted,
        session: answer.lease.session_id, ttl: answer.lease.ttl_ms }),
    }));
  },
  meta({ name, meta }) {
    stays.get(name).setMeta(meta);
  },
  ttl({ name, ms }) {
    stays.get(name).setTtl(ms);
  },
  async close({ name }) {
    say('closed', { name, told: await stays.get(name).close() });
  },
  watch({ name, room, slowMs = 0, ...options }) {
    watches.set(name, client.watch(room, {
      ...told(name),
      ...options,
      onSnapshot: (state, snapshot) => say('snapshot', { name, reason: snapshot.reason, revision: snapshot.revision }),
      onEvent: async (event) => {
        say('event', { name, revision: event.revision, kind: event.kind });
        if (slowMs) await new Promise((resolve) => { setTimeout(resolve, slowMs); });
      },
    }));
  },
  state({ name }) {
    say('state', { name, ...seen(watches.get(name).state) });
  },
  cursors({ name, room, ...options }) {
    cursors.set(name, client.cursors(room, {
      ...told(name),
      ...options,
      onChange: (all) => say('cursors', { name, all: [...all.values()].map((c) => [c.userId, c.data]) }),
      onSendFailed: (error) => say('unsent', { name, status: error.status }),
    }));
  },
  point({ name, stay, data }) {
    cursors.get(name).send(stays.get(stay), data);
  },
  /** What happens to the page: `event` is the event's name, what else is given are its properties. */
  page({ event, visibility, ...more }) {
    if (visibility) page.document.visibilityState = visibility;
    (event === 'resume' ? page.document : page).dispatchEvent(Object.assign(new Event(event), more));
  },
  sleep({ ms }) {
    slept += ms;
  },
  token({ value }) {
    client.setToken(value);
  },
  async end() {
    await client.close();
    say('end');
    lines.close(); // nothing keeps the process now
  },
};

const lines = createInterface({ input: process.stdin }).on('line', (line) => {
  const { do: verb, ...args } = JSON.parse(line);
  commands[verb](args);
});
say('ready');
