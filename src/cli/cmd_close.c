// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere close`: ends one lease.
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/http.h"
#include "cli/text.h"

int cmd_close(const struct options *options) {
  struct http *http = http_open(options->url, options->token_file);
  struct buf path = {0};
  buf_puts(&path, "/rooms");
  http_path_add(&path, options->args[0]);
  buf_puts(&path, "/leases");
  http_path_add(&path, options->args[1]);
  http_path_add(&path, options->args[2]);
  if (options->revision > 0)
    http_query_add_int(&path, "revision", options->revision);
  struct http_reply reply = {0};
  int code = EXIT_REFUSED;
  if (http == NULL || path.failed) {
    complain("memory ran out");
  } else {
    enum http_result result = http_send_patiently(http, "DELETE", path.data, NULL, &reply);
    if (result != HTTP_ANSWERED || reply.status != 200) {
      code = http_explain(http, result, &reply);
      if (options->json && reply.json != NULL)
        print_json(reply.json);
    } else {
      code = EXIT_DONE;
      if (options->json)
        print_json(reply.json);
      else
        puts(strcmp(text_of(reply.json, "decision", ""), "already_applied") == 0 ? "it had ended before" : "closed");
    }
  }
  http_reply_clear(&reply);
  buf_free(&path);
  http_close(http);
  return code;
}
