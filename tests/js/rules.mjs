// SPDX-License-Identifier: Apache-2.0
// The client's rules, in a world where time goes on when it is told to: what is a question of minutes elsewhere, and
// what no right server does.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Room } from '../../contrib/js/stillhere.js';
import { World, event, events, script, snapshot, stream } from './world.mjs';

const between = (value, low, high, what) => assert.ok(value >= low && value <= high, `${what}: ${value} is not ${low} to ${high}`);
const gaps = (requests) => requests.slice(1).map(({ at }, i) => at - requests[i].at);
const times = (n, f) => Array.from({ length: n }, (_, i) => f(i));

const STARTS = {
  join: (client, i) => client.join('r', `u${i}`),
  watch: (client) => client.watch('r'),
  stream: (client) => client.watch('r', { stream: true }),
  cursors: (client) => client.cursors('r'),
};

/** Starts forty at once against one answer. @return for each, the pauses between its attempts */
async function pausesOf(start, answer) {
  const world = new World(answer);
  for (let i = 0; i < 40; i++) start(world.client({ token: `t${i}`, page: null }), i);
  await world.pass(120_000);
  return times(40, (i) => gaps(world.requests.filter(({ token }) => token === `t${i}`)));
}

function spread(pauses, n, low, high) {
  const those = pauses.map((p) => p[n]);
  those.forEach((pause) => between(pause, low, high, `pause ${n}`));
  between(Math.max(...those) - Math.min(...those), (high - low) / 2, high - low, `how far the pauses ${n} are apart`);
}

test('pauses grow, and no two come back together', async () => {
  for (const [name, start] of Object.entries(STARTS)) {
    const pauses = await pausesOf(start, () => [503, { code: 'unavailable' }]);
    for (const p of pauses) between(p.length, 7, 14, `pauses of ${name} in two minutes`);
    for (const [n, span] of [500, 1000, 2000, 4000, 8000, 16000, 30000].entries()) spread(pauses, n, span / 2, span + 1);
  }
});

test('what the server asks for is kept, and no two come back together then either', async () => {
  const refusals = [() => [503, { code: 'unavailable' }, { 'retry-after': '5' }],
    () => [429, { code: 'too_many_requests', retry_after_ms: 5000 }, { 'retry-after': '9' }]];
  for (const start of Object.values(STARTS)) for (const refuse of refusals) spread(await pausesOf(start, refuse), 0, 5000, 5501);
});

test('what the server asks for is kept by a stay whose lease runs out meanwhile, whatever happens', async () => {
  const world = new World((request) => (world.of('PUT').length === 1 ? world.accepted(request, 5000)
    : [503, { code: 'unavailable' }, { 'retry-after': '60' }]));
  const stay = world.client().join('r', 'u', { ttlMs: 15_000 });
  await world.pass(6_000);
  for (let i = 0; i < 50; i++) {
    world.tell('visibilitychange');
    stay.setMeta({ i });
    await world.pass(1_000);
  }
  assert.equal(world.of('PUT').length, 2);
  await world.pass(10_000);
  assert.deepEqual(world.of('PUT').slice(2).map(({ body }) => body.meta), [{ i: 49 }]);
});

test('a stay renews when the server said, to the millisecond', async () => {
  const said = [21_001, 19_407, 25_813, 20_022];
  const world = new World((request) => world.accepted(request, said[world.requests.length - 1] ?? 3_600_000));
  world.client().join('r', 'u');
  await world.pass(100_000);
  assert.deepEqual(gaps(world.requests), said);
});

test('a renewal is tried until the expiry and on from there, each time with a revision of its own', async () => {
  const silences = [() => { throw new TypeError('no network'); }, () => new Promise(() => {}), () => [502, {}]];
  for (const silence of silences) {
    let away = false;
    const world = new World((request) => (away ? silence() : world.accepted(request)));
    const told = [];
    const stay = world.client().join('r', 'u', { ttlMs: 60_000, onStatus: (status) => told.push([status, world.now]) });
    await world.pass(1_000);
    away = true;
    await world.pass(600_000);
    away = false;
    await world.pass(60_000);
    assert.deepEqual(told.map(([status]) => status), ['live', 'retrying', 'lapsed', 'live']);
    const alive = world.requests.filter(({ at }) => at >= 20_000 && at < 60_000);
    between(alive.length, 3, 40, 'attempts while the lease lived');
    between(alive.at(-1).at, 45_000, 60_000, 'the last one of them');
    between(told[2][1], 60_000, 71_000, 'when it was known to have lapsed');
    const later = world.requests.filter(({ at }) => at >= 60_000 && at < 600_000);
    between(Math.max(...gaps(later)), 15_000, 40_000, 'the longest pause after that');
    const revisions = world.requests.map(({ body }) => body.revision);
    assert.deepEqual(revisions, times(revisions.length, (i) => i + 1));
    assert.equal(stay.status, 'live');
  }
});

