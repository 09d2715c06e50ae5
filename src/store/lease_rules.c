// SPDX-License-Identifier: Apache-2.0
#include "store/lease_rules.h"

#include "base/util.h"

static struct verdict refuse(const struct lease_facts *facts, enum decision decision) {
  return (struct verdict){.decision = decision, .new_revision = facts->revision};
}

static struct verdict accept(int64_t revision, bool granted) {
  return (struct verdict){.decision = DECISION_ACCEPTED, .new_revision = revision, .granted = granted};
}

/// Whether the membership stands in the way of a new stay.
static enum decision membership_refusal(const struct lease_facts *facts) {
  if (facts->member == MEMBER_REVOKED) {
    return DECISION_MEMBERSHIP_REVOKED;
  }
  if (facts->membership_required && facts->member == MEMBER_NONE) {
    return DECISION_NOT_A_MEMBER;
  }
  return DECISION_NONE;
}

/// A new stay, unless there is no room for one.
static struct verdict begin(const struct lease_facts *facts, int64_t revision) {
  return facts->full ? refuse(facts, DECISION_TOO_MANY_LEASES) : accept(revision, true);
}

/// One more renewal, unless the last was just now.
static struct verdict renew(const struct lease_facts *facts, int64_t revision) {
  if (facts->renewed_us >= 0 && facts->renewed_us < facts->renew_min_us) {
    return refuse(facts, DECISION_TOO_SOON);
  }
  return accept(revision, false);
}

static struct verdict decide_live(const struct lease_facts *facts, bool revision_given, int64_t revision) {
  if (!revision_given) {
    // Counting up past the largest revision would wrap in a client's number (CONTRACT §2, smaller rules).
    return facts->revision < REVISION_MAX ? renew(facts, facts->revision + 1)
                                          : refuse(facts, DECISION_IGNORED_OLD_REVISION);
  }
  if (revision > facts->revision) {
    return renew(facts, revision);
  }
  return refuse(facts, revision == facts->revision ? DECISION_ALREADY_APPLIED : DECISION_IGNORED_OLD_REVISION);
}

struct verdict decide_heartbeat(const struct lease_facts *facts, bool revision_given, int64_t revision) {
  if (facts->state == LEASE_LIVE) {
    return decide_live(facts, revision_given, revision);
  }
  enum decision refusal = membership_refusal(facts);
  if (refusal != DECISION_NONE) {
    return refuse(facts, refusal);
  }
  if (facts->state == LEASE_UNKNOWN) {
    return begin(facts, revision_given ? revision : 1);
  }
  if (revision_given) {
    return revision > facts->revision ? begin(facts, revision) : refuse(facts, DECISION_IGNORED_OLD_REVISION);
  }
  // A closed session stays closed for those who do not count; an expired one, or one of a member who was granted
  // again after a revocation, begins anew.
  if (facts->state == LEASE_CLOSED) {
    return refuse(facts, DECISION_SESSION_CLOSED);
  }
  return facts->revision < REVISION_MAX ? begin(facts, facts->revision + 1)
                                        : refuse(facts, DECISION_IGNORED_OLD_REVISION);
}

struct verdict decide_close(const struct lease_facts *facts, bool revision_given, int64_t revision) {
  if (facts->state == LEASE_UNKNOWN) {
    return refuse(facts, DECISION_NOT_FOUND);
  }
  if (revision_given && revision < facts->revision) {
    return refuse(facts, DECISION_IGNORED_OLD_REVISION);
  }
  int64_t kept = revision_given ? revision : facts->revision;
  if (facts->state == LEASE_LIVE) {
    return accept(kept, false);
  }
  return (struct verdict){.decision = DECISION_ALREADY_APPLIED, .new_revision = kept};
}
