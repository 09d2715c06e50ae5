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
  /** The window whose coming and going is followed; null: none. */
  page?: EventTarget | null;
}

export interface Clock {
  wall(): number;
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

interface Told { onStatus?(status: Status, error: StillHereError | null): void; retryMostMs?: number }

export interface StayOptions extends Told {
  /** A name of its own for each page that is opened, if left out. */
  session?: string;
  ttlMs?: number;
  meta?: Record<string, unknown>;
  /** Whether a page that goes closes its lease; true if left out. */
  closeOnPageHide?: boolean;
  onAccepted?(answer: Accepted): void;
  /** true: go on trying after a 401. */
  onUnauthorized?(error: StillHereError): boolean;
}

export interface WatchOptions extends Told {
  /** A stream of server-sent events instead of long polls. */
  stream?: boolean;
  waitMs?: number;
  limit?: number;
  kinds?: Kind[];
  /** How many events may wait for handlers that are slower than the room; beyond that a snapshot comes instead (1000). */
  bufferMost?: number;
  onSnapshot?(state: Room, snapshot: Record<string, unknown>): void | Promise<void>;
  onEvent?(event: PresenceEvent, state: Room): void | Promise<void>;
  /** After each snapshot or run of events, when nothing else waits. */
  onChange?(state: Room): void | Promise<void>;
}

export interface CursorOptions extends Told {
  waitMs?: number;
  throttleMs?: number;
  onChange?(cursors: Map<string, Cursor>): void;
  onSendFailed?(error: StillHereError): void;
}

export interface Cursor { userId: string; sessionId: string; data: Record<string, unknown>; at: string; seq: number }

declare class Member {
  readonly room: string;
  readonly status: Status;
  readonly error: StillHereError | null;
  readonly ended: Promise<{ status: Status; error: StillHereError | null }>;
  /** Ends it. @return for a stay, whether the server has said so */
  close(): Promise<boolean>;
}

export class Stay extends Member {
  readonly user: string;
  readonly session: string;
  readonly revision: number;
  readonly lease: Lease | null;
  readonly ready: Promise<Accepted>;
  setMeta(meta: Record<string, unknown>): void;
  renew(): void;
}

export class Room {
  constructor(roomId: string);
  readonly roomId: string;
  epoch: string | null;
  revision: number | null;
  users: Map<string, User>;
  readonly counts: { users: number; sessions: number };
  reset(snapshot: Record<string, unknown>): void;
  /** @return false when an event before this one is missing */
  apply(event: PresenceEvent, options?: { gaps?: boolean }): boolean;
}

export class Watch extends Member {
  readonly state: Room;
  resync(): void;
}

export class Cursors extends Member {
  readonly cursors: Map<string, Cursor>;
  send(stay: Stay, data: Record<string, unknown>): Promise<void>;
}

export class StillHere {
  constructor(options?: Options);
  join(room: string, user: string, options?: StayOptions): Stay;
  watch(room: string, options?: WatchOptions): Watch;
  cursors(room: string, options?: CursorOptions): Cursors;
  setToken(token: Options['token']): void;
  request(method: string, path: string, options?: { body?: unknown; signal?: AbortSignal; timeoutMs?: number }): Promise<any>;
  close(): Promise<void>;
}