test('a revision that the session has left behind is caught up with at once', async () => {
  for (const [status, code] of [[409, 'ignored_old_revision'], [410, 'session_closed']]) {
    let stored = 7;
    const world = new World((request) => {
      if (request.body.revision <= stored) return [status, { code, decision: code, stored_revision: stored }];
      stored = request.body.revision;
      return world.accepted(request);
    });
    const stay = world.client().join('r', 'u', { session: 's' });
    await world.pass(1_000);
    assert.deepEqual([world.of('PUT').map(({ body }) => body.revision), stay.status, stay.revision], [[1, 8], 'live', 8]);
    stored = 100; // another page of the same session
    await world.pass(20_000);
    assert.deepEqual(world.of('PUT').map(({ body }) => body.revision), [1, 8, 9, 101]);
  }
  // One that is always ahead is not run after without a pause.
  const world = new World(({ body }) => [409, { code: 'ignored_old_revision', stored_revision: body.revision + 5 }]);
  world.client().join('r', 'u', { session: 's' });
  await world.pass(60_000);
  between(world.requests.length, 8, 60, 'attempts in a minute');
});

/** A watch, by what it has told. */
function watchIn(world, options = {}) {
  const told = [];
  const watch = world.client().watch('r', {
    onSnapshot: (state, { reason }) => { told.push(`${reason} ${state.revision}`); },
    onEvent: ({ revision }) => { told.push(revision); },
    ...options,
  });
  return { watch, told };
}

test('an event is told once, however often it comes', async () => {
  const polls = new World(script(snapshot(3), events(4, 5), events(4, 5, 6), events(6), events(5, 7)));
  const streams = new World((_, world) => stream(world, [snapshot(3)[1], ...[4, 5, 4, 5, 6, 6, 5, 7].map(event)]));
  for (const world of [polls, streams]) {
    const { watch, told } = watchIn(world, { stream: world === streams });
    await world.pass(20_000);
    assert.deepEqual(told, ['requested 3', 4, 5, 6, 7]);
    assert.deepEqual([watch.state.revision, watch.state.counts.users], [7, 4]);
  }
  assert.deepEqual(polls.requests.slice(0, 6).map(({ query }) => query.since), [undefined, '3', '5', '6', '6', '7']);
});

test('a fold by itself takes each event once and in order', () => {
  const room = new Room('r');
  assert.equal(room.apply(event(1)), false, 'no snapshot yet');
  room.reset(snapshot(3)[1]);
  for (const [revision, taken] of [[4, true], [4, true], [2, true], [6, false], [5, true]]) {
    assert.equal(room.apply(event(revision)), taken, `${revision}`);
  }
  assert.deepEqual([room.revision, [...room.users.keys()]], [5, ['u4', 'u5']]);
});

test('where an event is missing a snapshot comes, and nothing of what is behind the gap is told', async () => {
  const polls = new World(script(snapshot(3), events(4), events(6, 7), snapshot(8), events(9)));
  const streams = new World((request, world) => (request.query.since === undefined && world.requests.length > 1
    ? stream(world, [snapshot(8)[1], event(9)]) : stream(world, [snapshot(3)[1], event(4), event(6), event(7)])));
  for (const world of [polls, streams]) {
    const { told } = watchIn(world, { stream: world === streams });
    await world.pass(20_000);
    assert.deepEqual(told, ['requested 3', 4, 'requested 8', 9]);
  }
});

