// SPDX-License-Identifier: Apache-2.0
// Small things that all parts of the page use. Names come from anybody: they are text here, and never markup.

/**
 * How long the page's polls wait. A browser opens six connections to a server, for all its windows together, and each
 * window keeps two polls waiting; they are short, so that whatever else there is to ask soon gets its turn.
 */
export const WAIT_MS = 5_000;

export const $ = (id) => document.getElementById(id);

/** An element; strings among the children become text. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Writes only what is new, so that nothing flickers and no selection is lost. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A name that comes from somebody: in a box of its own, so that its direction of writing turns nothing around it. */
export function named(name, props = {}) {
  return el('bdi', { title: name, ...props }, name);
}

/** Sets an attribute to the empty text, or takes it away. */
export function flag(node, name, on) {
  node.toggleAttribute(name, Boolean(on));
}

/** A colour of their own for everybody, the same in every window. */
export function hue(name) {
  let hash = 2166136261;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619) >>> 0;
  return hash % 360;
}

export function initials(name) {
  const words = name.split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  const letters = words.length > 1 ? [words[0], words[1]].map((w) => Array.from(w)[0]) : Array.from(words[0] ?? '?').slice(0, 2);
  const text = letters.join('');
  return words.length > 1 ? text.toUpperCase() : text.charAt(0).toUpperCase() + text.slice(1);
}

/** How long ago, in words that do not pretend to more than a heartbeat can say. */
export function ago(ms) {
  const s = Math.max(0, ms) / 1000;
  const plural = (n, word) => `${n} ${word}${n === 1 ? '' : 's'} ago`;
  if (s < 10) return 'just now';
  if (s < 60) return plural(Math.floor(s / 10) * 10, 'second');
  if (s < 3600) return plural(Math.floor(s / 60), 'minute');
  if (s < 86400) return plural(Math.floor(s / 3600), 'hour');
  return plural(Math.floor(s / 86400), 'day');
}

/** Calls `work` now and every `ms`, but not while the page is hidden; one at a time. @return a function that asks at once */
export function every(ms, work) {
  let timer = null, busy = false, again = false;
  const run = async () => {
    clearTimeout(timer);
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      if (document.visibilityState !== 'hidden') await work();
    } finally {
      busy = false;
      timer = setTimeout(run, again ? 0 : ms * (0.9 + Math.random() * 0.2));
      again = false;
    }
  };
  document.addEventListener('visibilitychange', () => document.visibilityState !== 'hidden' && run());
  run();
  return run;
}
