#!/bin/sh
# Installs the Debian packages that are missing. Usage: tools/setup.sh PACKAGE...
set -eu
missing=""
for package in "$@"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
echo "quire: installing Debian packages:$missing"
sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "quire: these packages need root; run as root or install sudo" >&2; exit 1; }
  sudo="sudo"
fi
# The lists may be missing or stale on a fresh machine: update only if the first try fails.
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 || {
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}
