// SPDX-License-Identifier: Apache-2.0
// The frame is one text with an escape sequence for each row at most; nothing in it depends on what was drawn before,
// so a terminal that was resized or scribbled on is right again with the next one.
#include "cli/screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/text.h"

/// Events that are remembered: more than any terminal has rows.
#define EVENTS_MAX 500
/// Rows that events get in any case, where the terminal has them.
#define EVENTS_MIN ((size_t)6)
/// Rows above the people, and the two between them and the events.
#define HEAD_ROWS 3
#define BETWEEN_ROWS 2
/// What is drawn at all, whatever size a terminal claims.
#define COLUMNS_MAX 500
#define LINE_SIZE (COLUMNS_MAX * 4 + 1)
/// Below this everything is said shorter.
#define COLUMNS_NARROW 62

#define STYLE_PLAIN ""
#define STYLE_BOLD "1"
#define STYLE_DIM "2"
#define STYLE_RED "31"
#define STYLE_GREEN "32"
#define STYLE_YELLOW "33"
#define STYLE_MAGENTA "35"

// -- the terminal --------------------------------------------------------------------------------------------------

/// Who is in the background may neither change the terminal's modes nor draw over the shell.
static bool in_foreground(void) {
  pid_t group = tcgetpgrp(STDOUT_FILENO);
  return group < 0 || group == getpgrp();
}

bool screen_possible(void) {
  const char *term = getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && term != NULL && *term != '\0' && strcmp(term, "dumb") != 0 && in_foreground();
}

void screen_open(struct screen *screen) {
  const char *no_color = getenv("NO_COLOR");
  screen->color = no_color == NULL || *no_color == '\0';
  screen->events = json_array();
}

void screen_enter(struct screen *screen) {
  if (screen->taken || !in_foreground())
    return;
  // Typed characters would be shown in the middle of the frame.
  screen->moded = tcgetattr(STDOUT_FILENO, &screen->before) == 0;
  if (screen->moded) {
    struct termios quiet = screen->before;
    quiet.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
    (void)tcsetattr(STDOUT_FILENO, TCSADRAIN, &quiet);
  }
  // The other screen, so that what stood there comes back; without a cursor, and without a new line at the right
  // margin, where the terminal thinks other than we of how wide a character is.
  fputs("\033[?1049h\033[?25l\033[?7l\033[H\033[2J", stdout);
  fflush(stdout);
  screen->taken = true;
}

void screen_leave(struct screen *screen) {
  if (!screen->taken)
    return;
  screen->taken = false;
  if (!in_foreground())
    return;
  fputs("\033[0m\033[?7h\033[?25h\033[?1049l", stdout);
  fflush(stdout);
  if (screen->moded)
    (void)tcsetattr(STDOUT_FILENO, TCSAFLUSH, &screen->before);
}

void screen_close(struct screen *screen) {
  screen_leave(screen);
  json_decref(screen->events);
  json_decref(screen->seen);
  screen->events = screen->seen = NULL;
}

// -- events --------------------------------------------------------------------------------------------------------

static bool kind_wanted(const struct screen *s, const char *kind) {
  size_t len = strlen(kind);
  for (const char *at = s->kinds; at != NULL && *at != '\0';) {
    size_t n = strcspn(at, ",");
    if (n == len && strncmp(at, kind, n) == 0)
      return true;
    at += n + (at[n] == ',');
  }
  return s->kinds == NULL;
}

static void append(struct screen *screen, json_t *line) {
  json_array_append(screen->events, line);
  while (json_array_size(screen->events) > EVENTS_MAX)
    json_array_remove(screen->events, 0);
}

void screen_add(struct screen *screen, json_t *event) {
  if (kind_wanted(screen, text_of(event, "kind", "")))
    append(screen, event);
}

void screen_note(struct screen *screen, const char *text) {
  json_t *note = json_pack("{s:s}", "note", text);
  append(screen, note);
  json_decref(note);
}

// -- a frame -------------------------------------------------------------------------------------------------------

struct frame {
  const struct screen *screen;
  struct buf out;
  size_t rows, columns, row;
  bool narrow;
};

