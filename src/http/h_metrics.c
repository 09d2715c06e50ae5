// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "base/metric.h"
#include "http/handlers.h"
#include "http/worker.h"
#include "live/load.h"

enum request_verdict h_metrics(struct request *r) {
  struct buf b = {0};
  metric_load_factor(load_thousandths(r->worker->service->load, clock_mono_us()));
  metric_render(&b);
  struct reply_headers headers = {.content_type = "text/plain; version=0.0.4; charset=utf-8"};
  request_reply_json(r, 200, &b, &headers);
  return REQUEST_DONE;
}
