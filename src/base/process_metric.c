// SPDX-License-Identifier: Apache-2.0
#include "base/process_metric.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/// Of /proc/self/stat, counted from 1 as proc(5) does.
enum { FIELD_VSIZE = 23, FIELD_RSS = 24, FIELD_STARTTIME = 22, FIELD_STATE = 3 };

static void gauge(struct buf *b, const char *name, const char *help, double value) {
  buf_printf(b, "# HELP %s %s\n# TYPE %s gauge\n%s %.17g\n", name, help, name, name, value);
}

/// The numbers of /proc/self/stat from FIELD_STATE on; the name before them may hold anything. @return how many
static int read_stat(unsigned long long fields[FIELD_RSS + 1]) {
  char line[1024];
  FILE *f = fopen("/proc/self/stat", "re");
  if (f == NULL) {
    return 0;
  }
  size_t n = fread(line, 1, sizeof line - 1, f);
  (void)fclose(f);
  line[n] = '\0';
  char *at = strrchr(line, ')');
  if (at == NULL) {
    return 0;
  }
  int field = FIELD_STATE;
  char *rest = NULL;
  for (char *word = strtok_r(at + 1, " ", &rest); word != NULL && field <= FIELD_RSS;
       word = strtok_r(NULL, " ", &rest)) {
    fields[field] = 0;
    (void)sscanf(word, "%llu", &fields[field]);
    field++;
  }
  return field - 1;
}

/// When the machine started, seconds since 1970. 0: not known.
static double boot_seconds(void) {
  char line[256];
  unsigned long long seconds = 0;
  FILE *f = fopen("/proc/stat", "re");
  if (f == NULL) {
    return 0;
  }
  while (seconds == 0 && fgets(line, sizeof line, f) != NULL) {
    (void)sscanf(line, "btime %llu", &seconds);
  }
  (void)fclose(f);
  return (double)seconds;
}

static void render_memory(struct buf *b) {
  unsigned long long fields[FIELD_RSS + 1];
  if (read_stat(fields) < FIELD_RSS) {
    return;
  }
  gauge(b, "process_virtual_memory_bytes", "Virtual memory size in bytes.", (double)fields[FIELD_VSIZE]);
  gauge(b, "process_resident_memory_bytes", "Resident memory size in bytes.",
        (double)fields[FIELD_RSS] * (double)sysconf(_SC_PAGESIZE));
  double booted = boot_seconds();
  if (booted > 0) {
    gauge(b, "process_start_time_seconds", "Start time of the process since unix epoch in seconds.",
          booted + (double)fields[FIELD_STARTTIME] / (double)sysconf(_SC_CLK_TCK));
  }
}

static void render_cpu(struct buf *b) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) {
    return;
  }
  double seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  buf_printf(b,
             "# HELP process_cpu_seconds_total Total user and system CPU time spent in seconds.\n"
             "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total %.6f\n",
             seconds);
}

static void render_descriptors(struct buf *b) {
  // Linux 6.2 and newer say here how many there are; before that it is 0, and counting them would take long.
  struct stat fds;
  if (stat("/proc/self/fd", &fds) == 0 && fds.st_size > 0) {
    gauge(b, "process_open_fds", "Number of open file descriptors.", (double)fds.st_size);
  }
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    gauge(b, "process_max_fds", "Maximum number of open file descriptors.", (double)limit.rlim_cur);
  }
}

void process_metric_render(struct buf *b) {
  buf_puts(b, "# HELP stillhere_build_info The version, as a label.\n# TYPE stillhere_build_info gauge\n"
              "stillhere_build_info{version=\"" PACKAGE_VERSION "\"} 1\n");
  render_memory(b);
  render_cpu(b);
  render_descriptors(b);
}
