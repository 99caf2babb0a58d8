#!/bin/sh
# Builds base, tensor, kv and backend with their tests for the architecture this machine is not, and runs the tests
# under qemu. The two libraries they need are headers, or are built from the sources that Debian ships.
# Then the tests of the kernels for this architecture under qemu, which has instruction sets that this machine may lack.
set -eu
cd "$(dirname "$0")/.."
case "$(uname -m)" in
  aarch64) cpu=x86_64; package=x86-64; theirs=avx2; ours=i8mm ;;
  x86_64) cpu=aarch64; package=aarch64; theirs=i8mm; ours=avx2 ;;
  *) echo "quire: no cross build is known for $(uname -m)" >&2; exit 1 ;;
esac
triple="$cpu-linux-gnu"
tools/setup.sh cmake ninja-build "g++-$package-linux-gnu" qemu-user googletest libgtest-dev libgmock-dev \
  libfmt-dev nlohmann-json3-dev libxxhash-dev
cmake -S . -B build/cross -G Ninja \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$cpu" \
  -DCMAKE_CXX_COMPILER="$triple-g++" -DCMAKE_C_COMPILER="$triple-gcc" \
  -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-$cpu;-cpu;max;-L;/usr/$triple" \
  -DCMAKE_BUILD_TYPE=Release -DQUIRE_CORE_ONLY=ON
cmake --build build/cross --parallel "$(nproc)"
# What qemu must have, so that no kernel goes untested because an emulator did not know its instructions.
QUIRE_EXPECTED_KERNELS="$theirs" ctest --test-dir build/cross --output-on-failure --parallel "$(nproc)"

cmake -S . -B build/emulated -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_CORE_ONLY=ON
cmake --build build/emulated --parallel "$(nproc)" --target backend_test
QUIRE_EXPECTED_KERNELS="$ours" "qemu-$(uname -m)" -cpu max build/emulated/src/backend/backend_test --gtest_brief=1 \
  --gtest_filter="*Matmul*:*Attention*:KvRows*:PeakKernels*:KernelChoice*"
