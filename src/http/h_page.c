// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "http/builtin.h"
#include "http/handlers.h"
#include "http/www.h"

/// The page's own files and its own server, and nothing else: no inline script or style, no frame around it. What comes
/// from rooms is text to it; where its code should forget that, the browser refuses to make markup of it.
#define POLICY                                                                                                         \
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "     \
  "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

static struct builtin *kept; ///< one for each of www_files, made by whoever asks first; NULL: memory had run out
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_kept(void) {
  kept = calloc(www_file_count, sizeof *kept);
  for (size_t i = 0; kept != NULL && i < www_file_count; i++)
    builtin_make(&kept[i], www_files[i].data, www_files[i].len);
}

/// A file of the live page. It is the same for everybody and says nothing of any room.
enum request_verdict h_page(struct request *r) {
  (void)pthread_once(&once, make_kept);
  const char *name = r->params[0] != NULL ? r->params[0] : "";
  size_t i = 0;
  while (i < www_file_count && strcmp(www_files[i].name, name) != 0)
    i++;
  if (i == www_file_count) {
    request_problem(r, 404, "not_found", NULL, "the live page has no such file");
    return REQUEST_DONE;
  }
  if (kept == NULL) {
    request_unavailable(r, "out of memory");
    return REQUEST_DONE;
  }
  const struct reply_headers headers = {.content_type = www_files[i].type, .content_security_policy = POLICY};
  builtin_reply(r, &kept[i], &headers);
  return REQUEST_DONE;
}
