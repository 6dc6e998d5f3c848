#!/usr/bin/env bash
# Makes ready what a build needs: system packages, a Python environment in build/venv, ONNX Runtime's headers in build/deps
# and its library at build/libonnxruntime.so. For Debian 12, Debian 13 and Ubuntu 24.04. Does nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES=(g++ cmake ninja-build ccache python3 python3-dev python3-venv ca-certificates debian-archive-keyring
  libprotozero-dev libfmt-dev libcli11-dev nlohmann-json3-dev libyaml-cpp-dev libzip-dev libxxhash-dev libre2-dev liburing-dev libjpeg-dev libpng-dev libgtest-dev
  libopenmpi-dev openmpi-bin libdnnl-dev ocl-icd-opencl-dev opencl-c-headers
  node-d3-scale node-d3-shape node-d3-selection node-d3-axis)
# Of the tests alone: a browser without a window, in which they read the report (Ubuntu packs none; DETENT_BROWSER can name
# another), and an x86 CPU without VNNI, for where the machine's own cannot hide it.
TEST_PACKAGES=()
# shellcheck source=/dev/null
if [ "$(. /etc/os-release; echo "${ID:-}")" = debian ]; then TEST_PACKAGES+=(chromium-headless-shell); fi
if [ "$(uname -m)" = x86_64 ]; then TEST_PACKAGES+=(qemu-user); fi

# `scripts/setup.sh wheel` stops at what `pip install .` needs: system packages and headers, no Python environment.
# `scripts/setup.sh runtimes` also fetches other versions of ONNX Runtime into build/deps/runtimes, for the tests: the oldest
# that is supported, newer ones, and one that is newer than the one of the environment.
RUNTIMES=(1.21.1 1.24.1 1.28.0 1.32.0)
# And into build/deps/language what language models are tested with.
LANGUAGE_PACKAGES=(tokenizers==0.23.3 onnxruntime-genai==0.18.0)
# And into build/deps/hub the package that reads the Hugging Face hub, with what it needs.
HUB_PACKAGES=(huggingface_hub==2.4.0 httpx2==2.16.2 httpcore2==2.16.2 h11==0.16.0 anyio==4.16.0 idna==3.20 filelock==4.3.1
  fsspec==2026.9.0 tqdm==4.70.1 PyYAML==6.0.4 click==8.5.1 truststore==0.10.5)
# `scripts/setup.sh docs` also fetches what the site of the documentation is built with, into build/deps/docs; `runtimes` does too.
# `scripts/setup.sh cuda` also fetches a CUDA toolkit into build/deps/cuda, where none is installed: what the plugin for GPUs
# is built with and runs on, 0.9 GB to fetch and 1.3 GB on disk. These versions go together.
CUDA_WHEELS=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56)
# `scripts/setup.sh aarch64` also installs a cross compiler for ARM and an emulator, and unpacks Debian 12's C library, Python and
# GoogleTest for ARM into build/deps/aarch64/sysroot, and ONNX Runtime and numpy beside it: what scripts/emulate runs programs with.
# No package for ARM is installed, and the system's list of architectures stays as it is.
CROSS_PACKAGES=(g++-aarch64-linux-gnu qemu-user-static dpkg-dev)
EMULATED_PACKAGES=(libstdc++6 libgtest-dev python3.11)
# `scripts/setup.sh windows` also installs a cross compiler for Windows and Wine, and unpacks ONNX Runtime for Windows into
# build/deps/windows: what scripts/emulate_windows runs programs with.
WINDOWS_PACKAGES=(g++-mingw-w64-x86-64-posix wine64)
only=${1:-all}
case $only in all|wheel|runtimes|docs|cuda|aarch64|windows) ;; *)
  echo "setup: '$only' is none of: wheel, runtimes, docs, cuda, aarch64, windows" >&2; exit 2 ;;
esac
stamp=build/.setup-$(cat scripts/setup.sh scripts/requirements.txt | sha256sum | cut -c1-16)
if [ -e "$stamp" ] && [ -e build/libonnxruntime.so ]; then
  case $only in cuda|runtimes|docs|aarch64|windows) ;; *) exit 0 ;; esac
  ready=yes
fi
mkdir -p build/deps build/tmp
export TMPDIR=$PWD/build/tmp

fail() { printf 'setup: %s\n' "$1" >&2; exit 1; }
say() { printf 'setup: %s\n' "$1"; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else return 1; fi
}

missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || printf '%s ' "$package"
  done
}

install_packages() {
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    fail "this is not a Debian or Ubuntu system (no apt-get). Install the equivalents of: ${PACKAGES[*]}"
  local missing
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  say "installing $missing"
  # A broken third-party package list must not stand in the way: only the install has to succeed.
  as_root env -u TMPDIR apt-get -qq update >build/apt.log 2>&1 || true
  # shellcheck disable=SC2086
  as_root env -u TMPDIR DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing \
    >>build/apt.log 2>&1 && return 0
  tail -n 5 build/apt.log >&2
  fail "apt-get could not install the packages; as root, run: apt-get install $missing"
}