test('more than the buffer holds becomes a snapshot', async () => {
  const world = new World(script(snapshot(0), events(1), events(2, 3), events(4, 5, 6, 7),
    () => world.later(5_000, snapshot(20)), events(21)));
  let go;
  const told = [];
  const { watch } = watchIn(world, {
    bufferMost: 3,
    onSnapshot: (state) => { told.push(`at ${state.revision}`); },
    onEvent: ({ revision }) => {
      told.push(revision);
      return revision === 1 ? new Promise((resolve) => { go = resolve; }) : undefined;
    },
    onChange: (state) => { told.push(`now ${state.revision}`); },
  });
  await world.pass(2_000);
  assert.deepEqual(told, ['at 0', 'now 0', 1], 'the handler is not done');
  go();
  await world.pass(2_000);
  assert.deepEqual(told, ['at 0', 'now 0', 1], 'what is known is old');
  await world.pass(10_000);
  assert.deepEqual(told, ['at 0', 'now 0', 1, 'at 20', 'now 20', 21, 'now 21']);
  assert.deepEqual(world.requests.slice(0, 6).map(({ query }) => query.since), [undefined, '0', '1', '3', undefined, '20']);
  assert.equal(watch.state.revision, 21);
});

test('of some kinds only, the position moves on with what is left out', async () => {
  const some = events(5, 9);
  some[1].revision = 12;
  const polls = new World(script(snapshot(3), some, events(20)));
  const streams = new World((request, world) => (request.query.since === '12' ? stream(world, [event(20)])
    : stream(world, [snapshot(3)[1], event(5), event(9), 'id: 12\n\n'], { endsAfterMs: 1_000 })));
  for (const world of [polls, streams]) {
    const { told, watch } = watchIn(world, { stream: world === streams, kinds: ['lease.granted', 'user.online'] });
    await world.pass(10_000);
    assert.deepEqual([told, watch.state.counts.users], [['requested 3', 5, 9, 20], 3]);
    assert.ok(world.requests.every(({ query }) => query.kinds === 'lease.granted,user.online'));
  }
  assert.deepEqual(polls.requests.slice(0, 4).map(({ query }) => query.since), [undefined, '3', '12', '20']);
});

test('one who does not wait comes when the server said, and at once for the rest', async () => {
  const cut = events(1);
  cut[1].more = true;
  const world = new World(script(snapshot(0), cut, events(2), events(4), snapshot(5)));
  const { told } = watchIn(world, { waitMs: 0, limit: 1 });
  await world.pass(80_000);
  assert.deepEqual(world.requests.slice(0, 4).map(({ at }) => at), [0, 28_000, 28_000, 56_000]);
  between(world.requests[4].at, 56_001, 57_000, 'what was missing is asked for soon');
  assert.deepEqual(told, ['requested 0', 1, 2, 'requested 5']);
  assert.deepEqual(world.requests.slice(1, 4).map(({ query }) => [query.wait_ms, query.limit]), times(3, () => ['0', '1']));
});

test('another epoch begins with its snapshot, and its smaller revisions are news', async () => {
  const world = new World(script(snapshot(50, 'one'), snapshot(2, 'two', 'epoch'), events(3, 4)));
  const { watch, told } = watchIn(world);
  await world.pass(20_000);
  assert.deepEqual(told, ['requested 50', 'epoch 2', 3, 4]);
  assert.deepEqual(world.requests.slice(1, 4).map(({ query }) => [query.epoch, query.since]), [['one', '50'], ['two', '2'], ['two', '4']]);
  assert.equal(watch.state.epoch, 'two');
});

test('servers that do not agree are not asked without a pause', async () => {
  const turns = {
    snapshots: [(client) => client.watch('r'), () => snapshot(5, `e${Math.random()}`, 'epoch')],
    resets: [(client) => client.cursors('r'), () => [200, { seq: 5, cursors: [], gone: [], reset: true }]],
    'streams that break': [STARTS.stream, (_, world) => stream(world, [snapshot(5)[1]], { endsAfterMs: 0, breaks: true })],
    'replies that are none': [STARTS.watch, () => [200, null]],
  };
  for (const [what, [start, answer]] of Object.entries(turns)) {
    const world = new World(answer);
    start(world.client());
    await world.pass(120_000);
    between(world.requests.length, 5, 500, `requests for ${what} in two minutes`);
  }
});

