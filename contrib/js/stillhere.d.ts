// SPDX-License-Identifier: Apache-2.0
// What each part of stillhere.js takes and gives.

export interface Options {
  /** Where the server is; in a page its own origin if left out. */
  url?: string;
  /** A token, or a function that fetches one; it is asked again once when the server answers 401. */
  token?: string | null | ((ask: { again: boolean }) => string | Promise<string>);
  fetch?: typeof fetch;
  /** Clocks and timers, for tests. */
  clock?: Partial<Clock>;
  /** The window whose coming and going is followed, in a browser its own; null: none. */
  page?: EventTarget | null;
}

export interface Clock {
  /** Milliseconds; goes on while the machine sleeps, and may be set. */
  wall(): number;
  /** Milliseconds; never goes back, and may stand still while the machine sleeps. */
  steady(): number;
  setTimeout(f: () => void, ms: number): unknown;
  clearTimeout(id: unknown): void;
}

export type Status = 'connecting' | 'joining' | 'live' | 'retrying' | 'lapsed' | 'suspended' | 'closed' | 'ended';

export interface Lease {
  room_id: string; user_id: string; session_id: string; revision: number; ttl_ms: number;
  granted_at: string; renewed_at: string; expires_at: string; meta: Record<string, unknown>;
}

export interface Accepted {
  decision: 'accepted' | 'already_applied'; granted: boolean; lease: Lease; epoch: string; room_revision: number;
  renew_after_ms: number; server_time: string; request_id: string;
}

export type Kind = 'lease.granted' | 'lease.renewed' | 'lease.expired' | 'session.closed' | 'membership.revoked' |
  'user.online' | 'user.offline';

export interface PresenceEvent {
  event_id: string; revision: number; kind: Kind; at: string; user_id: string; session_id?: string;
  lease_revision?: number; user_sessions: number; request_id?: string; overdue_ms?: number; meta?: Record<string, unknown>;
}

export interface Session { sessionId: string; revision: number; grantedAt: string; meta: Record<string, unknown> }

export interface User {
  userId: string;
  onlineSince: string;
  /** The last session has ended; user.offline comes unless another begins. */
  leaving: boolean;
  sessions: Map<string, Session>;
}

/** status 0: no answer (`network`, `timeout`, `aborted`, `bad_reply`, `no_token`). */
export class StillHereError extends Error {
  readonly status: number;
  readonly code: string;
  readonly problem: Record<string, unknown>;
  readonly requestId: string | null;
  readonly retryAfterMs: number | null;
  /** Whether the same request may well succeed later. */
  readonly transient: boolean;
}

interface Common {
  onStatus?(status: Status, error: StillHereError | null): void;
  /** true: go on trying after a 401; setToken() does so at once. */
  onUnauthorized?(error: StillHereError): boolean;
  /** The longest pause between two attempts while the server does not answer (30 000). */
  retryMostMs?: number;
}

export interface StayOptions extends Common {
  /** A name of its own for each page that is opened, if left out; a given one continues where it was. */
  session?: string;
  /** How long the lease lives after each renewal; the server's own (90 000) if left out. */
  ttlMs?: number;
  /** What others see of the session: an object of at most 2 KiB. */
  meta?: Record<string, unknown>;
  /** Whether a page that goes closes its lease; true if left out. */
  closeOnPageHide?: boolean;
  /** After each renewal. */
  onAccepted?(answer: Accepted): void;
}

export interface WatchOptions extends Common {
  /** A stream of server-sent events instead of long polls. */
  stream?: boolean;
  /** How long a long poll may wait (25 000); 0: never, and the server says when to come again. */
  waitMs?: number;
  /** The most events in one reply (1000). */
  limit?: number;
  /** Only these. `state` is then folded from these alone. */
  kinds?: Kind[];
  /** How many events may wait for handlers that are slower than the room; beyond that a snapshot comes instead (1000). */
  bufferMost?: number;
  onSnapshot?(state: Room, snapshot: Record<string, unknown>): void | Promise<void>;
  onEvent?(event: PresenceEvent, state: Room): void | Promise<void>;
  /** After each snapshot or run of events, when nothing else waits. */
  onChange?(state: Room): void | Promise<void>;
}

export interface CursorOptions extends Common {
  /** A stream of server-sent events instead of long polls. */
  stream?: boolean;
  waitMs?: number;
  /** The shortest time between two that are sent (50). */
  throttleMs?: number;
  /** All of them, one for each session, each time when something is new. */
  onChange?(cursors: Map<string, Cursor>): void;
  onSendFailed?(error: StillHereError): void;
}

export interface Cursor { userId: string; sessionId: string; data: Record<string, unknown>; at: string; seq: number }

declare class Member<O extends Common> {
  readonly room: string;
  readonly options: O;
  readonly status: Status;
  /** Why it is not live; null when it is. */
  readonly error: StillHereError | null;
  /** Whether it has ended for good: `closed`, or `ended` by a refusal. */
  readonly over: boolean;
  readonly ended: Promise<{ status: Status; error: StillHereError | null }>;
  /** Ends it. @return for a stay, whether the server has said so; if not, the lease runs out by itself */
  close(): Promise<boolean>;
}

/** A lease that is held; made by StillHere.join(). */
export class Stay extends Member<StayOptions> {
  private constructor();
  readonly user: string;
  readonly session: string;
  readonly meta: Record<string, unknown> | undefined;
  /** The highest revision that was sent or heard of. */
  readonly revision: number;
  /** As the last answer had it; null before the first. */
  readonly lease: Lease | null;
  /** The first answer; rejected when it is refused, or closed before. */
  readonly ready: Promise<Accepted>;
  setMeta(meta: Record<string, unknown>): void;
  /** A page in the background may renew but once a minute: it wants two minutes or more. */
  setTtl(ttlMs: number): void;
  /** Renews now, or as soon as the server lets it. */
  renew(): void;
}

/** Who is in a room, folded from a snapshot and events. */
export class Room {
  constructor(roomId: string);
  readonly roomId: string;
  epoch: string | null;
  /** Of the last event that it took; null before the first snapshot. */
  revision: number | null;
  users: Map<string, User>;
  readonly counts: { users: number; sessions: number };
  reset(snapshot: Record<string, unknown>): void;
  /** @return false when an event before this one is missing */
  apply(event: PresenceEvent, options?: { gaps?: boolean }): boolean;
}

/** Follows a room; made by StillHere.watch(). */
export class Watch extends Member<WatchOptions> {
  private constructor();
  /** As the handlers have been told. */
  readonly state: Room;
  /** Forgets what was known and asks for a snapshot. */
  resync(): void;
}

/** Sends and follows cursors; made by StillHere.cursors(). */
export class Cursors extends Member<CursorOptions> {
  private constructor();
  readonly cursors: Map<string, Cursor>;
  /** At most every `throttleMs`; of several in between the last one goes. */
  send(stay: Stay, data: Record<string, unknown>): Promise<void>;
}

export class StillHere {
  constructor(options?: Options);
  join(room: string, user: string, options?: StayOptions): Stay;
  watch(room: string, options?: WatchOptions): Watch;
  cursors(room: string, options?: CursorOptions): Cursors;
  /** Another credential from now on; what waits for an answer asks again with it. */
  setToken(token: Options['token']): void;
  /** Any request of the server's API, with the credential. */
  request(method: string, path: string, options?: { body?: unknown; signal?: AbortSignal; timeoutMs?: number }): Promise<any>;
  /** Closes everything. */
  close(): Promise<void>;
}
