// SPDX-License-Identifier: Apache-2.0
#include "db/epoch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // a leaf
static char current[EPOCH_SIZE];
static int64_t flushed; // of the current epoch
static atomic_uint generation;
static int64_t newest_system, newest_timeline; // of the servers that were seen

void epoch_get(char out[EPOCH_SIZE]) {
  pthread_mutex_lock(&lock);
  memcpy(out, current, EPOCH_SIZE);
  pthread_mutex_unlock(&lock);
}

bool epoch_set(const char *epoch) {
  size_t len = strlen(epoch);
  if (len >= EPOCH_SIZE)
    len = EPOCH_SIZE - 1;
  pthread_mutex_lock(&lock);
  bool changed = current[0] != '\0' && (strncmp(current, epoch, len) != 0 || current[len] != '\0');
  memset(current, 0, sizeof current);
  memcpy(current, epoch, len);
  if (changed) {
    flushed = 0;
    atomic_fetch_add(&generation, 1);
  }
  pthread_mutex_unlock(&lock);
  return changed;
}

void epoch_saw(const char *epoch, int64_t position) {
  pthread_mutex_lock(&lock);
  if (strcmp(current, epoch) == 0 && position > flushed)
    flushed = position;
  pthread_mutex_unlock(&lock);
}

bool epoch_timeline(int64_t system, int64_t timeline) {
  pthread_mutex_lock(&lock);
  bool left_behind = system == newest_system && timeline < newest_timeline;
  if (!left_behind) {
    newest_system = system;
    newest_timeline = timeline;
  }
  pthread_mutex_unlock(&lock);
  return !left_behind;
}

void epoch_mark(struct epoch_mark *mark) {
  pthread_mutex_lock(&lock);
  memcpy(mark->epoch, current, EPOCH_SIZE);
  mark->flushed = flushed;
  pthread_mutex_unlock(&lock);
}

unsigned epoch_generation(void) {
  return atomic_load(&generation);
}
