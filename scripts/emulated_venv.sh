#!/usr/bin/env bash
# emulated_venv.sh FOLDER WHEEL: an environment of Python 3.11 for ARM with a wheel and what it requires (scripts/setup.sh aarch64),
# whose interpreter runs in an emulator.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mkdir -p "$1/bin" && cd "$1" && pwd)
wheel=$(realpath "$2")
arm=$PWD/build/deps/aarch64
python=$arm/sysroot/usr/bin/python3.11
packages=$folder/lib/python3.11/site-packages
mkdir -p "$packages"
printf 'home = %s\nversion = 3.11.2\n' "$(dirname "$python")" >"$folder/pyvenv.cfg"
cat >"$folder/bin/python" <<END
#!/bin/sh
exec "$PWD/scripts/emulate" --as "\$0" "$python" "\$@"
END
cat >"$folder/bin/detent" <<END
#!$folder/bin/python
import sys
from detent.__main__ import main
sys.exit(main())
END
chmod +x "$folder/bin/python" "$folder/bin/detent"
build/venv/bin/python -m zipfile -e "$wheel" "$packages"
chmod +x "$packages/detent/detent"
cp -al "$arm/site/." "$packages/"
