# The commands of a day. `make run` and `make test` do all the set-up themselves on a Debian 12 machine.
PACKAGES := build-essential cmake ninja-build pkg-config ccache \
            libcli11-dev nlohmann-json3-dev libfmt-dev libpcre2-dev libutf8proc-dev libxxhash-dev libboost1.81-dev prometheus-cpp-dev \
            libcurl4-openssl-dev libssl-dev libhiredis-dev ca-certificates libjs-katex libjs-pdf
TEST_PACKAGES := $(PACKAGES) libgtest-dev libgmock-dev clang-format git python3 libzmq5 redis-server libopenmpi-dev openmpi-bin
CLIENT_PACKAGES := python3-venv chromium chromium-driver haproxy
# It asks for an older jiter than the newest openai has, and works with either: it is installed without what it asks for.
INSTRUCTOR_NEEDS := aiohttp==3.14.5 docstring_parser==0.18.0 jinja2==3.1.6 regex==2026.11.15 requests==2.34.2 rich==15.0.0 tenacity==9.2.1 typer==0.29.1
# These want an older pydantic and the same goes for them. They need no more than this to choose a replica and to be a worker.
ROUTERS := ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1 smg==1.13.0 setproctitle==1.3.8 uvloop==0.23.0
# These ask for far more than a client of a server runs, such as torch, scikit-learn, boto3 and another openai: they are installed without
# that, with what they import, and nothing is fetched for either.
LITELLM := litellm==1.106.2 fastuuid==0.14.0 importlib_metadata==8.9.0 zipp==4.1.2 pydantic-settings==2.16.3 python-dotenv==1.2.4
LM_EVAL := lm-eval==0.4.13 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 pandas==3.1.1 pyarrow==26.0.1 python-dateutil==4.0.0 xxhash==4.1.0 \
           sacrebleu==2.6.0 colorama==0.4.6 lxml==6.1.3 portalocker==4.4.2 tabulate==0.10.0
JOBS := $(shell nproc)

.PHONY: packed install packages tarball cross-tarball wheel run program test test-all check build dev setup format asan tsan cross fuzz smollm2 clients clean

run: program
	@echo "quire: asking the house model"
	./build/release/quire run --temperature 0 "What is a KV cache?"
	@echo "Next: ./build/release/quire serve, and http://127.0.0.1:8080 in a browser; ./build/release/quire chat;"
	@echo "      ./build/release/quire run -m MODEL.gguf \"...\" with a model of your own; ./build/release/quire --help"

# The program and its model alone. The first time the tests are left out, and so is what they need; `make test` adds
# them in the same folder and compiles nothing twice. Kernels for GPUs take longer than all the rest: where there is an NVIDIA
# driver they are built for this machine's GPU alone, elsewhere not at all; `make build` builds them for all.
GPU_BUILD := $(if $(wildcard /proc/driver/nvidia/version),-DQUIRE_CUDA_ARCHITECTURES=native,-DQUIRE_CUDA=OFF)
program:
	@tools/setup.sh $(PACKAGES)
	cmake --preset release $(if $(wildcard build/release/CMakeCache.txt),,-DQUIRE_TESTS=OFF $(GPU_BUILD))
	cmake --build --preset release --parallel $(JOBS) --target quire house

build: setup
	cmake --preset release -DQUIRE_TESTS=ON -DQUIRE_CUDA=AUTO -UQUIRE_CUDA_ARCHITECTURES
	cmake --build --preset release --parallel $(JOBS)

# A sanitizer or development build: make dev, make asan, make tsan. The latter two run the tests as well.
dev: setup
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS)

test: build check
	ctest --test-dir build/release --output-on-failure --parallel $(JOBS)

# All that can be tested: also with the official client of OpenAI's, the page in Chromium, a real model. Whatever is
# skipped here is a failure, unless the machine lacks the hardware.
test-all: build check clients
	PATH="$(CURDIR)/build/venv/bin:$$PATH" ctest --test-dir build/release --output-on-failure --parallel $(JOBS) \
	  --output-junit "$(CURDIR)/build/release/tests.xml"
	tools/check_skips.py build/release/tests.xml
	build/venv/bin/python3 tools/check_formats.py build/release/src/tensor/tensor_test

check: setup
	tools/check_format.sh
	tools/check_dependencies.py
	tools/check_docs.py

# What others wrote and the tests use: a browser, Python packages in build/venv, a model.
clients:
	@tools/setup.sh $(CLIENT_PACKAGES)
	test -x build/venv/bin/python3 || python3 -m venv build/venv
	build/venv/bin/pip install --quiet --disable-pip-version-check openai==3.51.0 anthropic==2.10.0 ollama==0.6.3 gguf==0.19.0 numpy==2.4.6 huggingface_hub==2.4.0 pyzmq==27.3.0 msgpack==1.2.4 \
	  openai-agents==0.24.0 langchain-openai==1.7.3 'pydantic-ai-slim[openai]==2.68.0' $(INSTRUCTOR_NEEDS)
	build/venv/bin/pip install --quiet --disable-pip-version-check --no-deps instructor==1.17.0 $(LITELLM) $(LM_EVAL) $(ROUTERS)
	build/venv/bin/python3 tools/fetch_smollm2.py

asan tsan: setup
	cmake --preset $@
	cmake --build --preset $@ --parallel $(JOBS)
	ctest --test-dir build/$@ --output-on-failure --parallel $(JOBS)

# The program where others find it, with the library, manual pages, completions and a unit: make install PREFIX=/usr/local
PREFIX := /usr/local
packed: program
	cmake --build --preset release --parallel $(JOBS) --target packed

install: packed
	cmake --install build/release --prefix "$(PREFIX)"

# quire and libquire1 for Debian; a folder that wants nothing but glibc; what pip installs.
packages: packed
	cd build/release && cpack

tarball: packed
	tools/make_tarball.sh

# The same for the other of x86-64 and AArch64.
cross-tarball:
	tools/cross_tarball.sh

wheel: packed
	python3 tools/make_wheel.py --library build/release/libquire.so.1 --folder build/release

# The other architecture: what it compiles to, and its tests under emulation.
cross:
	tools/cross.sh

setup:
	@tools/setup.sh $(TEST_PACKAGES)

format:
	git ls-files -co --exclude-standard 'include/*.h' 'tests/capi/*.c' 'src/*.cc' 'src/*.h' 'src/*.cu' 'src/*.cuh' 'tests/*.cc' 'tests/*.h' 'bench/*.cc' 'bench/*.h' 'bench/*.cu' | xargs -r clang-format -i

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
