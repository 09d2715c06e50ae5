// SPDX-License-Identifier: Apache-2.0
// Prints what stillhere.js exports and what each of its classes has in public, for the comparison with stillhere.d.ts.
import * as stillhere from '../../contrib/js/stillhere.js';

/** What the objects have by being JavaScript. */
const GIVEN = new Set(['constructor', ...Object.getOwnPropertyNames(new Error('x')), 'name']);

function members(object) {
  const names = new Set();
  for (let at = object; at && at !== Object.prototype && at !== Error.prototype; at = Object.getPrototypeOf(at)) {
    for (const name of Object.getOwnPropertyNames(at)) if (!name.startsWith('_') && !GIVEN.has(name)) names.add(name);
  }
  return [...names].sort();
}

const client = new stillhere.StillHere({ url: 'http://127.0.0.1:9', page: null, fetch: () => new Promise(() => {}) });
const examples = [client, client.join('r', 'u'), client.watch('r'), client.cursors('r'), new stillhere.Room('r'),
  new stillhere.StillHereError(0, 'network', 'x')];
const classes = Object.fromEntries(examples.map((one) => [one.constructor.name, members(one)]));
console.log(JSON.stringify({ exports: Object.keys(stillhere).sort(), classes }));
process.exit(0);
