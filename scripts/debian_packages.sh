#!/bin/sh
# debian_packages.sh PACKAGE …: installs Debian packages where that needs no question, and says so where it cannot.
set -eu
command -v dpkg-query >/dev/null 2>&1 || exit 0
missing=""
for package in "$@"; do
  dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
    missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
  root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
  root="sudo -n"
else
  echo "== NOT INSTALLED (neither root nor password-less sudo), so tests that need it are skipped:$missing" >&2
  exit 0
fi

echo "== Debian packages:$missing"
apt() { $root env DEBIAN_FRONTEND=noninteractive apt-get --quiet -o Dpkg::Use-Pty=0 "$@"; }
apt update || true
# All at once; one that an older release does not have keeps none of the others out.
# shellcheck disable=SC2086 # words
apt install --yes --no-install-recommends $missing || for package in $missing; do
  apt install --yes --no-install-recommends "$package" ||
    echo "== NOT INSTALLED (apt-get failed), so tests that need it are skipped: $package" >&2
done
