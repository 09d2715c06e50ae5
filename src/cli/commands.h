// SPDX-License-Identifier: Apache-2.0
/// @file
/// The commands. Each runs to its end and returns the exit code.
#ifndef SH_CLI_COMMANDS_H
#define SH_CLI_COMMANDS_H

#include "cli/options.h"

int cmd_renew(const struct options *options);
int cmd_close(const struct options *options);
int cmd_who(const struct options *options);
int cmd_rooms(const struct options *options);
int cmd_watch(const struct options *options);
int cmd_last_seen(const struct options *options);
int cmd_explain(const struct options *options);
int cmd_bench(const struct options *options);
int cmd_drill(const struct options *options);
int cmd_member(const struct options *options);
int cmd_token(const struct options *options);
int cmd_webhooks(const struct options *options);
int cmd_dev(const struct options *options);

#endif
