#!/bin/sh
# make_tarball.sh [BUILD SYSROOT ARCHITECTURE]: a folder with the program that wants nothing but glibc where it is unpacked: what else it is
# linked with lies in lib/quire, where it looks first. Of build/release and this machine, unless another is named (tools/cross_tarball.sh).
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}
sysroot=${2:-}
architecture=${3:-$(uname -m)}
version=$(sed -n 's/^project(quire VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)
name=quire-$version-linux-$architecture
place=$build/$name
rm -rf "$place"
cmake --install "$build" --prefix "$PWD/$place" --strip > /dev/null
# A unit knows where its program is; this folder may be put anywhere.
rm -rf "$place/lib/systemd" "$place/etc"
mkdir -p "$place/lib/quire"

# Brings what a file is linked with, and what that is linked with; glibc's own libraries are where they run.
bring() {
  for library in $(readelf --dynamic --wide "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p'); do
    case $library in
      libc.so.*|libm.so.*|libdl.so.*|libpthread.so.*|librt.so.*|ld-linux*) continue ;;
    esac
    [ ! -e "$place/lib/quire/$library" ] || continue
    found=""
    for folder in "usr/lib/$architecture-linux-gnu" "lib/$architecture-linux-gnu"; do
      if [ -e "$sysroot/$folder/$library" ]; then
        found=$sysroot/$folder/$library
        break
      fi
    done
    [ -n "$found" ] || { echo "quire: $library, which $1 wants, is not in $sysroot/usr/lib/$architecture-linux-gnu" >&2; return 1; }
    cp -L "$found" "$place/lib/quire/"
    bring "$place/lib/quire/$library" || return 1
  done
}
bring "$place/bin/quire"
bring "$place/lib/libquire.so.1"

glibc=$(readelf --version-info --wide "$place/bin/quire" "$place"/lib/quire/*.so* "$place"/lib/libquire.so.1 |
  sed -n 's/.*Name: GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -n 1)
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$build" -czf "$build/$name.tar.gz" "$name"
rm -rf "$place"
echo "$build/$name.tar.gz ($(du -h "$build/$name.tar.gz" | cut -f1); glibc $glibc or later)"
