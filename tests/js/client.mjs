// SPDX-License-Identifier: Apache-2.0
// The JavaScript client as a process that a test tells what to do: a line of JSON in, lines of JSON out.
import { createInterface } from 'node:readline';

const [, , url, skewMs = '0'] = process.argv;
const skew = Number(skewMs);
if (skew) {
  const now = Date.now.bind(Date);
  Date.now = () => now() + skew;
}
const { StillHere } = await import('../../contrib/js/stillhere.js');

const say = (what, more = {}) => process.stdout.write(`${JSON.stringify({ what, ...more })}\n`);
const client = new StillHere({ url });
const stays = new Map();
const watches = new Map();
const cursors = new Map();

const seen = (state) => ({
  epoch: state.epoch,
  revision: state.revision,
  counts: state.counts,
  users: [...state.users.values()].map((u) => [u.userId, u.leaving, [...u.sessions.values()].map((s) => [s.sessionId, s.meta])]),
});

const commands = {
  join({ name, room, user, ...options }) {
    stays.set(name, client.join(room, user, {
      ...options,
      retryMostMs: 1000,
      onStatus: (status, error) => say('status', { name, status, code: error?.code }),
      onAccepted: (answer) => say('accepted', { name, revision: answer.lease.revision, granted: answer.granted,
        session: answer.lease.session_id }),
    }));
  },
  meta({ name, meta }) {
    stays.get(name).setMeta(meta);
  },
  async close({ name }) {
    say('closed', { name, told: await stays.get(name).close() });
  },
  watch({ name, room, slowMs = 0, ...options }) {
    watches.set(name, client.watch(room, {
      ...options,
      retryMostMs: 1000,
      onStatus: (status, error) => say('status', { name, status, code: error?.code }),
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
  cursors({ name, room }) {
    cursors.set(name, client.cursors(room, {
      onChange: (all) => say('cursors', { name, all: [...all.values()].map((c) => [c.userId, c.data]) }),
    }));
  },
  point({ name, stay, data }) {
    cursors.get(name).send(stays.get(stay), data);
  },
  async end() {
    await client.close();
    say('end');
    process.exit(0);
  },
};

createInterface({ input: process.stdin }).on('line', (line) => {
  const { do: verb, ...args } = JSON.parse(line);
  commands[verb](args);
});
say('ready');
