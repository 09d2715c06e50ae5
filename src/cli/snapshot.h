// SPDX-License-Identifier: Apache-2.0
/// @file
/// A presence reply and its events, as lines for people.
#ifndef SH_CLI_SNAPSHOT_H
#define SH_CLI_SNAPSHOT_H

#include <jansson.h>

/// Prints who is here: a line for the room, a line for each person.
void snapshot_print(const json_t *reply);

/// Prints one event as one line.
void event_print(const json_t *event);

#endif
