#!/usr/bin/env python3
"""Tests of check_exports.py: it finds what is not the library's own, and only that."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "check_exports.py"
MAP = SCRIPT.parent.parent / "cmake" / "exports.map"
COMPILER = os.environ.get("CXX", "c++")

OWN = """
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
namespace limbo {
struct Base { virtual ~Base() = default; virtual int one() const { return 1; } };
struct Other { virtual ~Other() = default; virtual int two() { return 2; } };
struct Error : std::runtime_error, Base, Other {
  explicit Error(const std::string& why) : std::runtime_error(why) {}
  int one() const override;
  int two() override;
};
int Error::one() const { return 3; }
int Error::two() { return 4; }
int counts = 0;
thread_local int of_thread = counts;
inline int& once() { static int value = counts; return value; }
bool operator==(const Error&, const Error&) { return once() != of_thread; }
struct Options {
  std::map<std::string, std::function<int(int)>> values;
  int ask(const std::string& name) const;
};
int Options::ask(const std::string& name) const { return values.at(name + "?")(1); }
}
extern "C" int limbo_malloc() { return limbo::Options().ask("x"); }
"""


def check(source: str, *options: str, kept: bool = False) -> tuple[int, str]:
    """The script's exit code and output for a library made of `source`."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library.so"
        code = Path(folder) / "library.cpp"
        code.write_text(source, encoding="utf-8")
        flags = ["-Wl,--exclude-libs,ALL", f"-Wl,--version-script={MAP}"] if kept else []
        subprocess.run(
            [COMPILER, "-std=c++20", "-shared", "-fPIC", *flags, "-o", str(library), str(code)],
            check=True,
        )
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *options, str(library)],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout


class CheckExports(unittest.TestCase):
    def test_the_librarys_own_names_are_let_through(self) -> None:
        self.assertEqual(check(OWN, kept=True), (0, ""))

    def test_the_cpp_librarys_templates_are_found(self) -> None:
        code, text = check(OWN)
        self.assertEqual(code, 1)
        self.assertIn("std::function<int (int)>", text)
        self.assertNotIn(" limbo::Error", text.replace("typeinfo for limbo", ""))

    def test_other_names_are_found(self) -> None:
        source = """
        int helper() { return 1; }
        extern "C" int plain_helper() { return 1; }
        namespace limbo2 { int helper() { return 1; } }
        namespace c10 { int helper() { return 1; } }
        void* operator new(unsigned long) { throw 1; }
        """
        code, text = check(source)
        found = {line.split(": ", 1)[1] for line in text.splitlines()}
        wanted = {"helper()", "plain_helper", "limbo2::helper()", "operator new(unsigned long)"}
        self.assertEqual((code, found), (1, wanted | {"c10::helper()"}))
        code, text = check(source, "--also", "c10")
        self.assertEqual(code, 1)
        self.assertNotIn("c10", text)

    def test_one_of_each_variable_in_functions_is_let_through(self) -> None:
        source = """
        namespace c10 { inline int& once() { static int value = 0; return value; } }
        extern "C" int limbo_once() { return c10::once(); }
        """
        code, text = check(source, kept=True)
        self.assertEqual((code, text.count("\n")), (1, 1))  # the function itself
        self.assertNotIn("value", text)

    def test_a_library_without_any_is_an_error(self) -> None:
        code, text = check("static int helper() { return 1; }\nint (*use)() = helper;", kept=True)
        self.assertEqual(code, 1)
        self.assertTrue(text)


if __name__ == "__main__":
    unittest.main()
