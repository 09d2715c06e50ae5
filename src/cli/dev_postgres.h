// SPDX-License-Identifier: Apache-2.0
/// @file
/// The private PostgreSQL of `stillhere dev`: finds the programs, makes the cluster, starts the server on a socket that
/// only its owner reaches.
#ifndef SH_CLI_DEV_POSTGRES_H
#define SH_CLI_DEV_POSTGRES_H

#include <stdbool.h>

#include "cli/dev_child.h"

struct dev_postgres {
  struct dev_user user;
  char data[4096];   ///< the cluster
  char socket[4096]; ///< directory of its socket
  bool socket_temporary;
  char bindir[4096];
  char log[4096];
  char url[8192]; ///< how the server reaches its database
  struct child child;
};

/// Prepares everything under @a dir, an existing directory (absolute): finds the programs, makes the cluster where it
/// is missing. @return false on failure (said)
bool dev_postgres_prepare(struct dev_postgres *pg, const char *dir);

/// Starts it, waits until it answers and makes the database. @return false on failure or a stop signal (said)
bool dev_postgres_start(struct dev_postgres *pg);

/// Stops it (fast shutdown) and removes a temporary socket directory.
void dev_postgres_stop(struct dev_postgres *pg);

#endif
