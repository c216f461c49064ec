#!/usr/bin/env python3
"""Tests of report_tests.py on small reports."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "report_tests.py"

PASSED = '<testcase name="unit.A" status="run"><system-out>ok</system-out></testcase>'
FAILED = '<testcase name="unit.B" status="fail"><failure message=""/></testcase>'
SKIPPED = """<testcase name="gpu.C" status="notrun"><skipped message=""/><system-out>[ RUN ] C
/x/c.cpp:7: Skipped
no GPU:
no driver

[  SKIPPED ] C (0 ms)
</system-out></testcase>"""
PYTHON = '<testcase name="python.test_d" status="run"><system-out/></testcase>'
PYTHON_FAILED = '<testcase name="python.test_d" status="fail"><failure message=""/></testcase>'
PYTEST = """<testsuites><testsuite>
<testcase name="test_one"/><testcase name="test_two"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""
PYTEST_FAILED = """<testsuites><testsuite>
<testcase name="test_one"/><testcase name="test_two"><failure message="x"/></testcase>
</testsuite></testsuites>"""


GTEST = """<testsuites><testsuite>
<testcase name="One" classname="S" status="run" result="completed"/>
<testcase name="Two" classname="S" status="run" result="skipped">
<skipped message="x.cpp:7&#x0A;no GPU"><![CDATA[/x/x.cpp:7
no GPU]]></skipped></testcase>
<testcase name="DISABLED_Three" classname="S" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
GTEST_FAILED = """<testsuites><testsuite>
<testcase name="One" classname="S" status="run" result="completed"/>
<testcase name="Two" classname="S" status="run" result="completed"><failure message="x"/></testcase>
</testsuite></testsuites>"""
HALF = '<testcase name="unit.half_1" status="run"><system-out/></testcase>'
HALF_FAILED = '<testcase name="unit.half_1" status="fail"><failure message=""/></testcase>'


def report(*cases: str, pytest: str = "", gtest: str = "") -> tuple[int, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        testing = Path(folder) / "Testing"
        (testing / "pytest").mkdir(parents=True)
        if gtest:
            (testing / "gtest").mkdir()
            (testing / "gtest" / "unit.half_1.xml").write_text(gtest, encoding="utf-8")
        text = f"<testsuite>{''.join(cases)}</testsuite>"
        (testing / "ctest.xml").write_text(text, encoding="utf-8")
        if pytest:
            (testing / "pytest" / "python.test_d.xml").write_text(pytest, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(SCRIPT), folder], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout.splitlines()


class ReportTests(unittest.TestCase):
    def test_skipped_are_named_with_the_reason(self) -> None:
        code, lines = report(PASSED, SKIPPED)
        self.assertEqual(code, 0)
        self.assertIn("  gpu.C: no GPU: no driver", lines)
        self.assertEqual(lines[-1], "1 passed, 0 failed, 1 skipped")

    def test_failed_are_named_and_fail(self) -> None:
        code, lines = report(PASSED, FAILED)
        self.assertEqual(code, 1)
        self.assertIn("  unit.B", lines)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_cases_of_pytest_replace_their_entry(self) -> None:
        code, lines = report(PASSED, PYTHON, pytest=PYTEST)
        self.assertEqual(code, 0)
        self.assertIn("  python.test_d::test_two: no GPU", lines)
        self.assertEqual(lines[-1], "2 passed, 0 failed, 1 skipped")
        code, lines = report(PYTHON_FAILED, pytest=PYTEST_FAILED)
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_cases_of_googletest_replace_their_entry(self) -> None:
        code, lines = report(PASSED, HALF, gtest=GTEST)
        self.assertEqual(code, 0)
        self.assertIn("  unit.half_1::S.Two: no GPU", lines)
        self.assertIn("  unit.half_1::S.DISABLED_Three: disabled", lines)
        self.assertEqual(lines[-1], "2 passed, 0 failed, 2 skipped")
        code, lines = report(HALF_FAILED, gtest=GTEST_FAILED)
        self.assertEqual(code, 1)
        self.assertIn("  unit.half_1::S.Two", lines)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_a_finding_outside_of_every_case_fails(self) -> None:
        code, lines = report(HALF_FAILED, gtest=GTEST)
        self.assertEqual(code, 1)
        self.assertIn("  unit.half_1", lines)

    def test_an_older_report_does_not_hide_a_crash(self) -> None:
        code, lines = report(PYTHON_FAILED, pytest=PYTEST)
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "0 passed, 1 failed, 0 skipped")

    def test_python_tests_that_could_not_run_are_named(self) -> None:
        case = (
            '<testcase name="python.test_d" status="notrun"><skipped message=""/>'
            "<system-out>not run: /usr/bin/python3 lacks pytest\n</system-out></testcase>"
        )
        code, lines = report(case)
        self.assertEqual(code, 0)
        self.assertIn("  python.test_d: /usr/bin/python3 lacks pytest", lines)

    def test_nothing_to_read_is_an_error(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, str(SCRIPT), folder], capture_output=True, text=True, check=False
            )
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main()
