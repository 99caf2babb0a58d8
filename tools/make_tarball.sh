#!/bin/sh
# A folder with the program that wants nothing but glibc where it is unpacked: what else it is linked with lies in lib/quire, where it looks first.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^project(quire VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)
name=quire-$version-linux-$(uname -m)
place=build/release/$name
rm -rf "$place"
cmake --install build/release --prefix "$PWD/$place" --strip > /dev/null
# A unit knows where its program is; this folder may be put anywhere.
rm -rf "$place/lib/systemd" "$place/etc"
mkdir -p "$place/lib/quire"
ldd "$place/bin/quire" | awk '$2 == "=>" { print $3 }' | while read -r library; do
  case $(basename "$library") in
    libc.so.*|libm.so.*|libdl.so.*|libpthread.so.*|librt.so.*|ld-linux*) ;;
    *) cp -L "$library" "$place/lib/quire/" ;;
  esac
done
glibc=$(readelf --version-info --wide "$place/bin/quire" "$place"/lib/quire/*.so* "$place"/lib/libquire.so.1 |
  sed -n 's/.*Name: GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -n 1)
tar --sort=name --owner=0 --group=0 --numeric-owner -C build/release -czf "build/release/$name.tar.gz" "$name"
rm -rf "$place"
echo "build/release/$name.tar.gz ($(du -h "build/release/$name.tar.gz" | cut -f1); glibc $glibc or later)"
