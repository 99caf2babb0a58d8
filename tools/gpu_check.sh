#!/bin/bash
# All that can be checked on a machine with a GPU, in one call: builds (or takes the programs of QUIRE_BIN), runs the tests that
# need a GPU, the small ones again under compute-sanitizer, measures, and writes what came out to OUT (default: build/gpu_check).
#   tools/gpu_check.sh            QUIRE_BIN=/path/to/programs OUT=/tmp/results tools/gpu_check.sh
set -u
cd "$(dirname "$0")/.."
out=${OUT:-build/gpu_check}
mkdir -p "$out"
if [ -z "${QUIRE_BIN:-}" ]; then
  cmake --preset release -DQUIRE_TESTS=ON -DQUIRE_BENCH=ON -DQUIRE_CUDA=ON -DQUIRE_CUDA_ARCHITECTURES=native &&
    cmake --build --preset release --parallel "$(nproc)" --target quire house cuda_test quire_test || exit 1
  QUIRE_BIN=build/release
fi
find_program() { find "$QUIRE_BIN" -name "$1" -type f -perm -u+x | head -1; }
quire=$(find_program quire)
cuda_test=$(find_program cuda_test)
quire_test=$(find_program quire_test)
failed=0
step() {  # step NAME COMMAND...: its output goes to NAME.txt, its end to the screen
  local name=$1
  shift
  if "$@" > "$out/$name.txt" 2>&1; then
    echo "ok      $name: $(grep -a -v '^$' "$out/$name.txt" | tail -1)"
  else
    echo "FAILED  $name (see $out/$name.txt): $(grep -a -v '^$' "$out/$name.txt" | tail -1)"
    failed=1
  fi
}

nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit --format=csv,noheader | tee "$out/gpu.txt"
step devices "$quire" devices
step kernels "$cuda_test" --gtest_brief=1
step engine "$quire_test" --gtest_brief=1 --gtest_filter='OnAGpu/*:*Gpu*'
if command -v compute-sanitizer > /dev/null; then
  step memcheck compute-sanitizer --error-exitcode 1 "$cuda_test" --gtest_brief=1 --gtest_filter='*OnDevice*Small*:*Operations*'
  step racecheck compute-sanitizer --tool racecheck --error-exitcode 1 "$cuda_test" --gtest_brief=1 --gtest_filter='*Operations*'
fi
for type in bf16 q8_0 q4_0 q4_k_m; do
  model=$out/llama_8b_$type.gguf
  step "synth_$type" "$quire" synth --shape llama-8b --type $type -o "$model"
  step "bench_$type" "$quire" bench -m "$model" --prompt 2048 --prefill-chunk 2048 --gen 64 --batch 1,64 --depth 512 --seconds 1
  rm -f "$model"
done
exit $failed
