# `make help` lists the targets. All output goes to build/.
WERROR ?= OFF
MINUTES ?= 2
# What a wheel, a package and tests are for: this machine; or aarch64, or windows, which are cross-compiled and emulated.
ARCH ?= $(shell uname -m)
ifeq ($(ARCH),$(shell uname -m))
override ARCH :=
endif
MODELS ?= ppocr_cls ppocr_det ppocr_rec opennsfw digits photos fonts text

PYTHON := build/venv/bin/python
# Caches and temporary files stay in build/ too.
export CCACHE_DIR ?= $(CURDIR)/build/cache/ccache
export XDG_CACHE_HOME := $(CURDIR)/build/cache
export PYTHONDONTWRITEBYTECODE := 1
export ORT_DISABLE_TELEMETRY := 1

.DEFAULT_GOAL := all
.PHONY: all cuda setup configure build models runtimes docs test test-all costs check sanitize sanitize-all faults fuzz demo bench wheel
.PHONY: package format lint clean distclean help

all: build  ## install what is needed and build build/detent

setup:  ## install system packages, Python environment, ONNX Runtime headers, if missing
	@scripts/setup.sh

build: configure
	@$(COMPILE) detent

configure: setup
	@if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi; \
	cmake --preset release -DDETENT_WERROR=$(WERROR) --log-level=WARNING >build/configure.log 2>&1 \
	  || { cat build/configure.log >&2; exit 1; }

cuda: setup  ## build build/libdetent_cuda.so, the plugin for GPUs; fetches a CUDA toolkit if needed
	@scripts/setup.sh cuda
	@$(MAKE) --no-print-directory configure
	@cmake --build build --target detent detent_cuda

models: setup  ## fetch trained models and data for tests and demo into build/models
	@$(PYTHON) scripts/fetch_models.py $(MODELS)

runtimes: setup  ## fetch other versions of ONNX Runtime, which the tests load models in
	@scripts/setup.sh runtimes

# What is compiled shows as one line that counts, also where the output is no terminal.
COMPILE := scripts/compile.sh
CTEST := ctest --test-dir build --output-on-failure --no-tests=error -j 2

ifeq ($(ARCH),)
test: models runtimes configure  ## run the first set of tests: all units, and each command, format and kind of input at least once
	@$(COMPILE) all
	@$(CTEST) -LE full

test-all: models runtimes configure  ## run all tests (SLICE=3/5: the third of five parts of what `make test` leaves out)
	@$(COMPILE) all full_set
	@if [ -n "$(SLICE)" ]; then part=$$($(PYTHON) tests/tools/costs.py slice build $(SLICE)) && $(CTEST) -R "$$part"; else $(CTEST); fi
else ifeq ($(ARCH),windows)
test: models build package  # what it writes beside what this machine writes
	@scripts/test_windows.sh
else
test: models build  # the unit tests for ARM, and what it writes beside what this machine writes
	@scripts/setup.sh aarch64
	@WERROR=$(WERROR) scripts/test_aarch64.sh
endif

faults: configure  ## let every call to the system fail, one after another, and kill runs at every point (hours)
	@cmake --build build --target detent detent_python failing_calls
	@for tried in faults kills; do DETENT_ONNXRUNTIME=$(CURDIR)/build/libonnxruntime.so $(PYTHON) tests/e2e/$$tried.py || exit 1; done

costs:  ## print what the last run of the tests and the last build took: the forty dearest of both, and sums by kind
	@$(PYTHON) tests/tools/costs.py show build

demo:  ## quantize two trained models and compare their scores with the float models'
	@[ -x build/detent ] || echo "make demo: about 6 minutes on two cores, most of them to compile; downloads about 300 MB into build/"
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory -j 2 build models  # models are fetched while the compiler works
	@$(PYTHON) examples/demo/demo.py

bench: build models  ## run the benchmarks
	@cmake --build build --target bench_inference
	@$(PYTHON) bench/run.py

ifeq ($(ARCH),windows)
wheel: package
else
wheel:  ## build a wheel into dist/, and try it in a fresh environment; needs a compiler and Python (ARCH=aarch64: for ARM; windows)
	@[ "$(ARCH)" != aarch64 ] || scripts/setup.sh aarch64
	@ARCH=$(ARCH) scripts/build_wheel.sh
endif

