"""The rules of the house, read off the #include lines: a room may use itself and the rooms before it, never those after."""

import re

ROOMS = [
    "mpi",  # the plugin: first, so that it uses nothing of the house but its own interface
    "base",
    "shim",
    "profile",
    "onnx",
    "graph",
    "data",
    "store",
    "exec",
    "calibrate",
    "quantize",
    "accuracy",
    "finetune",
    "plan",
    "tuning",
    "run",
    "remedies",
    "pipeline",
    "cli",
    "cuda",  # a plugin as well: last, so that nothing uses it
]
# Headers that only some rooms may know.
GUARDED = {
    "onnxruntime": {"shim", "exec"},
    "protozero": {"onnx", "graph", "calibrate"},
    "mpi.h": {"mpi"},
    "mpi/": {"mpi", "shim"},
    "dnnl": {"finetune"},
    "cuda_runtime": {"cuda"},
    "cublas": {"cuda"},
    "cudnn": {"cuda"},
}
MAX_LINES = 600
SOURCE = {".h", ".hpp", ".cpp", ".cu", ".cuh", ".py", ".sh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def includes(path):
    """Yields (line number, name, whether in quotes) for each #include."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1] or match[2], match[1] is not None


def check_include(root, room, name, quoted):
    """What is wrong with `name` included from `room` (None: a public header), or None."""
    for word, allowed in GUARDED.items():
        if word in name and room not in allowed:
            return f"<{name}>: only {' and '.join(sorted(allowed))} may include {word}"
    if not quoted:
        return None
    if name.startswith("detent/"):
        return None if (root / "include" / name).is_file() else f'"{name}" does not exist in include/'
    target = name.split("/")[0]
    if target not in ROOMS:
        return f'"{name}" is not written as "room/file.h"'
    if not (root / "src" / name).is_file():
        return f'"{name}" does not exist in src/'
    if room is None:
        return f'"{name}": public headers include no room'
    if ROOMS.index(target) > ROOMS.index(room):
        return f'"{name}": {room} stands before {target} and may not use it'
    return None


def violations(root):
    """All breaches of the rules under `root`, one line each."""
    found = []
    for path in sorted(p for p in (root / "src").rglob("*") if p.is_file()):
        room = path.relative_to(root / "src").parts[0]
        where = path.relative_to(root)
        if room == path.name:
            continue  # a file beside the rooms, such as a README
        if room not in ROOMS:
            found.append(f"{where}: '{room}' is not in the list of rooms")
            continue
        if path.suffix in SOURCE:
            for number, name, quoted in includes(path):
                wrong = check_include(root, room, name, quoted)
                if wrong:
                    found.append(f"{where}:{number}: {wrong}")
    for path in sorted((root / "include").rglob("*.h")):
        for number, name, quoted in includes(path):
            wrong = check_include(root, None, name, quoted)
            if wrong:
                found.append(f"{path.relative_to(root)}:{number}: {wrong}")
    for folder in ("src", "include", "tests", "scripts", "examples", "bench", "python"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCE and path.is_file():
                lines = path.read_bytes().count(b"\n")
                if lines > MAX_LINES:
                    found.append(f"{path.relative_to(root)}: {lines} lines, more than {MAX_LINES}")
    return found
