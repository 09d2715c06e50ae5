// SPDX-License-Identifier: Apache-2.0
/// @file
/// The certificate chain and private key that the server speaks TLS with, and how they are replaced while it runs. A
/// pair is immutable and counted: each connection keeps the one that it began with.
#ifndef SH_HTTP_TLS_H
#define SH_HTTP_TLS_H

#include <gnutls/abstract.h>
#include <stdbool.h>

struct tls;

struct tls_pair;

/// Protocols and ciphers: TLS 1.3 and 1.2, nothing without forward secrecy.
#define TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA:%SERVER_PRECEDENCE"

/// Reads a chain (the server's certificate first) and its key, both PEM.
/// @return NULL when they cannot be used or do not belong together (one line is logged, which names the configuration's
/// key), or memory ran out
struct tls *tls_new(const char *cert_file, const char *key_file);

/// After all connections. NULL is fine.
void tls_free(struct tls *tls);

/// Reads both again, for connections from now on. What cannot be used leaves the old pair (logged). Main's thread.
void tls_reload(struct tls *tls, const char *cert_file, const char *key_file);

/// The pair in use, with a reference for the caller. Any thread.
const struct tls_pair *tls_pair_get(struct tls *tls);

/// Gives a reference back; the last one frees it and its key. NULL is fine. Any thread.
void tls_pair_unref(const struct tls_pair *pair);

/// What GnuTLS wants of a pair; it stays the pair's.
void tls_pair_show(const struct tls_pair *pair, gnutls_pcert_st **chain, unsigned *n_chain, gnutls_privkey_t *key);

#endif
