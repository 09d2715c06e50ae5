// SPDX-License-Identifier: Apache-2.0
// Clocks, pauses that can be ended early, pauses that grow, and how a sleep of the machine is noticed.

const RETRY_FIRST_MS = 500;
export const RETRY_MOST_MS = 30_000;
/** Timers take no more; what is longer ends at once. */
const TIMER_MOST_MS = 2 ** 31 - 1;
/** Between two looks at the clocks, and how much more than that means that the machine was asleep. */
const TICK_MS = 5_000;
const SLEPT_MS = 10_000;

export const systemClock = {
  /** Goes on while the machine sleeps, and may be set wrong or be set anew: never measured against the server's. */
  wall: () => Date.now(),
  /** Never goes back; may stand still while the machine sleeps. */
  steady: () => performance.now(),
  setTimeout: (f, ms) => globalThis.setTimeout(f, ms),
  clearTimeout: (id) => globalThis.clearTimeout(id),
};

/** A wait that can be ended early; ended while nobody waits, the next one ends at once. */
export class Alarm {
  #clock;
  #rung = false;
  #end = null;

  constructor(clock) {
    this.#clock = clock;
  }

  ring() {
    if (this.#end) this.#end();
    else this.#rung = true;
  }

  wait(ms) {
    if (this.#rung) {
      this.#rung = false;
      return Promise.resolve();
    }
    return new Promise((resolve) => {
      const timer = this.#clock.setTimeout(() => this.#end(), Math.min(ms, TIMER_MOST_MS));
      this.#end = () => {
        this.#clock.clearTimeout(timer);
        this.#end = null;
        resolve();
      };
    });
  }
}

/** Pauses that grow, with half of each left to chance, so that many clients do not come back together. */
export class Backoff {
  #n = 0;

  reset() {
    this.#n = 0;
  }

  /** @param retryAfterMs what the server asked for: never less than that */
  next(retryAfterMs = null, most = RETRY_MOST_MS) {
    const span = Math.max(100, Math.min(most, RETRY_FIRST_MS * 2 ** Math.min(this.#n++, 10)));
    const pause = span * (0.5 + Math.random() * 0.5);
    return retryAfterMs === null ? pause : retryAfterMs + Math.random() * span;
  }
}

/** Calls back after a sleep, by what either clock says of the time between two looks. @return what ends the looking */
export function watchSleep(clock, slept) {
  let wall = clock.wall(), steady = clock.steady(), timer;
  const look = () => {
    const gap = Math.max(clock.wall() - wall, clock.steady() - steady);
    wall = clock.wall();
    steady = clock.steady();
    if (gap > TICK_MS + SLEPT_MS) slept();
    set();
  };
  const set = () => {
    timer = clock.setTimeout(look, TICK_MS);
    timer?.unref?.(); // in Node, looking alone keeps no process alive
  };
  set();
  return () => clock.clearTimeout(timer);
}
