"""Walks the sources for breaches of the rules in structure.py, and shows on made-up trees that each breach is seen."""

import pathlib
import tempfile
import unittest

import structure

ROOT = pathlib.Path(__file__).resolve().parents[2]


class TheHouse(unittest.TestCase):
    def test_keeps_its_rules(self):
        found = structure.violations(ROOT)
        self.assertFalse(found, "\n" + "\n".join(found))

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

    def test_sees_unknown_rooms_and_loose_includes(self):
        self.assert_breach({"src/attic/b.cpp": ""}, "'attic' is not in the list")
        self.assert_breach({"src/exec/b.cpp": '#include "a.h"\n'}, 'is not written as "room/file.h"')
        self.assert_breach({"src/exec/b.cpp": '#include "base/gone.h"\n'}, "does not exist")

    def test_sees_long_files(self):
        self.assert_breach({"src/base/b.cpp": "\n" * 601}, "601 lines")
        self.assertEqual([], self.breaches({"src/base/b.cpp": "\n" * 600}))


if __name__ == "__main__":
    unittest.main()
