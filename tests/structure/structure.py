"""Rules of the source layout, read off the #include lines: a folder may use itself and the folders before it in the list."""

import pathlib
import re
import sys

import measures
import prose

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import publish  # noqa: E402

ROOMS = [
    "mpi",  # the plugin: first, so that it uses nothing but its own interface
    "base",
    "shim",
    "profile",
    "onnx",
    "graph",
    "data",
    "store",
    "exec",
    "config",
    "calibration",
    "quantization",
    "speed",
    "planning",
    "solve",
    "run",
    "remedies",
    "checking",
    "searching",
    "pipeline",
    "cli",
    "cuda",  # a plugin as well: last, so that nothing uses it
]
# Headers that only some rooms may know.
GUARDED = {
    "onnxruntime": {"shim", "exec"},
    "protozero": {"onnx", "graph", "calibration"},
    "mpi.h": {"mpi"},
    "re2/": {"base"},
    "mpi/": {"mpi", "shim"},
    "dnnl": {"solve"},
    "cuda_runtime": {"cuda"},
    "cublas": {"cuda"},
    "cudnn": {"cuda"},
}
# What only some files may do, whatever they include: a pattern, the files, and what others call.
ONLY_IN = [
    (re.compile(r"\.dump\(|\b(?:sax_)?parse\([^;]*,\s*nullptr,\s*false\)|\b(?:[jJ]son|ordered_json)::(?:sax_parse|parse|accept|from_\w+)\("),
     {"src/base/json.cpp"}, "parse_json() and json_text() of base/json.h"),
]  # fmt: skip
# Names that only this project had, and the field's word for each.
FIELD_WORDS = {
    "BlockTurns": "BlockRefinement",
    "ByContent": "ContentOrderedSamples",
    "DeafReceiver": "NullReceiver",
    "announce": "prefetch",
    "as_in_run": "forecast_by_running",
    "bypassed": "float_readers_unrounded",
    "cure": "suggestion",
    "kOfForms": "kFormRemedies",
    "kNoHarm": "kNegligibleError",
    "made_up": "synthetic",
    "make_up": "propagate_error",
    "order_of_turns": "rounding_order",
    "said_by_members": "options_set_by_member",
    "share_room": "split_budget",
    "spell_out": "im2col",
    "sudden_end": "crash",
    "time_in_turns": "time_interleaved",
    "told_of": "note_on_choice",
    "told_of_target": "target_notes",
    "what_is_left": "note_on_remaining_error",
    "words_of_outputs": "notes_on_uncompared_outputs",
}
OWN_WORDS = re.compile(r"\b(?:" + "|".join(FIELD_WORDS) + r")\b(?![- ]\w)")
# Rooms on the longest path of includes from room to room.
MAX_LAYERS = 9
MAX_COLUMNS = 120  # of prose
MAX_LINES = {"src": 800, "include": 450, "python": 450, "scripts": 450, "examples": 450, "tests": 800, "bench": 600}
MAX_FUNCTION_LINES = 80  # in src/
# What src/ and tests/ may have as a whole. These numbers fall with what is removed, and rise only in a commit that says why.
MAX_FILES = 480
MAX_UNITS = 226  # sources that are compiled for Linux
MAX_LINES_OF_SRC = 98064  # of C++
MAX_TEST_UNITS = 82
# The first set of tests, in seconds of processors by tests/costs.tsv (`make costs` tells what is dear); and the words of docs/ and
# README.
MAX_SECONDS_OF_FIRST_SET = 970
MAX_WORDS = 50516
# What still breaks a limit, and the lines that it may have until it is split. Entries only ever leave this table.
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}
# A folder's code is in the namespace of the folder's name; folders in this table are in another one.
NAMESPACES = {}
# Where a namespace is opened for more than declarations of what is elsewhere.
NAMESPACE = re.compile(r"^(?:inline )?namespace detent::(\w+)[\w:]* \{(?!(?:\n(?:class|struct|enum) [^{]*;)+\n\})", re.MULTILINE)
CPP = {".h", ".hpp", ".cpp", ".cu", ".cuh"}
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
    rules = (
        long_files,
        long_lines,
        long_functions,
        too_many_layers,
        other_namespaces,
        throwing_calls,
        done_elsewhere,
        own_words,
        first_set_too_dear,
        too_many_words,
        prose.violations,
        publish.violations,
        growth,
    )
    return found + [line for rule in rules for line in rule(root)]