# For ARM without what only its own packages could give: oneDNN, io_uring and MPI.
PACKAGE_TREE := build/package$(if $(filter aarch64,$(ARCH)),-aarch64)
PACKAGE_OPTIONS := $(if $(filter aarch64,$(ARCH)),--toolchain $(CURDIR)/cmake/aarch64.cmake -DDETENT_FETCH=ALL -DDETENT_URING=OFF -DDETENT_MPI=OFF \
  -DDETENT_CUDA=OFF)
ifeq ($(ARCH),windows)
package: setup  # the command for Windows
	@scripts/setup.sh windows
	@WERROR=$(WERROR) scripts/build_windows.sh
else
package: setup  ## build a Debian package of command and library into dist/ (ARCH=aarch64: for ARM; windows: the command)
	@[ "$(ARCH)" != aarch64 ] || scripts/setup.sh aarch64
	@if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi; \
	cmake --preset package -B $(PACKAGE_TREE) $(PACKAGE_OPTIONS) --log-level=WARNING >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
	@cmake --build $(PACKAGE_TREE)
	@cd $(PACKAGE_TREE) && cpack && rm -r $(CURDIR)/dist/_CPack_Packages
endif

SOURCES = $(shell find src include tests python bench -name '*.h' -o -name '*.cpp')

docs: setup  ## build the site of the documentation into build/site
	@scripts/setup.sh docs
	@scripts/build_docs.sh build/site
	@echo "build/site/index.html (search: $(PYTHON) -m http.server -d build/site)"

format: setup  ## run clang-format on all C++ files
	@build/venv/bin/clang-format -i $(SOURCES)

check: setup  ## check formatting (clang-format), Python style (ruff) and the pages' sentences (tests/structure/prose.py)
	@build/venv/bin/clang-format --dry-run -Werror $(SOURCES)
	@$(PYTHON) -m ruff check --no-cache --quiet
	@$(PYTHON) -m ruff format --no-cache --quiet --check
	@$(PYTHON) tests/structure/prose.py

sanitize: setup  ## test the parsers and the spool with AddressSanitizer and UndefinedBehaviorSanitizer
	@if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi; \
	cmake --preset parsers -DDETENT_WERROR=$(WERROR) --log-level=WARNING >build/configure.log 2>&1 \
	  || { cat build/configure.log >&2; exit 1; }
	@cmake --build --preset parsers -j 2
	@ctest --preset parsers --no-tests=error -LE full -j 2

sanitize-all: setup  ## the same for the unit tests of all rooms (half an hour or more)
	@if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi; \
	cmake --preset asan -DDETENT_WERROR=$(WERROR) --log-level=WARNING >build/configure.log 2>&1 \
	  || { cat build/configure.log >&2; exit 1; }
	@cmake --build --preset asan -j 2
	@ctest --preset asan --no-tests=error -L unit -j 2

fuzz: build  ## run all fuzz targets for MINUTES (default 2), as many at once as there are processors; needs clang
	@command -v clang++ >/dev/null || { echo "make fuzz needs clang: apt-get install clang llvm" >&2; exit 1; }
	@if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi; \
	cmake --preset fuzz --log-level=WARNING >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
	@cmake --build --preset fuzz --target fuzz
	@DETENT_ONNXRUNTIME=$(CURDIR)/build/libonnxruntime.so $(PYTHON) tests/fuzz/run.py build/fuzz/tests/fuzz/fuzz build/fuzz/grown \
	  --minutes $(MINUTES)
	@DETENT_ONNXRUNTIME=$(CURDIR)/build/libonnxruntime.so $(PYTHON) tests/fuzz/differential.py build/detent \
	  --minutes $$(($(MINUTES) / 10)) --count 100 --seed $$$$ --keep build/fuzz/grown/findings

lint: configure  ## run clang-tidy on all C++ sources
	@command -v clang-tidy >/dev/null || { echo "make lint needs clang-tidy: apt-get install clang-tidy" >&2; exit 1; }
	@find src -name '*.cpp' | xargs -P "$$(nproc)" -n 4 clang-tidy -p build --quiet

clean:  ## remove compiled files; keep downloads
	@[ ! -f build/CMakeCache.txt ] || cmake --build build --target clean
	@rm -rf build/wheel* build/package build/aarch64 build/package-aarch64 build/windows build/wine build/debug build/asan build/parsers build/tsan build/fuzz build/demo build/tmp

distclean:  ## remove build/
	@rm -rf build

help:  ## show this list
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
