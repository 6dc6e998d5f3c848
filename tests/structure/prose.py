"""What makes sentences of the documentation hard to read: long ones, openings that hide the subject, words of our own.

    prose.py [FILE...]      default: README.md, docs/ and the help of all options

Code, tables, links' addresses, headings and generated pages are not prose. docs/decisions/ is left out: records stay as
they were written."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_WORDS = 25  # of a sentence
# A pattern of a sentence's beginning, and what to write instead.
OPENINGS = [
    (r"Of (?!course)", "name the subject first, not what it is part of"),
    (r"What (?![^.]*\?$)", "name the subject in place of 'What …'"),
    (r"(?:That|Those|He|Whoever|Whatever) (?:which|who|that)\b|Whatever |Whoever ", "name the subject"),
    (r"Where (?![^.]*\?$)", "say 'If …' or 'When …', or name the subject first"),
    (r"(?:Behind|Beside|Before|Within|To|From|Into) (?:what|which)\b", "name the subject first"),
    (r"As (?:they|it) (?:is|are)\b", "name the subject first"),
]
# Words that only this project uses so, and what the field says.
WORDS = [
    (
        r"(?<!matrix )\bproducts (?:in|of) (?:integers|floats?|blocks)\b|\bquantized products\b",
        "matrix products and convolutions, or layers",
    ),
    (r"\bgates\b", "SiLU and HardSwish, or gated activations"),
    (r"\b(?:take|takes|taking|took|in) turns\b", "alternate, interleaved"),
    (r"\b(?:told|tells|tell|telling) of\b", "shown, listed, reported"),
    (r"\bmade-up\b", "synthetic"),
    (r"\bfaster so\b|\bslower so\b", "faster that way"),
    (r"\bwhat is left\b", "the rest"),
    (r"\botherwise than\b", "differently from"),
    (r"\bhanded on\b|\bhands? on\b(?! )", "passed on"),
]
FENCE = re.compile(r"^\s*(?:```|~~~)")
NO_PROSE = re.compile(r"^\s*(?:\||#|<|!\[|:::|\[[^\]]+\]: )")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
END = re.compile(r"(?<=:)\s+|(?<=[.!?;])[\")]*\s+(?=[\"(\[]*(?:[A-Z0-9]|detent\b))")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|cf|vs|al|etc|No|Fig)\.$")


def plain(text):
    """Prose without markup: code and formulas are one word, of links the text stays."""
    text = re.sub(r"``[^`]*``|`[^`]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", text)


def paragraphs(text):
    """(line number, text) of each paragraph and item of a list."""
    found, in_code = [], False
    open_at = None
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            in_code, open_at = not in_code, None
        elif in_code or not line.strip() or NO_PROSE.match(line):
            open_at = None
        elif ITEM.match(line) or open_at is None:
            found.append([number, ITEM.sub("", line)])
            open_at = number
        else:
            found[-1][1] += " " + line.strip()
    return found


def sentences(paragraph):
    parts = [""]
    for piece in END.split(plain(paragraph)):
        joined = parts[-1] and (ABBREVIATION.search(parts[-1]) or parts[-1].endswith(","))
        if joined:
            parts[-1] += " " + piece
        else:
            parts.append(piece.strip())
    return [part for part in parts if part]


def faults(sentence):
    """What is wrong with a sentence, without markup."""
    words = [word for word in sentence.split() if re.search(r"\w", word)]
    if len(words) > MAX_WORDS:
        yield f"{len(words)} words, at most {MAX_WORDS}"
    opening = sentence.lstrip("\"'(")
    yield from (advice for pattern, advice in OPENINGS if re.match(pattern, opening))
    yield from own_words(sentence)


def own_words(text):
    yield from (f"'{match[0]}': {advice}" for pattern, advice in WORDS for match in re.finditer(pattern, text))


def check(name, text):
    """Lines 'name:line: fault: sentence'."""
    for line, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            for fault in faults(sentence):
                yield f"{name}:{line}: {fault}: {sentence}"


def violations(root):
    for path in [*sorted((root / "docs").rglob("*.md")), root / "README.md"]:
        text = path.read_text() if path.is_file() else ""
        name = path.relative_to(root).as_posix()
        if "written by `scripts/" in text[:300]:  # out of the code's own help, whose rows are no sentences
            rows = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.startswith("|")]
            yield from (f"{name}:{number}: {fault}" for number, line in rows for fault in own_words(plain(line)))
        elif "decisions" not in path.parts:
            yield from check(name, text)


if __name__ == "__main__":
    given = [pathlib.Path(name) for name in sys.argv[1:]]
    found = [line for path in given for line in check(path, path.read_text())] if given else list(violations(ROOT))
    sys.exit("\n".join(found) or 0)
