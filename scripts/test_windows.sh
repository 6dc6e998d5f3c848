#!/usr/bin/env bash
# Runs build/windows/detent.exe in Wine: what it writes beside what build/detent writes (tests/emulation/same_bytes.py), and what it
# refuses (tests/emulation/windows.py), and jobs of each kind (tests/emulation/test_jobs.py). Some minutes; not part of `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$PWD/build/windows/tests
mkdir -p "$work"
printf '#!/bin/sh\nexec "%s/scripts/emulate_windows" "%s/build/windows/detent.exe" "$@"\n' "$PWD" "$PWD" >"$work/detent"
chmod +x "$work/detent"
unset DETENT_ONNXRUNTIME  # each takes the runtime beside it
cc -shared -fPIC -o "$work/amx_permission.so" tests/emulation/amx_permission.c
export WINE_PRELOAD=$work/amx_permission.so
# What Wine starts beside a program (services.exe and others) keeps the program's standard error, ends later than it, and has been
# seen to crash then: whoever reads the output of detent would wait for that. So it is started here, for all runs.
export WINEPREFIX=${WINEPREFIX:-$PWD/build/wine}
mkdir -p "$WINEPREFIX"
/usr/lib/wine/wineserver64 -p
trap '/usr/lib/wine/wineserver64 -k' EXIT
scripts/emulate_windows wineboot.exe >/dev/null 2>&1 </dev/null
build/venv/bin/python tests/emulation/windows.py "$work/detent" build/models "$work/windows"
DETENT_EMULATED=$work/detent build/venv/bin/python -m pytest -q -p no:cacheprovider --basetemp "$work/jobs" tests/emulation
build/venv/bin/python tests/emulation/same_bytes.py build/detent "$work/detent" build/models "$work/same_bytes" "$@"
