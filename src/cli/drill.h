// SPDX-License-Identifier: Apache-2.0
/// @file
/// The inside of `stillhere drill`: a small class in a room of its own, on one or two instances. One thread: while a
/// step waits for an answer or for time to pass, drill_run() keeps renewing and watching.
#ifndef SH_CLI_DRILL_H
#define SH_CLI_DRILL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/fold.h"
#include "cli/http.h"
#include "cli/options.h"

/// What the drill is to find out.
enum drill_check {
  CHECK_VANISHED,  ///< one cursor vanished
  CHECK_STAYED,    ///< the renewed session stayed
  CHECK_REFUSED,   ///< the revoked user was refused
  CHECK_CONVERGED, ///< the reconnect converged on one snapshot
  CHECK_TOLD,      ///< every change was told once
  N_CHECKS,
};

struct finding {
  bool reached; ///< the step that decides it came to its end
  bool wrong;
  bool open;        ///< one more fault is told beside the first
  char why[768];    ///< of the first fault
  json_t *requests; ///< ids of the requests that show it
};

/// Somebody whose lease is renewed, at one instance and the other in turn.
struct keeper {
  const char *user, *session;
  bool held;         ///< a lease was granted
  int64_t due_us;    ///< when the next heartbeat is, monotonic
  int64_t expiry_us; ///< when the lease would end without it
  int turn;
  struct http *http[2];
  struct http_reply reply;
};

/// One who polls without a pause and folds.
struct subscriber {
  bool on;
  bool reply_due; ///< a poll is under way
  int where;
  struct http *http;
  struct http_reply reply;
  struct fold fold;
  json_t *events;     ///< all that were folded in, in order
  json_t *answers;    ///< for each of them the request id of the answer that told it
  int gaps;           ///< how often something was missing
  char gap_id[72];    ///< request id of the last answer that lacked something
  char answer_id[72]; ///< request id of the last answer
  int64_t not_before_us;
};

#define TEACHER "teacher"
#define RENEWS "student-renews"
#define SILENT "student-silent"
#define LEAVES "student-leaves"
/// The session of each of them; who leaves has another one.
#define SESSION "tab-1"
#define OTHER_SESSION "tab-2"

struct drill {
  const struct options *options;
  const char *url[2];
  int n_urls; ///< with one, both places of url are the same
  char room[64];
  bool room_used; ///< something may be there to clear up
  int64_t began_us, ttl_ms;
  struct http_group *group;
  struct http *http[2];       ///< for the steps
  struct http_reply reply;    ///< of drill_ask()
  struct keeper keepers[2];   ///< the teacher and who renews
  struct subscriber board;    ///< the teacher's view
  struct fold late;           ///< of a subscriber that misses everything
  char silent_expires_at[32]; ///< of the silent lease
  int64_t silent_sent_us;     ///< when its last heartbeat was sent
  int64_t silent_ttl_ms;
  bool closed[2];             ///< the sessions of who leaves: ended by the close, not by their expiry before it
  char closed_ids[2][256];    ///< the event ids that the closes were answered with
  char leaves_offline_at[32]; ///< when their grace ends; empty: it was over before it was seen
  int64_t leaves_offline_us;  ///< the same, monotonic
  bool grace_too_long;        ///< not waited for
  char epoch[2][72];          ///< of each instance, as first told
  struct finding findings[N_CHECKS];
  bool over; ///< no use in going on; code says why
  int code;
};

/// The words of a check when it is as it should be.
const char *drill_words(enum drill_check check);

/// Prints a line of progress.
void drill_say(const struct drill *d, const char *fmt, ...) PRINTF_LIKE(2, 3);

/// Notes a fault. Only the first of a check is told, and one more where its finding is open; @a id, a request id, is
/// kept in any case. NULL: none
void drill_wrong(struct drill *d, enum drill_check check, const char *id, const char *fmt, ...) PRINTF_LIKE(4, 5);

/// Opens the connections. @return false when memory ran out
bool drill_open(struct drill *d);

/// Closes them and frees all but the findings.
void drill_close(struct drill *d);

/// Renews and watches until @a until_us (monotonic) at the latest, or until something happened.
/// @return false when the drill is over
bool drill_run(struct drill *d, int64_t until_us);

/// Lets @a ms pass. @return false when the drill is over
bool drill_pause(struct drill *d, int64_t ms);

/// Sends a request to instance @a where (0, 1), trying again for a few seconds while it is not reached or answers 5xx
/// or 429. Its answer is d->reply. @return false when the drill is over
bool drill_ask(struct drill *d, int where, const char *method, const char *path, const char *body);

/// The same about something in the room: `/rooms/ROOM/` @a rest, with what @a rest has encoded already.
bool drill_ask_room(struct drill *d, int where, const char *method, const char *rest, const char *body);

/// A heartbeat of a session of @a user. @a meta: JSON, or NULL. The answer is d->reply.
bool drill_heartbeat(struct drill *d, int where, const char *user, const char *session, const char *meta);

/// A presence poll with @a query ("" or "?…"), its answer checked to be one. @return false when the drill is over
bool drill_presence(struct drill *d, int where, const char *query);

/// Sends a cursor packet of @a user. The answer is d->reply. @return false when the drill is over
bool drill_point(struct drill *d, int where, const char *user);

/// Asks instance @a where for all cursors until that of @a user is there, or not, as @a wanted, or a few seconds have
/// passed. The last answer is d->reply. @param[out] seen whether it was in that. @return false when the drill is over
bool drill_see_cursor(struct drill *d, int where, const char *user, bool wanted, bool *seen);

/// Ends the drill since an answer was refused that had to be good: says why.
void drill_refused(struct drill *d, const char *what);

/// Compares the epoch in an answer of instance @a where, if it has one, with what was told before.
void drill_epoch(struct drill *d, int where, const struct http_reply *reply);

/// Starts or stops the board. It goes on from what it has folded, at instance @a where.
void drill_board_start(struct drill *d, int where);
void drill_board_stop(struct drill *d);

/// What a list of objects has of this user, or NULL.
json_t *drill_of_user(const json_t *list, const char *user);

/// The board's event of this kind and user with a revision above @a after, or NULL.
json_t *drill_event(const struct drill *d, const char *kind, const char *user, int64_t after);

/// The steps, in order. Each returns false when the drill is over.
bool drill_enter(struct drill *d);
bool drill_cursors(struct drill *d);
bool drill_expiry(struct drill *d);
bool drill_gap(struct drill *d);
bool drill_stayed(struct drill *d);
bool drill_revoke(struct drill *d);
bool drill_grace(struct drill *d);
bool drill_reconnect(struct drill *d);
bool drill_told(struct drill *d);

/// Closes what was opened and takes back what was granted, also after a Ctrl-C.
void drill_clean(struct drill *d);

#endif