/// Adds a line of foreign text, made harmless and cut.
static void line(struct frame *f, const char *style, const char *text) {
  char cut[LINE_SIZE];
  if (f->row >= f->rows)
    return;
  if (f->row++ > 0)
    buf_puts(&f->out, "\r\n");
  // Erased before it is written: behind a full row that would take its last character.
  buf_puts(&f->out, "\033[K");
  bool styled = f->screen->color && style[0] != '\0';
  if (styled)
    buf_printf(&f->out, "\033[%sm", style);
  buf_puts(&f->out, text_cut(cut, sizeof cut, text, f->columns));
  if (styled)
    buf_puts(&f->out, "\033[0m");
}

/// A last-seen entry. @return NULL when there is none
static const json_t *seen_of(const struct screen *s, const char *user_id) {
  size_t i;
  json_t *entry;
  json_array_foreach(s->seen, i, entry) {
    if (strcmp(text_of(entry, "user_id", ""), user_id) == 0)
      return entry;
  }
  return NULL;
}

/// "active 2 minutes ago", or "" where it is not known.
static const char *activity(const struct frame *f, char *out, size_t size, const char *user_id) {
  char ago[48];
  int64_t ms = number_of(seen_of(f->screen, user_id), "last_seen_ago_ms", -1);
  out[0] = '\0';
  if (ms < 0)
    return out;
  ms += (clock_mono_us() - f->screen->seen_us) / 1000;
  snprintf(out, size, "active %s", f->narrow ? text_ago_short(ago, sizeof ago, ms) : text_ago(ago, sizeof ago, ms));
  return out;
}

/// @param user NULL: was here once
static void person(struct frame *f, const char *user_id, const json_t *user) {
  char name[512], state[32], active[64], text[LINE_SIZE];
  size_t width = f->narrow ? (f->columns > 36 ? f->columns - 28 : 8) : f->columns / 3 > 32 ? 32 : f->columns / 3;
  int64_t tabs = (int64_t)json_object_size(json_object_get(user, "sessions"));
  const char *style = STYLE_PLAIN;
  if (user == NULL) {
    snprintf(state, sizeof state, "gone");
    style = STYLE_DIM;
  } else if (tabs == 0) {
    snprintf(state, sizeof state, "leaving");
    style = STYLE_YELLOW;
  } else {
    snprintf(state, sizeof state, "%lld %s", (long long)tabs, plural(tabs, "tab", "tabs"));
  }
  snprintf(text, sizeof text, "  %s%s%-*s %s", text_fit(name, sizeof name, user_id, width), f->narrow ? " " : "  ",
           f->narrow ? 7 : 9, state, activity(f, active, sizeof active, user_id));
  line(f, f->screen->trouble[0] != '\0' ? STYLE_DIM : style, text);
}

static const char *style_of(const char *kind) {
  if (strcmp(kind, "lease.granted") == 0 || strcmp(kind, "user.online") == 0)
    return STYLE_GREEN;
  if (strcmp(kind, "lease.expired") == 0)
    return STYLE_MAGENTA;
  return strcmp(kind, "membership.revoked") == 0 ? STYLE_RED : STYLE_DIM;
}

static void event_line(struct frame *f, const json_t *event) {
  const char *kind = text_of(event, "kind", "?"), *session = text_of(event, "session_id", NULL);
  const char *at = text_of(event, "at", ""), *note = text_of(event, "note", NULL);
  char text[LINE_SIZE];
  if (note != NULL) {
    snprintf(text, sizeof text, "  -- %s", note);
    line(f, STYLE_YELLOW, text);
    return;
  }
  // Of 2026-11-30T15:00:00.000Z the time of day.
  snprintf(text, sizeof text, f->narrow ? "%.8s %s %s%s%s" : "  %.8s  %-18s %s%s%s", strlen(at) > 19 ? at + 11 : "",
           kind, text_of(event, "user_id", "?"), session == NULL ? "" : "/", session == NULL ? "" : session);
  line(f, style_of(kind), text);
}