# No wheel carries the headers. Debian 13 packs them; elsewhere that package is fetched and unpacked, never installed.
runtime_headers() {
  local target=build/deps/onnxruntime-headers
  [ -e "$target/onnxruntime_cxx_api.h" ] && return 0
  # shellcheck source=/dev/null
  if [ "$(. /etc/os-release; echo "${VERSION_CODENAME:-}")" = trixie ]; then
    install_packages libonnxruntime-dev
    return 0
  fi
  say "fetching ONNX Runtime's headers"
  local work=$PWD/build/deps/apt
  rm -rf "$work" && mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" \
    >"$work/sources.list"
  # Only the index of packages is wanted: no translations, no application catalogues.
  local apt=(apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=-
    -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)"
    -o Acquire::Languages=none)
  (cd "$work" && env -u TMPDIR "${apt[@]}" update && env -u TMPDIR "${apt[@]}" download libonnxruntime-dev) \
    >build/apt-headers.log 2>&1 || { tail -n 5 build/apt-headers.log >&2; fail "cannot fetch libonnxruntime-dev from deb.debian.org"; }
  dpkg -x "$work"/libonnxruntime-dev_*.deb "$work/files"
  rm -rf "$target" && mv "$work/files/usr/include/onnxruntime" "$target"
  rm -rf "$work"
}

python_environment() {
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or later is needed, this is $(python3 -V)"
  [ -x build/venv/bin/python ] && build/venv/bin/python -c '' 2>/dev/null || {
    say "making build/venv"
    rm -rf build/venv
    python3 -m venv build/venv >build/venv.log 2>&1 || { tail -n 5 build/venv.log >&2; fail "python3 -m venv failed"; }
  }
  build/venv/bin/python -m pip install -q --no-cache-dir --disable-pip-version-check -r scripts/requirements.txt ||
    fail "pip could not install scripts/requirements.txt: is the package index within reach?"
  local library
  library=$(ls build/venv/lib/python3.*/site-packages/onnxruntime/capi/libonnxruntime.so.* | sort -V | tail -n 1)
  ln -sfn "${library#build/}" build/libonnxruntime.so
}

# The wheels lay their files out as a toolkit has them, but for cuDNN's, which have a folder of their own.
cuda_toolkit() {
  local target=build/deps/cuda
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    say "a CUDA toolkit is installed"
    return 0
  fi
  [ ! -x "$target/bin/nvcc" ] || return 0
  say "fetching a CUDA toolkit (0.9 GB)"
  local work=$PWD/build/deps/cuda-wheels
  rm -rf "$work" "$target"
  build/venv/bin/python -m pip install -q --no-cache-dir --disable-pip-version-check --no-deps --target "$work" \
    "${CUDA_WHEELS[@]}" || fail "pip could not fetch the CUDA toolkit: is the package index within reach?"
  cp -al "$work"/nvidia/cudnn/include/. "$work/nvidia/cu13/include/"
  cp -al "$work"/nvidia/cudnn/lib/. "$work/nvidia/cu13/lib/"
  mv "$work/nvidia/cu13" "$target"
  rm -rf "$work"
}

# Each whole or not at all: a folder has its name only when all is in it.
other_runtimes() {
  local version target=build/deps/runtimes
  for version in "${RUNTIMES[@]}"; do
    [ ! -d "$target/$version" ] || continue
    say "fetching ONNX Runtime $version"
    rm -rf "$target/.new"
    build/venv/bin/python -m pip install -q --no-deps --no-cache-dir --disable-pip-version-check --target "$target/.new" \
      "onnxruntime==$version" || fail "pip could not fetch ONNX Runtime $version: is the package index within reach?"
    mv "$target/.new" "$target/$version"
  done
}

# Tokenizers, and the program that language models are run in, without what they would bring along.
language_packages() {
  local target=build/deps/language
  [ ! -d "$target" ] || return 0
  say "fetching tokenizers and onnxruntime-genai"
  rm -rf "$target.new"
  build/venv/bin/python -m pip install -q --no-deps --no-cache-dir --disable-pip-version-check --target "$target.new" \
    "${LANGUAGE_PACKAGES[@]}" || fail "pip could not fetch ${LANGUAGE_PACKAGES[*]}: is the package index within reach?"
  mv "$target.new" "$target"
}

hub_packages() {
  local target=build/deps/hub
  [ ! -d "$target" ] || return 0
  say "fetching huggingface_hub"
  rm -rf "$target.new"
  build/venv/bin/python -m pip install -q --no-deps --no-cache-dir --disable-pip-version-check --target "$target.new" \
    "${HUB_PACKAGES[@]}" || fail "pip could not fetch ${HUB_PACKAGES[*]}: is the package index within reach?"
  mv "$target.new" "$target"
}

documentation_packages() {
  local target=build/deps/docs
  ! cmp -s scripts/requirements-docs.txt "$target/requirements.txt" || return 0
  say "fetching MkDocs"
  rm -rf "$target.new" "$target"
  build/venv/bin/python -m pip install -q --no-deps --no-cache-dir --disable-pip-version-check --target "$target.new" \
    -r scripts/requirements-docs.txt || fail "pip could not fetch scripts/requirements-docs.txt: is the package index within reach?"
  cp scripts/requirements-docs.txt "$target.new/requirements.txt"
  mv "$target.new" "$target"
}

