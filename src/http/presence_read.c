// SPDX-License-Identifier: Apache-2.0
#include "http/presence_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "http/worker.h"
#include "live/events_text.h"

static void copy_ident(char out[IDENT_MAX + 1], const char *id) {
  snprintf(out, IDENT_MAX + 1, "%s", id);
}

// -- snapshot: nobody's own ----------------------------------------------------------------------------------------

struct snapshot_read {
  struct read_job job;
  struct tail *tail;
  enum view view;
  char room_id[IDENT_MAX + 1];
};

static enum db_status run_snapshot(struct db *db, struct read_job *job) {
  struct snapshot_read *read = CONTAINER_OF(job, struct snapshot_read, job);
  int64_t asked_us = clock_mono_us(), revision = 0;
  struct body *body = NULL;
  enum db_status status = read_snapshot(db, read->room_id, read->view, &body, &revision);
  if (status != DB_OK)
    return status;
  tail_fill_snapshot(read->tail, read->room_id, read->view, asked_us, body, revision);
  body_unref(body);
  return DB_OK;
}

static void snapshot_done(struct mail *mail) {
  struct snapshot_read *read = CONTAINER_OF(mail, struct snapshot_read, job.mail);
  if (read->job.status != DB_OK)
    tail_snapshot_failed(read->tail, read->room_id, read->view);
  free(read);
}

bool presence_read_snapshot(const struct presence *p) {
  struct worker *worker = p->request->worker;
  struct snapshot_read *read = calloc(1, sizeof *read);
  if (read) {
    read->tail = worker->service->tail;
    read->view = p->query.view;
    copy_ident(read->room_id, p->query.room_id);
    read->job.mail.deliver = snapshot_done;
    read->job.reply_to = &worker->mailbox;
    read->job.deadline_us = p->deadline_us;
    read->job.run = run_snapshot;
    if (reader_submit(worker->service->readers, &read->job))
      return true;
    free(read);
  }
  tail_snapshot_failed(worker->service->tail, p->query.room_id, p->query.view);
  return false;
}

// -- events --------------------------------------------------------------------------------------------------------

static void events_free(struct request_read *base) {
  struct events_read *read = CONTAINER_OF(base, struct events_read, read);
  body_unref(read->body);
  free(read);
}

// Cuts what was read at the limit and makes the reply of it.
static enum db_status make_reply(struct events_read *read, const struct room_news *news) {
  bool more = news->n_events > (size_t)read->limit;
  size_t n = more ? (size_t)read->limit : news->n_events;
  read->head = news->head;
  read->pruned = news->pruned;
  if (n == 0)
    return DB_OK;
  read->revision = more ? news->events[n - 1].revision : news->head;
  read->more = more;
  struct events_text text = {.stream = read->stream};
  events_text_open(&text, read->room_id, read->epoch, read->since, read->revision);
  for (size_t i = 0; i < n; i++)
    events_text_add(&text, news->events[i].revision, news->events[i].kind, news->events[i].json);
  events_text_close(&text, more);
  body_unref(read->body); // of an attempt before this one
  read->body = body_take(&text.out);
  return read->body ? DB_OK : DB_FAILED;
}

static enum db_status run_events(struct db *db, struct read_job *job) {
  struct events_read *read = CONTAINER_OF(job, struct events_read, read.job);
  struct room_news news = {0};
  enum db_status status = read_events(db, read->room_id, read->from, read->kinds, read->limit, &news);
  if (status != DB_OK)
    return status;
  epoch_get(read->epoch);
  status = make_reply(read, &news);
  room_news_free(&news, 1);
  return status;
}

struct request_read *presence_read_events(const struct presence *p) {
  const struct presence_query *query = &p->query;
  struct events_read *read = calloc(1, sizeof *read);
  if (!read)
    return NULL;
  read->read.job.run = run_events;
  read->read.free = events_free;
  read->since = query->since;
  read->from = query->covered > query->since ? query->covered : query->since;
  read->kinds = query->kinds;
  read->limit = query->limit;
  read->stream = query->stream;
  copy_ident(read->room_id, query->room_id);
  return request_read_submit(&read->read, p->request, p->deadline_us) ? &read->read : NULL;
}

// -- session -------------------------------------------------------------------------------------------------------

static void session_free(struct request_read *base) {
  struct session_read *read = CONTAINER_OF(base, struct session_read, read);
  buf_free(&read->text);
  free(read);
}

static enum db_status run_session(struct db *db, struct read_job *job) {
  struct session_read *read = CONTAINER_OF(job, struct session_read, read.job);
  const struct lease_key key = {read->room_id, read->user_id, read->session_id};
  buf_reset(&read->text);
  return read_session(db, &key, &read->text);
}

struct request_read *presence_read_session(const struct presence *p) {
  struct session_read *read = calloc(1, sizeof *read);
  if (!read)
    return NULL;
  read->read.job.run = run_session;
  read->read.free = session_free;
  copy_ident(read->room_id, p->query.room_id);
  copy_ident(read->user_id, p->user_id);
  copy_ident(read->session_id, p->session_id);
  return request_read_submit(&read->read, p->request, p->deadline_us) ? &read->read : NULL;
}
