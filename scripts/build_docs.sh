#!/usr/bin/env bash
# build_docs.sh FOLDER: builds the site of the documentation into FOLDER/VERSION; fails on any warning.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=build/deps/docs PATH=$PWD/build/venv/bin:$PATH NO_MKDOCS_2_WARNING=1
log=$(python -m mkdocs build --strict --site-dir "$1" 2>&1) || { grep -E "WARNING|ERROR|Error|Aborted" <<<"$log" >&2; exit 1; }
