#!/bin/sh
# The tarball for the architecture that this machine is not: Debian's libraries of it are unpacked, never run, into build/sysroot, the program
# is cross-compiled against them, and asked under qemu with nothing around it but glibc.
set -eu
cd "$(dirname "$0")/.."
case "$(uname -m)" in
  aarch64) cpu=x86_64; package=x86-64; debian=amd64 ;;
  x86_64) cpu=aarch64; package=aarch64; debian=arm64 ;;
  *) echo "quire: no cross build is known for $(uname -m)" >&2; exit 1 ;;
esac
tools/setup.sh cmake ninja-build pkg-config mmdebstrap "g++-$package-linux-gnu" qemu-user libjs-katex libjs-pdf
sysroot=$PWD/build/sysroot/$debian
bare=$PWD/build/sysroot/$debian-bare

# unpack FOLDER PACKAGES: a root of Debian 12 of which no script has run
unpack() {
  [ -e "$1/done" ] && return
  rm -rf "$1"
  mmdebstrap --quiet --mode=root --variant=extract --architectures="$debian" --skip=check/qemu --include="$2" bookworm "$1" ${MIRROR:-}
  touch "$1/done"
}
unpack "$sysroot" libc6-dev,libstdc++6,libcli11-dev,nlohmann-json3-dev,libfmt-dev,libpcre2-dev,libutf8proc-dev,libxxhash-dev,libboost1.81-dev,prometheus-cpp-dev,libcurl4-openssl-dev,libssl-dev
unpack "$bare" libc6

triple=$cpu-linux-gnu
build=build/cross_release
PKG_CONFIG_LIBDIR=$sysroot/usr/lib/$triple/pkgconfig:$sysroot/usr/share/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$sysroot
export PKG_CONFIG_LIBDIR PKG_CONFIG_SYSROOT_DIR
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_TESTS=OFF -DQUIRE_CUDA=OFF \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$cpu" \
  -DCMAKE_CXX_COMPILER="$triple-g++" -DCMAKE_C_COMPILER="$triple-gcc" \
  -DCMAKE_SYSROOT="$sysroot" -DCMAKE_FIND_ROOT_PATH="$sysroot" \
  -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY \
  -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY \
  -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-$cpu;-cpu;max;-L;$sysroot"
cmake --build "$build" --parallel "$(nproc)" --target packed
tools/make_tarball.sh "$build" "$sysroot" "$cpu"

# What was packed, where there is nothing else.
tried=$(mktemp -d)
trap 'rm -rf "$tried"' EXIT
tar -C "$tried" -xzf "$build"/quire-*-linux-"$cpu".tar.gz
qemu-$cpu -cpu max -L "$bare" "$tried"/quire-*/bin/quire run --temperature 0 -n 12 "What is a KV cache?"
