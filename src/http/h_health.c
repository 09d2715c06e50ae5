// SPDX-License-Identifier: Apache-2.0
#include "base/jsonout.h"
#include "base/metric.h"
#include "http/handlers.h"
#include "http/lifecycle.h"
#include "http/worker.h"

/// The process answers: that is all that it says. It touches nothing that could be slow or away.
enum request_verdict h_healthz(struct request *r) {
  struct buf b = {0};
  buf_puts(&b, "{\"status\":\"ok\"}");
  request_reply_json(r, 200, &b, NULL);
  return REQUEST_DONE;
}

enum request_verdict h_readyz(struct request *r) {
  const struct service *service = r->worker->service;
  bool database = metric_get(METRIC_DATABASE_UP) != 0;
  bool migrations = atomic_load(&service->lifecycle->migrated);
  bool listener = tail_listening(service->tail);
  bool draining = atomic_load(&service->lifecycle->draining);
  bool ready = database && migrations && listener && !draining;
  struct buf b = {0};
  jo_object(&b);
  jo_kstr(&b, "status", ready ? "ready" : "not_ready");
  jo_kbool(&b, "database", database);
  jo_kbool(&b, "migrations", migrations);
  jo_kbool(&b, "listener", listener);
  jo_kbool(&b, "draining", draining);
  jo_object_end(&b);
  struct reply_headers headers = {.retry_after_s = ready ? 0 : 1};
  request_reply_json(r, ready ? 200 : 503, &b, &headers);
  return REQUEST_DONE;
}
