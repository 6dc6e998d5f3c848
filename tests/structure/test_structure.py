"""Walks the sources for breaches of the rules in structure.py, and shows on made-up trees that each breach is seen."""

import json
import pathlib
import re
import tempfile
import textwrap
import unittest

import measures
import structure

ROOT = pathlib.Path(__file__).resolve().parents[2]


class TheHouse(unittest.TestCase):
    def test_keeps_its_rules(self):
        found = structure.violations(ROOT)
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_finds_data_files_by_an_index(self):
        # A model may name a data file for each of its tensors.
        held = "std::unordered_map<std::string, std::shared_ptr<const MappedFile>> files_;"
        self.assertIn(held, (ROOT / "src/onnx/tensor.h").read_text())

    def test_has_the_scripts_of_all_tables(self):
        for name, command in structure.publish.COMMANDS.items():
            scripts = [word for word in command.split() if word.endswith(".py")]
            self.assertTrue(scripts, name)
            self.assertFalse([word for word in scripts if not (ROOT / word).is_file()], name)
            self.assertLessEqual(set(re.findall(r"\$(\w+)", command)), set(structure.publish.NEEDS), name)

    def test_is_not_empty(self):
        self.assertTrue(list((ROOT / "src" / "base").glob("*.cpp")))


class TheCheck(unittest.TestCase):
    def breaches(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {"src/base/a.h": "", "src/exec/a.h": "", "include/detent/a.h": "", **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return structure.violations(root)

    def assert_breach(self, files, text):
        found = self.breaches(files)
        self.assertEqual(len(found), 1, found)
        self.assertIn(text, found[0])

    def test_allows_rooms_before_and_itself(self):
        self.assertEqual(
            [],
            self.breaches(
                {
                    "src/exec/b.cpp": '#include "exec/a.h"\n#include <vector>\n#include "base/a.h"\n#include "detent/a.h"\n'
                    "#include <onnxruntime_cxx_api.h>\n",
                    "src/graph/b.cpp": "#include <protozero/pbf_reader.hpp>\n",
                }
            ),
        )

    def test_sees_a_room_behind(self):
        self.assert_breach({"src/graph/b.cpp": '// first line\n #  include "exec/a.h"\n'}, "src/graph/b.cpp:2: ")

    def test_sees_the_runtime_elsewhere(self):
        self.assert_breach({"src/graph/b.cpp": "#include <onnxruntime_c_api.h>\n"}, "may include onnxruntime")
        self.assert_breach({"include/detent/b.h": '#include "onnxruntime_c_api.h"\n'}, "may include onnxruntime")

    def test_sees_protozero_elsewhere(self):
        self.assert_breach({"src/data/b.cpp": "#include <protozero/pbf_writer.hpp>\n"}, "may include protozero")

    def test_sees_json_read_and_written_elsewhere(self):
        for call in (
            "auto j = nlohmann::json::parse(text);",
            "auto j = Json::parse(a, b, nullptr, false);",
            "auto j = nlohmann::ordered_json::parse(\n    text);",
            "nlohmann::json::sax_parse(text, &handler);",
            "if (json::accept(text)) return;",
            "json::from_cbor(bytes);",
            "file << value.dump(2);",
        ):
            self.assert_breach({"src/graph/b.cpp": f"void f() {{\n  {call}\n}}\n"}, "src/graph/b.cpp:2: ")
            self.assertEqual([], self.breaches({"src/base/json.cpp": f"void f() {{\n  {call}\n}}\n"}))

    def test_keeps_mpi_apart(self):
        interface = {"src/mpi/interface.h": ""}
        self.assertEqual(
            [],
            self.breaches(
                {
                    **interface,
                    "src/mpi/plugin.cpp": '#include <mpi.h>\n#include "mpi/interface.h"\n',
                    "src/shim/b.cpp": '#include "mpi/interface.h"\n',
                }
            ),
        )
        self.assert_breach({"src/mpi/plugin.cpp": '#include "base/a.h"\n'}, "mpi stands before base")
        self.assert_breach({"src/shim/b.cpp": "#include <mpi.h>\n"}, "only mpi may include mpi.h")
        self.assert_breach({**interface, "src/exec/b.cpp": '#include "mpi/interface.h"\n'}, "only mpi and shim")

    def test_sees_a_public_header_that_uses_a_room(self):
        self.assert_breach({"include/detent/b.h": '#include "base/a.h"\n'}, "public headers include no room")

    def test_sees_questions_to_the_file_system_that_throw(self):
        for call in (
            "if (fs::exists(path)) return;",
            "std::filesystem::exists(a / name(b, c))",
            "fs::is_directory(status)",
            "fs::file_size(path)",
            "for (const auto& entry : fs::directory_iterator(folder)) use(entry);",
            "fs::recursive_directory_iterator entry(root), end;",
            "fs::create_directories((a / b).parent_path());",
            "for (fs::directory_iterator at(folder, failed); at->is_regular_file();)",
        ):
            self.assert_breach({"src/base/b.cpp": f"std::error_code failed;\n{call}\n"}, "src/base/b.cpp:2: ")

    def test_sees_questions_of_pathlib_that_throw(self):
        self.assert_breach({"python/detent/b.py": "\nif folder.is_dir():\n    pass\n"}, "python/detent/b.py:2: is_dir()")
        self.assertEqual([], self.breaches({"python/detent/b.py": "os.path.isdir(folder) or folder.is_dir"}))

    def test_allows_questions_with_an_error_code(self):
        text = """
void f(std::error_code& out) {
  std::error_code failed, ignored;
  if (fs::exists(path, failed) || fs::file_size(a / b(c), out) > 0) fs::remove(path, ignored);
  for (fs::directory_iterator at(folder, failed), end; at != end; at.increment(failed)) at->is_regular_file(ignored);
  paths::exists(path);  // not fs::exists(path)
  const fs::file_status status;
}
"""
        self.assertEqual([], self.breaches({"src/base/b.cpp": text}))

    def test_sees_unknown_rooms_and_loose_includes(self):
        self.assert_breach({"src/attic/b.cpp": ""}, "'attic' is not in the list")
        self.assert_breach({"src/exec/b.cpp": '#include "a.h"\n'}, 'is not written as "room/file.h"')
        self.assert_breach({"src/exec/b.cpp": '#include "base/gone.h"\n'}, "does not exist")

    def test_sees_long_files(self):
        self.assert_breach({"tests/base/b.cpp": "\n" * 801}, "801 lines")
        self.assert_breach({"src/base/b.cpp": "\n" * 801}, "801 lines")
        self.assertEqual([], self.breaches({"src/base/b.cpp": "\n" * 800, "tests/base/b.cpp": "\n" * 800}))
        self.assertEqual([], self.breaches({"src/base/b.cpp": "\n" * 200, "include/detent/b.h": "\n" * 200}))

    def test_sees_growth(self):
        fragments = {f"src/base/b{i}.h": "" for i in range(structure.MAX_FILES)}
        self.assert_breach(fragments, "files, more than")
        self.assert_breach({f"tests/base/b{i}.cpp": "" for i in range(structure.MAX_TEST_UNITS + 1)}, "compiled sources, more than")
        long = {f"src/base/b{i}.h": "\n" * 800 for i in range(structure.MAX_LINES_OF_SRC // 800 + 1)}
        self.assert_breach(long, "lines, more than")
        dear = {"tests/costs.tsv": f"e2e.a\t{structure.MAX_SECONDS_OF_FIRST_SET + 1}.0\ne2e.b.full\t9.0\n"}
        self.assert_breach(dear, "the first set of tests takes")
        self.assert_breach({"docs/a.md": "word\n\n" * (structure.MAX_WORDS + 1)}, "words, more than")

    def test_sees_long_lines_of_prose(self):
        self.assert_breach({"docs/a.md": "word " * 25 + "\n"}, "a.md:1: 125 columns")
        self.assertEqual([], self.breaches({"docs/a.md": "```\n" + "word " * 25 + "\n```\n| " + "word " * 25 + "|\n"}))

    def test_sees_sentences_that_are_hard_to_read(self):
        for text, fault in {
            "word " * 26: "26 words, at most 25",
            "Short. Of the layers some stay.": "name the subject first",
            "- an item\n- What is tuned is the weight.": "name the subject in place of",
            "Where layers are slow, they stay.": "say 'If",
            "They are quantized; gates are not.": "'gates'",
            "See [what\nis told of](a.md) them.": "'told of'",
        }.items():
            text = "\n".join(textwrap.wrap(text, 80, replace_whitespace=False))
            self.assert_breach({"docs/a.md": f"# Page\n\nA line\n\n{text}\n"}, fault)
        generated = "<!-- written by `scripts/a.py` -->\n\nWhat a table is.\n\n| What | of which it tells |\n"
        self.assertEqual([], self.breaches({"docs/a.md": generated}))
        self.assert_breach({"docs/a.md": generated + "| `a` | all gates |\n"}, "docs/a.md:6: 'gates'")

    def test_takes_code_tables_and_lists_for_no_sentences(self):
        long = "a word " * 8 + "ends"
        for text in (
            f"```\nWhat gates\n{long * 2}\n```",
            f"| What | gates {long * 2}|",
            f"## What gates do{' long' * 9}",
            f"{long}\n\n{long}",
            f"- {long}\n- {long}\n  1. {long}",
            f"{long}:\n{long}.\nAnd {long}",
            "Of course `What … gates`\nand `" + "word " * 19 + "`, see [it](Where-gates-are.md).\nWhat is it?",
        ):
            self.assertEqual([], self.breaches({"docs/a.md": text}), text)
        self.assertEqual([], self.breaches({"docs/decisions/001-a.md": "What is told of gates."}))

    def test_sees_figures_that_no_run_made(self):
        table = ["| | ms |", "|---|---|", *(f"| {name} | {name}.5 ms |" for name in range(5))]
        data = {"bench/published.json": json.dumps({"rotation": {"date": "2026-11-29", "commit": "abc", "table": table}})}
        made = "\n".join(["<!-- figures rotation -->", *table, "", "*2026-11-29, abc*", "<!-- end -->", ""])
        self.assertEqual([], self.breaches({**data, "docs/a.md": made}))
        self.assert_breach({**data, "docs/a.md": made.replace("| 3.5 ms", "| 2.5 ms")}, "are not those of the last run")
        self.assert_breach({**data, "docs/a.md": made.replace("11-29", "11-30")}, "are not those of the last run")
        self.assert_breach({**data, "docs/a.md": made + "\n".join(table) + "\n"}, "docs/a.md: figures that")
        self.assert_breach({**data, "docs/a.md": "\n"}, "no page shows 'rotation'")
        self.assertEqual([], self.breaches({**data, "docs/a.md": made + "| exit code | |\n|---|---|\n| 1 | 5 % |\n"}))
        unknown = {name: text.replace("rotation", "times") for name, text in {**data, "docs/a.md": made}.items()}
        self.assert_breach(unknown, "'times' has no command")

    def test_sees_words_of_its_own(self):
        self.assert_breach({"src/base/b.cpp": "void share_room();\n"}, "share_room is called split_budget")

    def test_sees_long_functions(self):
        body = "  x();\n" * 78
        self.assertEqual([], self.breaches({"src/base/b.cpp": "void f() {\n" + body + "}\n"}))
        self.assert_breach({"src/base/b.cpp": "void f() {\n" + body + "  x();\n}\n"}, "b.cpp:1: a function of 81 lines")

    def test_sees_other_namespaces(self):
        self.assertEqual([], self.breaches({"src/exec/b.h": "namespace detent::exec {\nint f();\n}\n"}))
        self.assertEqual([], self.breaches({"src/exec/b.h": "namespace detent::base {\nclass A;\nstruct B;\n}\n"}))
        self.assert_breach({"src/exec/b.h": "namespace detent::base {\nclass A {};\n}\n"}, "namespace detent::base in exec/")

    def test_exceptions_are_still_needed(self):
        for name, allowed in structure.LONG_FILES.items():
            limit = structure.MAX_LINES[name.split("/")[0]]
            self.assertTrue((ROOT / name).is_file(), f"{name} is gone: take it off LONG_FILES")
            self.assertGreater(allowed, limit)
            self.assertGreater((ROOT / name).read_bytes().count(b"\n"), limit, f"take {name} off LONG_FILES")
        for name in structure.LONG_FUNCTIONS:
            self.assertTrue((ROOT / name).is_file(), f"{name} is gone: take it off LONG_FUNCTIONS")
            longest = max(lines for _, lines in measures.functions((ROOT / name).read_text()))
            self.assertGreater(longest, structure.MAX_FUNCTION_LINES, f"take {name} off LONG_FUNCTIONS")


class TheMeasures(unittest.TestCase):
    def test_functions_in_namespaces_classes_and_after_initializers(self):
        text = """#include <vector>
namespace a {
// not a { function
struct S : Base<int> {
  int x() const { return 1; }
  std::vector<int> list{1, 2};
};
const std::vector<int> table = {
  1, f("}"),
};
template <class T>
S::S(T t)
  try_(t) {
  if (t) {
    g('}');
  }
}
auto S::operator==(const S& o) const -> bool {
  return true;
}
}
"""
        self.assertEqual([(5, 1), (11, 7), (18, 3)], list(measures.functions(text)))

    def test_layers_are_the_longest_path(self):
        uses = {"a": {"b", "d"}, "b": {"c"}, "c": {"d"}, "e": {"d"}}
        self.assertEqual(["a", "b", "c", "d"], measures.layers(uses))


if __name__ == "__main__":
    unittest.main()