# The closure of what is wanted, as apt finds it for a machine with nothing installed, in folders of its own.
sysroot_packages() {
  local work=$1 keys=/usr/share/keyrings/debian-archive-keyring.gpg
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  printf 'deb [signed-by=%s] http://deb.debian.org/debian%s main\n' "$keys" " bookworm" "$keys" " bookworm-updates" \
    "$keys" "-security bookworm-security" >"$work/sources.list"
  : >"$work/status"
  cat >"$work/apt.conf" <<END
APT { Architecture "arm64"; Architectures { "arm64"; }; Install-Recommends "false"; Sandbox::User "$(id -un)"; };
Acquire::Languages "none";
Dir { Etc { sourcelist "$work/sources.list"; sourceparts "/dev/null"; preferencesparts "/dev/null"; parts "/dev/null"; };
  State "$work"; State::lists "$work/lists"; State::status "$work/status"; Cache "$work/cache"; };
END
  env -u TMPDIR APT_CONFIG="$work/apt.conf" apt-get -qq update
  env -u TMPDIR APT_CONFIG="$work/apt.conf" apt-get -qq -y -o Debug::NoLocking=1 --download-only install "${EMULATED_PACKAGES[@]}"
}

aarch64_sysroot() {
  local target=$PWD/build/deps/aarch64 work=$PWD/build/deps/aarch64-apt archive
  install_packages "${CROSS_PACKAGES[@]}"
  local stamp=$target/.made-of-$(sha256sum scripts/setup.sh | cut -c1-16)
  [ ! -e "$stamp" ] || return 0
  say "fetching libraries for aarch64"
  rm -rf "$target" "$work" && mkdir -p "$target" "$work"
  sysroot_packages "$work" >build/apt-aarch64.log 2>&1 ||
    { tail -n 5 build/apt-aarch64.log >&2; fail "cannot fetch arm64 packages from deb.debian.org"; }
  for archive in "$work"/cache/archives/*.deb; do
    dpkg -x "$archive" "$target/sysroot"
  done
  rm -rf "$work"
  build/venv/bin/python -m pip install -q --no-deps --no-cache-dir --disable-pip-version-check --only-binary=:all: --python-version 3.11 \
    --platform manylinux_2_28_aarch64 --target "$target/site" $(grep -E '^(numpy|onnxruntime)==' scripts/requirements.txt) ||
    fail "pip could not fetch ONNX Runtime for aarch64: is the package index within reach?"
  # ONNX Runtime asks which processors there are, and must not be told of those of this machine.
  mkdir "$target/sysroot/proc"
  for processor in 0 1; do
    printf '%s\t: %s\n' processor $processor BogoMIPS 243.75 Features "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs" "CPU implementer" 0x41 "CPU architecture" 8 "CPU variant" 0x3 "CPU part" 0xd0c "CPU revision" 1
    echo
  done >"$target/sysroot/proc/cpuinfo"
  aarch64-linux-gnu-g++ -std=c++20 -O1 -fPIC -shared -o "$target/libemulated_exec.so" tests/tools/emulated_exec.cpp
  ln -s "$(cd "$target" && ls site/onnxruntime/capi/libonnxruntime.so.*)" "$target/libonnxruntime.so"
  touch "$stamp"
}

# Wine brings the libraries of Microsoft's compiler along that ONNX Runtime is linked with; on Windows they are installed.
windows_runtime() {
  install_packages "${WINDOWS_PACKAGES[@]}"
  local target=$PWD/build/deps/windows wanted
  wanted=$(grep -E '^onnxruntime==' scripts/requirements.txt)
  [ "$(cat "$target/.made-of" 2>/dev/null)" != "$wanted" ] || return 0
  say "fetching ONNX Runtime for Windows"
  rm -rf "$target"
  build/venv/bin/python -m pip install -q --no-deps --no-cache-dir --disable-pip-version-check --only-binary=:all: --python-version 3.11 \
    --platform win_amd64 --target "$target/site" "$wanted" ||
    fail "pip could not fetch ONNX Runtime for Windows: is the package index within reach?"
  ln -s site/onnxruntime/capi/onnxruntime.dll "$target/onnxruntime.dll"
  echo "$wanted" >"$target/.made-of"
}

extras() {
  [ "$only" != windows ] || windows_runtime
  [ "$only" != aarch64 ] || aarch64_sysroot
  [ "$only" != docs ] || documentation_packages
  [ "$only" != cuda ] || cuda_toolkit
  [ "$only" != runtimes ] || { install_packages "${TEST_PACKAGES[@]}"; other_runtimes; language_packages; hub_packages; documentation_packages; }
}

if [ -n "${ready:-}" ]; then
  extras
  exit 0
fi
install_packages "${PACKAGES[@]}"
if [ "$only" = wheel ]; then runtime_headers; exit 0; fi
python_environment &
environment=$!
runtime_headers
wait "$environment"
rm -f build/.setup-*
touch "$stamp"
extras
