"""What is measured of the sources: lines of files, lines of functions, layers of rooms."""

import re

COMMENT_OR_TEXT = re.compile(
    r"""R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'""", re.DOTALL
)
SCOPE = re.compile(
    r"(?:template\s*<.*>\s*)?(?:inline\s+)?(?:namespace|class|struct|union|enum|extern)\b(?!.*\)\s*(?:const)?\s*$)",
    re.DOTALL,
)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)


def blank(text):
    """The source without comments, literals and preprocessor lines, which keep their line breaks."""

    def breaks(match):
        return "\n" * match[0].count("\n")

    return PREPROCESSOR.sub(breaks, COMMENT_OR_TEXT.sub(breaks, text))


def is_function(head):
    """Whether what stands before an opening brace, back to the last statement or brace, is the head of a function."""
    if SCOPE.match(head):
        return False
    flat = re.sub(r"operator\s*[^\s(]+", "operator_", head)
    while True:
        shorter = re.sub(r"\([^()]*\)", "", flat)
        if shorter == flat:
            break
        flat = shorter
    return "(" in head and "=" not in flat


def functions(text):
    """Yields (first line, lines) for each function body of C++ source that is not inside another function."""
    text = blank(text)
    line, start, depth, since = 1, 0, 0, None
    for at, char in enumerate(text):
        if char == "\n":
            line += 1
        elif since is not None:
            depth += (char == "{") - (char == "}")
            if depth == 0:
                if since:
                    yield since, line - since + 1
                since, start = None, at + 1
        elif char == "{":
            head = text[start:at].strip()
            if SCOPE.match(head):
                start = at + 1
            else:
                since, depth = (line - head.count("\n") if is_function(head) else 0), 1
        elif char in ";}":
            start = at + 1


def layers(uses):
    """The rooms of the longest way through `uses` (room -> rooms that it includes), first the one that uses the others."""
    longest = {}

    def below(room):
        if room not in longest:
            others = [below(other) for other in sorted(uses.get(room, ())) if other != room]
            longest[room] = [room, *max(others, key=len, default=[])]
        return longest[room]

    return max((below(room) for room in sorted(uses)), key=len, default=[])
