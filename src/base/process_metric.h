// SPDX-License-Identifier: Apache-2.0
/// @file
/// What Prometheus expects of every process: memory, CPU, descriptors, start. From /proc; what is not there is left
/// out.
#ifndef SH_BASE_PROCESS_METRIC_H
#define SH_BASE_PROCESS_METRIC_H

#include "base/buf.h"

/// Appends the process_* families and stillhere_build_info in Prometheus text format. Any thread.
void process_metric_render(struct buf *b);

#endif
