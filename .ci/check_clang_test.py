#!/usr/bin/env python3
"""Tests of check_clang.py on small trees."""

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "check_clang.py"


def check(files: dict[str, str], options: str = "-DONE=1 -Wall -Werror") -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        entries = []
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
            command = f"g++ {options} -std=c++20 -o x.o -c {root / name}"
            entries.append({"file": str(root / name), "command": command})
        (root / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(SCRIPT), folder, folder],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@unittest.skipUnless(shutil.which("clang++"), "there is no clang++")
class CheckClangTests(unittest.TestCase):
    def test_good_sources_pass_with_the_options_of_the_build(self) -> None:
        code, output = check({"a/x.cpp": "int x = ONE;\n", "a/y.cpp": "int y = ONE;\n"})
        self.assertEqual(code, 0, output)

    def test_an_error_is_found_in_any_folder(self) -> None:
        code, output = check({"a/x.cpp": "int x;\n", "b/y.cpp": "int y = z;\n"})
        self.assertEqual(code, 1)
        self.assertIn("b/y.cpp:1", output)

    def test_a_warning_counts(self) -> None:
        self.assertEqual(check({"a/x.cpp": "void x() { int y; }\n"})[0], 1)

    def test_names_of_two_files_may_be_the_same(self) -> None:
        own = "namespace { int own; } int* %s = &own;\n"
        code, output = check({"a/x.cpp": own % "x", "a/y.cpp": own % "y"})
        self.assertEqual(code, 0, output)

    def test_sources_that_cmake_has_joined_are_found(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            build = root / "build"
            for name, text in {"a/x.cpp": "int x;\n", "a/y.cpp": "int y = z;\n"}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            build.mkdir()
            unity = build / "unity_0_cxx.cxx"
            includes = "".join(f'#include "{root}/a/{name}.cpp"\n' for name in "xy")
            unity.write_text(includes, encoding="utf-8")
            command = f"g++ -std=c++20 -o x.o -c {unity}"
            entries = [{"file": str(unity), "command": command}]
            (build / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
            done = subprocess.run(
                [sys.executable, str(SCRIPT), str(build), folder],
                capture_output=True,
                text=True,
                check=False,
            )
        self.assertEqual(done.returncode, 1)
        self.assertIn("a/y.cpp:1", done.stderr)

    def test_mains_do_not_meet(self) -> None:
        main = "int main() { return 0; }\n"
        code, output = check({"tools/x.cpp": main, "tools/y.cpp": main, "a/z_main.cpp": main})
        self.assertEqual(code, 0, output)


if __name__ == "__main__":
    unittest.main()
