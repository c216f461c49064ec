#!/usr/bin/env python3
"""Tests of check_tidy.py on small trees."""

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "check_tidy.py"
CONFIG = """
Checks: '-*,readability-identifier-naming'
WarningsAsErrors: '*'
HeaderFilterRegex: '.*'
CheckOptions:
  - {key: readability-identifier-naming.VariableCase, value: lower_case}
"""


def check(files: dict[str, str]) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        (root / ".clang-tidy").write_text(CONFIG, encoding="utf-8")
        entries = []
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
            command = f"g++ -std=c++20 -o x.o -c {root / name}"
            entries.append({"file": str(root / name), "command": command})
        (root / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(SCRIPT), folder, folder],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@unittest.skipUnless(shutil.which("clang-tidy"), "there is no clang-tidy")
class CheckTidyTests(unittest.TestCase):
    def test_good_sources_pass(self) -> None:
        code, output = check({"allocator/x.cpp": "int one;\n", "ipc/y.cpp": "int two;\n"})
        self.assertEqual(code, 0, output)

    def test_what_is_found_is_named(self) -> None:
        code, output = check({"allocator/x.cpp": "int one;\n", "ipc/y.cpp": "int Two;\n"})
        self.assertEqual(code, 1)
        self.assertIn("ipc/y.cpp:1", output)

    def test_names_of_two_files_may_be_the_same(self) -> None:
        own = "namespace { int own; } int* %s = &own;\n"
        code, output = check({"ipc/x.cpp": own % "x", "ipc/y.cpp": own % "y"})
        self.assertEqual(code, 0, output)

    def test_only_the_core_is_read(self) -> None:
        code, output = check({"tests/x.cpp": "int One;\n", "ipc/y.cpp": "int two;\n"})
        self.assertEqual(code, 0, output)


if __name__ == "__main__":
    unittest.main()
