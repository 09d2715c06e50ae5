#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The sample configuration and the man page's list of keys are printed by the daemon from its own table; the copies in
# the tree must be what it prints. `make regenerate` brings them up to date.
set -u
: "${STILLHERED:?path of the built stillhered}" "${srcdir:?path of the source tree}"

work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
failed=0

same() {
  if ! diff -u "$1" "$2"; then
    echo "FAIL: $1 is not what the daemon prints: run make regenerate" >&2
    failed=1
  fi
}

"$STILLHERED" --print-sample-config >"$work/stillhere.conf" || exit 1
[ -s "$work/stillhere.conf" ] || { echo "FAIL: --print-sample-config printed nothing" >&2; exit 1; }
same "$srcdir/etc/stillhere.conf" "$work/stillhere.conf"

"$STILLHERED" --print-config-man >"$work/keys" || exit 1
[ -s "$work/keys" ] || { echo "FAIL: --print-config-man printed nothing" >&2; exit 1; }
sed -e '/^@KEYS@$/{' -e "r $work/keys" -e 'd' -e '}' "$srcdir/doc/stillhere.conf.5.in" >"$work/stillhere.conf.5"
same "$srcdir/doc/stillhere.conf.5" "$work/stillhere.conf.5"

# Each key of the sample is in the man page, and the other way round.
sed -n 's/^#\([a-z_]*\) *=.*/\1/p' "$work/stillhere.conf" | sort >"$work/sample-keys"
[ -s "$work/sample-keys" ] || { echo "FAIL: no '#key = value' line in the sample" >&2; exit 1; }
while read -r key; do
  grep -q -F -w -e "$key" "$work/keys" || { echo "FAIL: $key is not in the man page" >&2; failed=1; }
done <"$work/sample-keys"

exit $failed
