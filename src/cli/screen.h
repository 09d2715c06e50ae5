// SPDX-License-Identifier: Apache-2.0
/// @file
/// A room on a terminal, drawn in place: who is here and since when they were active last, and the newest events. No
/// foreign text reaches the terminal but through text_clean(). One thread.
#ifndef SH_CLI_SCREEN_H
#define SH_CLI_SCREEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

#include "cli/fold.h"

struct screen {
  const char *room, *url;
  const char *kinds;       ///< events of these kinds alone are shown; NULL: all
  const struct fold *fold; ///< who is here
  json_t *events;          ///< the newest ones, in order; notes between them are {"note": text}
  json_t *seen;            ///< the array `users` of a last-seen reply, newest first; NULL: not known
  int64_t seen_us;         ///< when it was asked for, monotonic
  char trouble[200];       ///< why what is shown may not be so any more; "": it is
  int64_t good_us;         ///< when the last good answer came, monotonic; 0: never yet
  bool color;
  bool taken; ///< the terminal is ours at the moment
  bool moded; ///< `before` is to be put back
  struct termios before;
};

/// Whether standard output is a terminal that can be drawn on, and this process is the one in its foreground.
bool screen_possible(void);

/// Prepares what the screen holds; colours, unless NO_COLOR says otherwise.
void screen_open(struct screen *screen);

/// Takes over the terminal, unless it is another's now (after `bg`). Again: does nothing.
void screen_enter(struct screen *screen);

/// Gives the terminal back as it was. Again: does nothing.
void screen_leave(struct screen *screen);

/// Draws everything, cut to the terminal's present size. Nothing while the terminal is not ours.
void screen_draw(const struct screen *screen);

/// Takes in an event to be shown, if its kind is.
void screen_add(struct screen *screen, json_t *event);

/// Takes in a line of our own that stands between the events.
void screen_note(struct screen *screen, const char *text);

/// screen_leave(), and frees what the screen holds.
void screen_close(struct screen *screen);

#endif
