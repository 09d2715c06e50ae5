// SPDX-License-Identifier: Apache-2.0
#include "http/handlers.h"

// The style is allowed by its hash, which is that of the bytes between <style> and </style>.
#define STYLE                                                                                                          \
  "body{font:1.1em/1.5 system-ui,sans-serif;max-width:36em;margin:3em auto;padding:0 1em;color:#222;background:#fff}"  \
  "code{background:#f2f2f2;padding:.1em .3em}"
#define STYLE_HASH "2E3hNQsB2jf3D7WVcLNQJjN9dhMM4VEetwSIj7k2Lw8="

/// What this is, for whoever opens the server's address in a browser. It is static and says nothing of any room.
enum request_verdict h_page(struct request *r) {
  static const struct reply_headers headers = {
      .content_type = "text/html; charset=utf-8",
      .content_security_policy = "default-src 'none'; style-src 'sha256-" STYLE_HASH "'; base-uri 'none'; "
                                 "form-action 'none'; frame-ancestors 'none'",
  };
  static const char page[] =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>stillhere</title>\n<style>" STYLE "</style>\n"
      "</head>\n<body>\n<h1>stillhere</h1>\n"
      "<p>This is a presence server: it knows who is still here. Programs talk to it over HTTP.</p>\n"
      "<ul>\n"
      "<li>A session holds an expiring <em>lease</em> in a <em>room</em> and renews it: <code>PUT /leases</code></li>\n"
      "<li>Whoever watches the room learns of every arrival and of every end: "
      "<code>GET /rooms/{room}/presence</code></li>\n"
      "<li>When somebody was last seen: <code>GET /users/{user}/presence</code></li>\n"
      "<li>Whether the process lives: <a href=\"/healthz\">/healthz</a>; whether it can serve: "
      "<a href=\"/readyz\">/readyz</a></li>\n"
      "</ul>\n"
      "<p>Its README and the manual pages stillhered(8), stillhere(1) and stillhere.conf(5) say the rest.</p>\n"
      "<p>Presence is evidence that a client stopped renewing, not proof that a person left.</p>\n"
      "</body>\n</html>\n";
  struct buf b = {0};
  buf_puts(&b, page);
  request_reply_json(r, 200, &b, &headers);
  return REQUEST_DONE;
}
