// SPDX-License-Identifier: Apache-2.0
// Events and heartbeats per minute, from the counters of /metrics where they may be read.
import { $, every, say } from './dom.js';

const SAMPLE_MS = 5_000;
const MINUTE_MS = 60_000;
const SHOWN_MS = 600_000;
const WIDTH = 600, HEIGHT = 96;

/** Counts as they grow, and how many of them fell into each minute that ends at a sample. */
class Series {
  samples = []; // { at, total, n }: n of the last minute
  #last = new Map(); // process -> the value of its counter
  #total = 0;

  /** @param process which one answered: each has a counter of its own, which began with it */
  counter(at, process, value) {
    this.add(Math.max(0, value - (this.#last.get(process) ?? value)));
    this.#last.set(process, value);
    this.sample(at);
  }

  add(n) {
    this.#total += n;
  }

  sample(at) {
    const before = this.samples.findLast((s) => s.at <= at - MINUTE_MS) ?? this.samples[0];
    // After a pause, when nobody looked, the mean of that time.
    const minutes = Math.max(1, (at - (before?.at ?? at)) / MINUTE_MS);
    this.samples.push({ at, total: this.#total, n: Math.round((this.#total - (before?.total ?? this.#total)) / minutes) });
    while (this.samples[0].at < at - SHOWN_MS - MINUTE_MS) this.samples.shift();
  }
}

function path(svg, name, d) {
  let node = svg.querySelector(`.${name}`);
  if (!node) {
    node = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    node.setAttribute('class', name);
    svg.append(node);
  }
  node.setAttribute('d', d);
}

const written = (n) => n.toLocaleString('en');

/** @param what 'events' or 'beats', as the ids of the page begin; no series: there is nothing to show */
function draw(series, what, name) {
  const now = performance.now();
  const shown = series?.samples.filter((s) => s.at >= now - SHOWN_MS) ?? [];
  const svg = $(`${what}-plot`);
  if (shown.length === 0) {
    svg.replaceChildren();
    say($(`${what}-now`), '–');
    say($(`${what}-most`), '');
    return;
  }
  const last = shown.at(-1);
  const most = Math.max(...shown.map((s) => s.n));
  const x = (s) => (WIDTH * (1 - (now - s.at) / SHOWN_MS)).toFixed(1);
  const y = (s) => (HEIGHT - 2 - (s.n / Math.max(4, most)) * (HEIGHT - 8)).toFixed(1);
  const line = shown.map((s, i) => `${i ? 'L' : 'M'}${x(s)} ${y(s)}`).join('');
  path(svg, 'area', `${line}L${x(last)} ${HEIGHT}L${x(shown[0])} ${HEIGHT}Z`);
  path(svg, 'stroke', line);
  svg.setAttribute('aria-label', `${name} per minute in the last ten minutes: ${written(last.n)} now, ${written(most)} at most`);
  say($(`${what}-now`), written(last.n));
  say($(`${what}-most`), `at most ${written(most)}`);
}

/** The sum over all labels of a counter in Prometheus text. */
function sum(text, name) {
  let total = 0;
  for (const line of text.split('\n')) {
    if (line.startsWith(`${name}{`) || line.startsWith(`${name} `)) total += Number(line.slice(line.lastIndexOf(' ') + 1));
  }
  return total;
}

const REFUSED = new Set([401, 403, 404]); // 404: a proxy that keeps figures for the inside

/** @param read gives the text of /metrics, or throws what refused it. @return what to call with each event of the room */
export function pulse(read) {
  const events = new Series(), beats = new Series(), own = new Series(), opened = performance.now();
  every(SAMPLE_MS, async () => {
    const at = performance.now();
    own.sample(at);
    let error = null;
    try {
      const text = await read();
      const process = sum(text, 'process_start_time_seconds');
      events.counter(at, process, sum(text, 'stillhere_events_total'));
      beats.counter(at, process, sum(text, 'stillhere_heartbeats_total'));
    } catch (caught) {
      error = caught;
    }
    const refused = REFUSED.has(error?.status);
    draw(refused ? own : events, 'events', 'Events');
    draw(refused ? null : beats, 'beats', 'Heartbeats');
    const since = at - opened < MINUTE_MS ? 'since the page was opened' : 'in the last minute';
    say($('events-label'), refused ? `events of this room ${since}` : `events ${since}`);
    say($('beats-label'), `heartbeats ${since}`);
    say($('pulse-note'), refused ? `Heartbeats are not shown: the server does not show its figures here (/metrics, ${error.status}).`
      : error ? 'No new figures: the server does not answer.'
        : 'All rooms, as counted by the server that answers this page. The plot begins when the page is opened.');
  });
  return () => own.add(1);
}
