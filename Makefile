# The commands of a day. `make run` and `make test` do all the set-up themselves on a Debian 12 machine.
PACKAGES := build-essential cmake ninja-build pkg-config ccache clang-format python3 \
            libcli11-dev nlohmann-json3-dev libfmt-dev libpcre2-dev libutf8proc-dev libxxhash-dev libboost1.81-dev prometheus-cpp-dev \
            libgtest-dev libgmock-dev
JOBS := $(shell nproc)

.PHONY: run test build dev setup format asan tsan cross fuzz smollm2 clean

run: build
	@echo "quire: asking the house model"
	./build/release/quire run --temperature 0 "What is a KV cache?"
	@echo "Next: ./build/release/quire chat; ./build/release/quire run \"Tell me a story about a fox.\";"
	@echo "      ./build/release/quire run -m MODEL.gguf \"...\" with a model of your own; ./build/release/quire --help"

build: setup
	cmake --preset release
	cmake --build --preset release --parallel $(JOBS)

# A sanitizer or development build: make dev, make asan, make tsan. The latter two run the tests as well.
dev: setup
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS)

test: build
	tools/check_format.sh
	tools/check_dependencies.py
	ctest --test-dir build/release --output-on-failure --parallel $(JOBS)

asan tsan: setup
	cmake --preset $@
	cmake --build --preset $@ --parallel $(JOBS)
	ctest --test-dir build/$@ --output-on-failure --parallel $(JOBS)

# The other architecture: what it compiles to, and its tests under emulation.
cross:
	tools/cross.sh

setup:
	@tools/setup.sh $(PACKAGES)

format:
	git ls-files -co --exclude-standard 'src/*.cc' 'src/*.h' 'tests/*.cc' 'tests/*.h' 'bench/*.cc' 'bench/*.h' | xargs -r clang-format -i

# A real model for the checks that want one; it is not part of the project.
smollm2:
	python3 tools/fetch_smollm2.py

# libFuzzer programs in build/fuzz; CONTRIBUTING.md says how to run one
fuzz:
	tools/setup.sh $(PACKAGES) clang libclang-rt-14-dev
	cmake --preset fuzz
	cmake --build --preset fuzz --parallel $(JOBS)

clean:
	rm -rf build