def files(root, folder, suffixes):
    return [path for path in sorted((root / folder).rglob("*")) if path.suffix in suffixes and path.is_file()]


def long_files(root):
    found = []
    for folder, limit in MAX_LINES.items():
        for path in files(root, folder, SOURCE):
            name = path.relative_to(root).as_posix()
            text = path.read_bytes()
            lines = text.count(b"\n")
            if b"do not edit" in text[:200]:  # written by a script, whose own lines count
                continue
            allowed = max(limit, LONG_FILES.get(name, 0))
            if lines > allowed:
                found.append(f"{name}: {lines} lines, more than {allowed}")
    return found


def growth(root):
    """src/ and tests/ grow by what a module gains, not by new fragments."""
    paths = [path for path in (root / "src").rglob("*") if path.is_file()]
    sources = [path for path in paths if path.suffix in CPP]
    counts = {
        "src/ has {} files": (len(paths), MAX_FILES),
        "src/ has {} compiled sources": (sum(p.suffix == ".cpp" and "windows" not in p.parts for p in sources), MAX_UNITS),
        "src/ has {} lines": (sum(path.read_bytes().count(b"\n") for path in sources), MAX_LINES_OF_SRC),
        "tests/ has {} compiled sources": (sum(1 for _ in (root / "tests").rglob("*.cpp")), MAX_TEST_UNITS),
    }
    for what, (count, most) in counts.items():
        if count > most:
            yield (
                f"{what.format(count)}, more than {most}: put them in a module that exists or remove others; where that "
                "cannot be, raise the number in tests/structure/structure.py, and let the commit say why"
            )


def first_set_too_dear(root):
    table = root / "tests" / "costs.tsv"
    rows = (line.split("\t") for line in table.read_text().splitlines()) if table.is_file() else []
    seconds = sum(float(cost) for name, cost in rows if not name.endswith(".full"))
    if seconds > MAX_SECONDS_OF_FIRST_SET:
        yield f"the first set of tests takes {seconds:.0f} s, more than {MAX_SECONDS_OF_FIRST_SET}: mark what is dear `full`"


def too_many_words(root):
    texts = [path.read_text() for path in [*files(root, "docs", (".md",)), *root.glob("README.md")]]
    texts = [re.sub(r"<!--.*?-->", "", text) for text in texts if "written by `scripts/" not in text[:300]]
    words = sum(len(text.split()) for text in texts)
    if words > MAX_WORDS:
        yield f"docs/ and README have {words} words, more than {MAX_WORDS}: say it shorter, or remove what nobody needs"


def long_lines(root):
    """Prose wraps; tables, code and words that cannot break do not."""
    for path in [*files(root, "docs", (".md",)), *sorted(root.glob("*.md"))]:
        in_code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                in_code = not in_code
            whole = in_code or line.lstrip().startswith("|") or "](" in line or path.name == "options.md"
            if len(line) > MAX_COLUMNS and not whole:
                yield f"{path.relative_to(root)}:{number}: {len(line)} columns, at most {MAX_COLUMNS} are allowed"


def long_functions(root):
    found = []
    for path in files(root, "src", CPP):
        name = path.relative_to(root).as_posix()
        allowed = max(MAX_FUNCTION_LINES, LONG_FUNCTIONS.get(name, 0))
        for line, lines in measures.functions(path.read_text(encoding="utf-8")):
            if lines > allowed:
                found.append(f"{name}:{line}: a function of {lines} lines, more than {allowed}")
    return found


def done_elsewhere(root):
    found = []
    for path in files(root, "src", CPP):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        for pattern, allowed, instead in ONLY_IN:
            if name not in allowed:
                found += [f"{name}:{text[: m.start()].count(chr(10)) + 1}: {m[0]} is for {instead}" for m in pattern.finditer(text)]
    return found


