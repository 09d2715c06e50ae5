// SPDX-License-Identifier: Apache-2.0
// Requests: their paths, the credential that they carry, the time that they may take, what a refusal says, and streams.

export const REQUEST_TIMEOUT_MS = 10_000;
/** A stream has a comment every 15 s; one that is silent for longer than this is dead. */
const STREAM_SILENT_MS = 45_000;

/** What the server refused, or why there was no answer (status 0: `network`, `timeout`, `aborted`, `bad_reply`, …). */
export class StillHereError extends Error {
  constructor(status, code, detail, problem = {}, retryAfterMs = null) {
    super(detail || code);
    this.name = 'StillHereError';
    this.status = status;
    this.code = code;
    this.problem = problem;
    this.requestId = problem.request_id ?? null;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether the same request may well succeed later. */
  get transient() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

export const roomPath = (room, rest) => `/rooms/${encodeURIComponent(room)}/${rest}`;

export function withQuery(path, query) {
  const parts = Object.entries(query).filter(([, v]) => v !== undefined && v !== null);
  return parts.length ? `${path}?${parts.map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join('&')}` : path;
}

async function jsonOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    throw new StillHereError(0, 'bad_reply', `the reply is not JSON: ${text.slice(0, 80)}`);
  }
}

async function refusal(response) {
  const text = await response.text().catch(() => '');
  let problem = {};
  try {
    problem = Object(JSON.parse(text));
  } catch {
    // Not the server's own words: a proxy's.
  }
  const seconds = Number(response.headers.get('retry-after') || NaN);
  const retry = problem.retry_after_ms ?? (seconds >= 0 ? seconds * 1000 : null);
  return new StillHereError(response.status, problem.code ?? `http_${response.status}`, problem.detail, problem, retry);
}

/** A stream of server-sent events. */
class EventStream {
  #response;
  #clock;
  #done;
  /** How long the server wants whoever comes back to wait; it is different for each stream. Null: it did not say. */
  retryMs = null;

  constructor(response, clock, { stop, done }) {
    this.#response = response;
    this.#clock = clock;
    this.stop = stop;
    this.#done = done;
  }

  /** Reads to the end; throws when that does not come by itself. @param take gets {event, data, id}, texts, each optional */
  async read(take) {
    const reader = this.#response.body.getReader();
    const decoder = new TextDecoder();
    let text = '', message = {}, timer;
    try {
      for (;;) {
        timer = this.#clock.setTimeout(this.stop, STREAM_SILENT_MS);
        const { value, done } = await reader.read();
        this.#clock.clearTimeout(timer);
        if (done) return;
        text += decoder.decode(value, { stream: true });
        for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n')) {
          const line = text.slice(0, end).replace(/\r$/, '');
          text = text.slice(end + 1);
          if (line !== '') {
            this.#field(line, message);
            continue;
          }
          if (message.data !== undefined || message.id !== undefined) take(message);
          message = {};
        }
      }
    } catch (error) {
      throw new StillHereError(0, 'network', `the stream broke: ${error?.message ?? error}`);
    } finally {
      this.#clock.clearTimeout(timer);
      this.#done();
    }
  }

  #field(line, message) {
    const colon = line.indexOf(':');
    if (colon === 0) return; // a comment
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (name === 'retry' && /^\d+$/.test(value)) this.retryMs = Number(value);
    message[name] = name === 'data' && message.data !== undefined ? `${message.data}\n${value}` : value;
  }
}

/** One address and one credential. */
export class Http {
  #url;
  #fetch;
  #clock;
  #token;
  #known; // what the token function gave last; undefined: nothing yet
  #asking = null;

  constructor(url, token, fetch, clock) {
    this.#url = url;
    this.#token = token ?? null;
    this.#fetch = fetch;
    this.#clock = clock;
  }

  setToken(token) {
    this.#token = token ?? null;
    this.#known = undefined;
    this.#asking = null;
  }

  /** One request. @return its JSON, or with `stream` an EventStream; throws StillHereError */
  async request(method, path, options = {}) {
    const token = await this.#credential();
    try {
      return await this.#once(method, path, options, token);
    } catch (error) {
      if (error.status !== 401 || typeof this.#token !== 'function') throw error;
      return this.#once(method, path, options, await this.#credential(token));
    }
  }

  /** A request that outlives the page; nobody waits for its answer, so it takes the token that is known already. */
  farewell(method, path, body) {
    const token = typeof this.#token === 'function' ? this.#known : this.#token;
    if (token === undefined) return; // then nothing was ever sent
    try {
      this.#fetch(this.#url + path, { ...this.#message(method, token, { body }), keepalive: true }).catch(() => {});
    } catch {
      // Then the lease runs out by itself.
    }
  }

  /** @param refused a token that the server has refused, if there was one */
  async #credential(refused) {
    if (typeof this.#token !== 'function') return this.#token;
    // Another request that was refused may have asked already.
    if (this.#known !== undefined && this.#known !== refused) return this.#known;
    const ask = this.#token;
    this.#asking ??= Promise.resolve().then(() => ask({ again: refused !== undefined })).then((known) => {
      if (ask === this.#token) this.#known = known ?? null;
      return known ?? null;
    }).finally(() => {
      this.#asking = null;
    });
    try {
      return await this.#asking;
    } catch (error) {
      throw new StillHereError(0, 'no_token', `the token function failed: ${error?.message ?? error}`);
    }
  }

  #message(method, token, { body, accept, priority }) {
    const headers = {};
    if (token) headers.Authorization = `Bearer ${token}`;
    if (accept) headers.Accept = accept;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    const message = { method, headers, cache: 'no-store' };
    if (body !== undefined) message.body = JSON.stringify(body);
    if (priority) message.priority = priority;
    return message;
  }

  async #once(method, path, { body, signal, timeoutMs = REQUEST_TIMEOUT_MS, stream = false, priority }, token) {
    const abort = new AbortController();
    const stop = () => abort.abort();
    const done = () => signal?.removeEventListener('abort', stop);
    let late = false;
    const timer = this.#clock.setTimeout(() => {
      late = true;
      stop();
    }, timeoutMs);
    if (signal?.aborted) stop();
    signal?.addEventListener('abort', stop, { once: true });
    let open = false;
    try {
      const accept = stream ? 'text/event-stream' : undefined;
      const message = this.#message(method, token, { body, accept, priority });
      const response = await this.#fetch(this.#url + path, { ...message, signal: abort.signal });
      if (!response.ok) throw await refusal(response);
      if (!stream) return await jsonOf(response);
      open = response.headers.get('content-type')?.startsWith('text/event-stream') === true;
      if (!open) throw new StillHereError(0, 'bad_reply', 'the reply is not a stream');
      return new EventStream(response, this.#clock, { stop, done });
    } catch (error) {
      if (error instanceof StillHereError) throw error;
      const code = late ? 'timeout' : signal?.aborted ? 'aborted' : 'network';
      throw new StillHereError(0, code, `${method} ${path}: ${error?.cause?.message ?? error?.message ?? error}`);
    } finally {
      this.#clock.clearTimeout(timer);
      if (!open) done();
    }
  }
}
