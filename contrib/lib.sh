# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What contrib/quickstart and contrib/check share: packages, and how the tree is built. Sourced by bash.

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# -- packages --------------------------------------------------------------------------------------------------------

# Where servers are; not in everybody's PATH.
PATH=$PATH:/usr/sbin:/sbin

has_command() { command -v "$1" >/dev/null 2>&1; }
has_library() { has_command pkg-config && pkg-config --exists "$1"; }
has_header() { has_command cc && printf '#include <%s>\n' "$1" | cc -E - >/dev/null 2>&1; }
has_module() { has_command /usr/bin/python3 && /usr/bin/python3 -c "import $1" >/dev/null 2>&1; }
has_postgres() {
  local dir
  for dir in /usr/lib/postgresql/*/bin "$(pg_config --bindir 2>/dev/null)"; do
    [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ] && return 0
  done
  has_command initdb && has_command postgres
}

# Prints the Debian packages whose content is not there: of those that it takes to build and to run it beside a database of
# its own; with the argument `build`, to build it alone; with `tests`, also of those that only tests need.
missing_packages() {
  local kind what package scope
  while read -r kind what package scope; do
    [ "$scope" = tests ] && [ "${1-}" != tests ] && continue
    [ "$scope" = run ] && [ "${1-}" = build ] && continue
    "has_$kind" "$what" || printf '%s ' "$package"
  done <<'LIST'
command  cc             gcc
command  make           make
header   stdio.h        libc6-dev
command  autoreconf     autoconf
command  automake       automake
command  pkg-config     pkg-config
library  libmicrohttpd  libmicrohttpd-dev
library  libpq          libpq-dev
library  libjwt         libjwt-dev
library  gnutls         libgnutls28-dev
library  jansson        libjansson-dev
library  libcurl        libcurl4-gnutls-dev
library  inih           libinih-dev
library  zlib           zlib1g-dev
header   uthash.h       uthash-dev
header   unistr.h       libunistring-dev
postgres -              postgresql           run
library  cmocka         libcmocka-dev        tests
command  python3        python3              tests
module   jsonschema     python3-jsonschema   tests
command  chromium       chromium             tests
command  chromedriver   chromium-driver      tests
command  openssl        openssl              tests
command  nginx          nginx                tests
command  pgbouncer      pgbouncer            tests
command  node           nodejs               tests
command  npm            npm                  tests
command  promtool       prometheus           tests
command  systemd-analyze systemd             tests
command  dh             debhelper            tests
command  fakeroot       fakeroot             tests
command  lintian        lintian              tests
library  libsystemd     libsystemd-dev       tests
LIST
}

# Installs what is missing, where that is allowed: as root, or over sudo without a password, or with one at a terminal.
ensure_packages() {
  local missing as_root=()
  missing=$(missing_packages "${1-}")
  [ -z "$missing" ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    if has_command sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    else
      die "these packages are missing and may not be installed by $(id -un): ${missing% }. As root: apt-get install ${missing% }"
    fi
  fi
  has_command apt-get || die "these packages are missing (names of Debian 12), and there is no apt-get: ${missing% }"
  say "Installing ${missing% }"
  # shellcheck disable=SC2086 # a list of words
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive sh -c '
    apt-get -qq update && exec apt-get -qq install -y --no-install-recommends "$@"' apt $missing </dev/null >&2 ||
    die "apt-get could not install: ${missing% }"
  hash -r
  missing=$(missing_packages "${1-}")
  [ -z "$missing" ] || die "still missing after the installation: ${missing% }"
}

# -- build -----------------------------------------------------------------------------------------------------------

# Sets `tree`, the source tree, by a path without blanks: automake takes no others. A clone in such a place is reached
# through a link in a temporary directory, which is removed at exit.
find_tree() {
  local real
  real=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P) || die "the source tree is not to be found"
  tree=$real
  plain_link=
  case $real in
  *[!A-Za-z0-9_./,:@%+=-]*)
    plain_link=$(mktemp -d) || die "no temporary directory"
    trap remove_link EXIT
    ln -s "$real" "$plain_link/tree"
    tree=$plain_link/tree
    ;;
  esac
}

remove_link() {
  [ -z "$plain_link" ] || rm -rf "$plain_link"
  plain_link=
}

# configure_tree DIRECTORY OPTION…: makes ./configure where it is missing or old, and runs it in the build directory.
configure_tree() {
  local build=$1
  shift
  if [ ! -x "$tree/configure" ] || [ "$tree/configure.ac" -nt "$tree/configure" ] ||
    [ ! -e "$tree/Makefile.in" ] || [ "$tree/Makefile.am" -nt "$tree/Makefile.in" ]; then
    "$tree/autogen.sh" || return 1
  fi
  mkdir -p "$build" || return 1
  # By a relative path where the build is in the tree: what is built then knows no absolute one, and outlives the link
  # or a move of the tree. Elsewhere, what was built over a link that is gone has to go too.
  local configure=$tree/configure
  case $build in
  "$tree"/*/*) ;;
  "$tree"/*) configure=../configure ;;
  *) [ -z "$plain_link" ] || find "$build" -type f \( -name '*.o' -o -name '*.a' -o -name '*.Po' \) -delete ;;
  esac
  # The path may go over a link, which only a logical pwd keeps.
  (cd -L "$build" && "$configure" "$@")
}

# quietly LOG COMMAND…: runs with the output in a file, which is shown when it fails.
quietly() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 </dev/null && return 0
  tail -n 60 "$log" >&2
  return 1
}

jobs() { nproc 2>/dev/null || echo 2; }