def own_words(root):
    found = []
    for folder in ("src", "include", "python", "bench", "tests"):
        for path in files(root, folder, CPP | {".py"}):
            text = path.read_text(encoding="utf-8")
            for match in OWN_WORDS.finditer(text) if path.parent.name != "structure" else ():
                line = text[: match.start()].count("\n") + 1
                found.append(f"{path.relative_to(root)}:{line}: {match[0]} is called {FIELD_WORDS[match[0]]}")
    return found


def too_many_layers(root):
    uses = {}
    for path in files(root, "src", SOURCE):
        room = path.relative_to(root / "src").parts[0]
        for _, name, quoted in includes(path):
            if quoted and not name.startswith("detent/"):
                uses.setdefault(room, set()).add(name.split("/")[0])
    try:
        path = measures.layers(uses)
    except RecursionError:
        return ["rooms include each other in a circle"]
    if len(path) > MAX_LAYERS:
        return [f"{len(path)} layers of rooms, more than {MAX_LAYERS}: {' > '.join(path)}"]
    return []


def other_namespaces(root):
    found = []
    for path in files(root, "src", CPP):
        room = path.relative_to(root / "src").parts[0]
        if room == path.name:
            continue
        for match in NAMESPACE.finditer(path.read_text(encoding="utf-8")):
            if match[1] != NAMESPACES.get(room, room):
                found.append(f"{path.relative_to(root)}: namespace detent::{match[1]} in {room}/")
    return found


# Of std::filesystem: what asks the system, and throws where no std::error_code is given.
ASKING = (
    "exists|is_(?:directory|regular_file|symlink|fifo|other|empty|socket|block_file|character_file)|file_size|canonical|"
    "weakly_canonical|absolute|relative|proximate|copy|copy_file|copy_symlink|create_directory|create_directories|"
    "create_directory_symlink|create_hard_link|create_symlink|current_path|equivalent|hard_link_count|last_write_time|"
    "permissions|read_symlink|remove|remove_all|rename|resize_file|space|status|symlink_status|temp_directory_path|"
    "directory_iterator|recursive_directory_iterator"
)
CALL = re.compile(rf"\b(?:fs|filesystem)::({ASKING})\b(?: (?!const\b)\w+)?\(")
MEMBER_CALL = re.compile(
    r"(?:\.|->)(exists|is_(?:directory|regular_file|symlink|fifo|other|socket)|file_size|hard_link_count|last_write_time|status|symlink_status)\(\)"
)
PATHLIB_CALL = re.compile(r"\.(exists|is_dir|is_file|is_symlink|is_fifo|is_mount)\(\)")
ENTRY = re.compile(r"\bdirectory_(?:entry|iterator)\b")
ERROR_CODE = re.compile(r"\bstd::error_code&? (\w+(?:, \w+)*)")


def arguments(text, begin):
    """The text between a parenthesis that opens before `begin` and the one that closes it."""
    depth = 1
    for at in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at]
    return text[begin:]


def throwing_calls(root):
    """A folder that cannot be searched must not end a run by an exception that nobody expects: base/paths.h asks."""
    found = []
    for path in files(root, "src", CPP):
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        codes = {name for match in ERROR_CODE.finditer(text) for name in match[1].split(", ")}
        calls = [(match, arguments(text, match.end())) for match in CALL.finditer(text)]
        if ENTRY.search(text):
            calls += [(match, "") for match in MEMBER_CALL.finditer(text)]
        for match, given in calls:
            if given.split(",")[-1].strip() not in codes:
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(root)}:{line}: {match[1]}() without an error code; see base/paths.h")
    # pathlib's own questions throw as well, for a folder that cannot be searched and for names that are too long.
    for path in files(root, "python", {".py"}):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for match in PATHLIB_CALL.finditer(line):
                found.append(f"{path.relative_to(root)}:{number}: {match[1]}() throws; os.path asks the same")
    return found
