#!/bin/bash
# All that can be checked on a machine with a GPU, in one call: builds (or takes the programs of QUIRE_BIN), runs the tests that
# need a GPU, the kernels' again under compute-sanitizer, measures, and writes what came out to OUT (default: build/gpu_check).
# A program's tests are shared by SHARDS processes (default 6), which share the GPU.
#   tools/gpu_check.sh            QUIRE_BIN=/path/to/programs OUT=/tmp/results tools/gpu_check.sh
set -u
cd "$(dirname "$0")/.."
out=${OUT:-build/gpu_check}
shards=${SHARDS:-6}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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
say() { echo "$1 $2: $(grep -a -v '^$' "$out/$2.txt" | tail -1)"; }
step() {  # step NAME COMMAND...: its output goes to NAME.txt, its end to the screen
  local name=$1
  shift
  if "$@" > "$out/$name.txt" 2>&1; then
    say "ok     " "$name"
  else
    say "FAILED " "$name"
    failed=1
  fi
}
tests() {  # tests FILTER COMMAND...: the command with the tests of that name, in shards
  local filter=$1 ended=0 i pids=() said
  said=$(mktemp -d -p "$work")
  shift
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$@" --gtest_filter="$filter" > "$said/$i" 2>&1 &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || ended=1; done
  cat "$said"/*
  echo "$(cat "$said"/* | grep -a -c '^\[       OK') passed, $(cat "$said"/* | grep -a -c '^\[  FAILED  \].*ms)') failed, in $shards processes"
  return $ended
}

nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit --format=csv,noheader | tee "$out/gpu.txt"
step devices "$quire" devices
for type in bf16 q8_0 q4_0 q4_k_m; do  # the files are made meanwhile
  "$quire" synth --shape llama-8b --type $type -o "$work/llama_8b_$type.gguf" > "$out/synth_$type.txt" 2>&1 &
done
synths=$(jobs -p)
step kernels tests '*' "$cuda_test"
step engine tests 'OnAGpu/*:*OnAGpu.*:*Gpu*' "$quire_test"
if command -v compute-sanitizer > /dev/null; then
  step memcheck tests 'Recurrent.*:Operations*:*Sampl*:Exact.*:*Small*' compute-sanitizer --error-exitcode 1 "$cuda_test"
  step racecheck tests 'Operations*:Recurrent.*' compute-sanitizer --tool racecheck --error-exitcode 1 "$cuda_test"
fi
wait $synths
for type in bf16 q8_0 q4_0 q4_k_m; do
  step "bench_$type" "$quire" bench -m "$work/llama_8b_$type.gguf" --prompt 2048 --prefill-chunk 2048 --gen 64 --batch 1,64 --depth 512 --seconds 0.5
done
exit $failed