/// The second and the third row: where this is from, or what is wrong.
static void head_state(struct frame *f) {
  const struct screen *s = f->screen;
  char text[512], ago[48];
  if (s->trouble[0] == '\0') {
    snprintf(text, sizeof text, "%s, Ctrl-C ends", s->url);
    line(f, STYLE_DIM, text);
    line(f, STYLE_PLAIN, "");
    return;
  }
  if (s->good_us == 0)
    snprintf(text, sizeof text, "! not connected yet; trying again");
  else
    snprintf(text, sizeof text, "! not connected, last answer %s; trying again",
             text_ago(ago, sizeof ago, (clock_mono_us() - s->good_us) / 1000));
  line(f, STYLE_RED, text);
  snprintf(text, sizeof text, "  %s", s->trouble);
  line(f, STYLE_RED, text);
}

static void head(struct frame *f) {
  const struct screen *s = f->screen;
  char room[512], revision[48], text[LINE_SIZE];
  size_t sessions = 0, users = json_object_size(s->fold->users);
  const char *user_id;
  json_t *user;
  json_object_foreach(s->fold->users, user_id, user) {
    sessions += json_object_size(json_object_get(user, "sessions"));
  }
  text_cut(room, sizeof room, s->room, f->narrow ? (f->columns > 34 ? f->columns - 24 : 10) : f->columns / 2);
  snprintf(revision, sizeof revision, ", revision %lld", (long long)s->fold->revision);
  if (s->fold->revision < 0)
    snprintf(text, sizeof text, "%s", room);
  else
    snprintf(text, sizeof text, "%s: %zu %s, %zu %s%s", room, users, plural((int64_t)users, "person", "people"),
             sessions, plural((int64_t)sessions, "session", "sessions"), f->narrow ? "" : revision);
  line(f, STYLE_BOLD, text);
  head_state(f);
}

/// Who is here, then who was, newest first. @param rows how many there may be
static void people(struct frame *f, size_t rows) {
  const struct screen *s = f->screen;
  const char *user_id;
  json_t *user;
  size_t here = json_object_size(s->fold->users), shown = 0, i;
  if (here == 0 && rows > 0) {
    line(f, STYLE_DIM, s->fold->revision < 0 ? "  (waiting for the server)" : "  (nobody is here)");
    shown++;
  }
  json_object_foreach(s->fold->users, user_id, user) {
    if (shown + 1 == rows && here > rows) {
      char text[64];
      snprintf(text, sizeof text, "  and %zu more", here - shown);
      line(f, STYLE_DIM, text);
      return;
    }
    if (shown++ < rows)
      person(f, user_id, user);
  }
  json_array_foreach(s->seen, i, user) {
    user_id = text_of(user, "user_id", "");
    if (shown < rows && json_object_get(s->fold->users, user_id) == NULL) {
      person(f, user_id, NULL);
      shown++;
    }
  }
}

static void events(struct frame *f) {
  const json_t *list = f->screen->events;
  size_t n = json_array_size(list), room = f->rows > f->row ? f->rows - f->row : 0;
  if (n == 0 && f->screen->fold->revision >= 0)
    line(f, STYLE_DIM, "  (none yet)");
  for (size_t i = n > room ? n - room : 0; i < n; i++)
    event_line(f, json_array_get(list, i));
}

void screen_draw(const struct screen *screen) {
  struct winsize size = {0};
  struct frame f = {.screen = screen, .rows = 24, .columns = 80};
  if (!screen->taken)
    return;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
    f.rows = size.ws_row;
    f.columns = size.ws_col > COLUMNS_MAX ? COLUMNS_MAX : size.ws_col;
  }
  f.narrow = f.columns < COLUMNS_NARROW;
  buf_puts(&f.out, "\033[H");
  head(&f);
  size_t fixed = HEAD_ROWS + BETWEEN_ROWS, left = f.rows > fixed ? f.rows - fixed : 1;
  people(&f, left > 2 * EVENTS_MIN ? left - EVENTS_MIN : (left + 1) / 2);
  line(&f, STYLE_PLAIN, "");
  line(&f, STYLE_BOLD, "Events (UTC)");
  events(&f);
  if (f.row < f.rows)
    buf_puts(&f.out, "\r\n\033[J");
  if (!f.out.failed)
    fwrite(f.out.data, 1, f.out.len, stdout);
  fflush(stdout);
  buf_free(&f.out);
}