test('a stream that breaks at once is tried ever less often, one that stood for a while at once', async () => {
  const often = async (endsAfterMs, ms) => {
    const world = new World((_, w) => stream(w, [snapshot(5)[1]], { endsAfterMs, breaks: true }));
    world.client().watch('r', { stream: true });
    await world.pass(ms);
    return world.requests.length;
  };
  between(await often(0, 600_000), 15, 50, 'streams in ten minutes');
  between(await often(20_000, 600_000), 28, 31, 'streams of twenty seconds in ten minutes');
});

test('a stream of which nothing is heard is given up, one with comments is not', async () => {
  const comment = { value: new TextEncoder().encode(':\n\n') };
  for (const [quiet, low, high] of [[Infinity, 12, 14], [15_000, 1, 1]]) {
    const world = new World((_, w) => [200, { read: () => w.later(quiet, comment) }, { 'content-type': 'text/event-stream' }]);
    world.client().watch('r', { stream: true });
    await world.pass(600_000);
    between(world.requests.length, low, high, `streams in ten minutes with a comment every ${quiet} ms`);
  }
});

test('what brings the network or the page back ends the pauses', async () => {
  for (const name of ['online', 'offline', 'resume', 'visibilitychange']) {
    const world = new World(() => [502, {}]);
    const client = world.client();
    for (const start of Object.values(STARTS)) start(client, 0);
    await world.pass(200_000);
    const before = world.requests.length;
    world.tell(name);
    await world.pass(10);
    assert.equal(world.requests.length - before, 4, name);
    await world.pass(1_001);
    between(world.requests.length - before, 8, 12, `attempts after ${name}: the pauses are short again`);
    world.page.document.visibilityState = 'hidden';
    const then = world.requests.length;
    world.tell('visibilitychange');
    await world.pass(0);
    assert.equal(world.requests.length, then, 'a page that is hidden now');
  }
});

test('a page that goes says so, is quiet, and comes back with a newer revision', async () => {
  const world = new World((request) => {
    if (request.method === 'PUT') return world.accepted(request);
    if (request.method === 'DELETE') return [200, { decision: 'accepted' }];
    if (request.path.endsWith('/cursors')) {
      const reply = [200, { seq: 1, cursors: [], gone: [] }];
      return request.query.since === undefined ? reply : world.later(25_000, reply);
    }
    return request.query.since === undefined ? snapshot(5) : world.later(25_000, [200, { mode: 'unchanged', events: [] }]);
  });
  const client = world.client(), stay = client.join('r', 'u');
  client.watch('r');
  client.cursors('r');
  await world.pass(1_000);
  for (let round = 0; round < 3; round++) {
    const waiting = world.of('GET').slice(-2);
    const before = world.requests.length, revision = stay.revision;
    world.tell('pagehide', { persisted: true });
    assert.ok(waiting.every(({ aborted }) => aborted), 'nothing is left open');
    await world.pass(3_600_000);
    const said = world.requests.slice(before);
    assert.deepEqual(said.map(({ method, keepalive, query }) => [method, keepalive, query.revision]), [['DELETE', true, `${revision}`]]);
    world.tell('pageshow', { persisted: true });
    await world.pass(1_000);
    const back = world.requests.slice(before + 1);
    assert.deepEqual(back.map(({ method }) => method).sort(), ['GET', 'GET', 'PUT'], 'each goes on where it was');
    assert.ok(back.every(({ body, query }) => (body ? body.revision === revision + 1 : query.since !== undefined)));
    assert.equal(stay.status, 'live');
  }
});

test('of many places that are pointed at few are sent, and the last one is', async () => {
  const world = new World((request) => (request.method === 'PUT' ? world.accepted(request)
    : request.method === 'POST' ? [202, {}] : request.query.since === undefined ? [200, { seq: 1, cursors: [], gone: [] }]
      : world.later(25_000, [200, { seq: 1, cursors: [], gone: [] }])));
  const client = world.client(), stay = client.join('r', 'u'), cursors = client.cursors('r');
  for (let x = 0; x < 500; x++) {
    cursors.send(stay, { x });
    await world.pass(2);
  }
  await world.pass(1_000);
  const sent = world.of('POST').map(({ body }) => body.data.x);
  between(sent.length, 15, 22, 'of 500 in a second');
  assert.equal(sent.at(-1), 499);
});
