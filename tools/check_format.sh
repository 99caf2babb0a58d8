#!/bin/sh
# Fails, naming the files, if any source is not formatted as .clang-format says. `make format` mends them.
set -eu
cd "$(dirname "$0")/.."
git ls-files 'include/*.h' 'tests/capi/*.c' 'src/*.cc' 'src/*.h' 'src/*.cu' 'src/*.cuh' 'tests/*.cc' 'tests/*.h' 'bench/*.cc' 'bench/*.h' 'bench/*.cu' | xargs -r clang-format --dry-run -Werror
