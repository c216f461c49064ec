#!/usr/bin/env python3
"""Tests of check_layers.py: planted offences are found, and what is allowed is let through."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "check_layers.py"


def check(files: dict[str, str]) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "allocator").mkdir()
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(SCRIPT), folder], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout


class CheckLayers(unittest.TestCase):
    def assert_allowed(self, path: str, header: str) -> None:
        self.assertEqual(check({path: f"#include {header}\n"}), (0, ""))

    def assert_refused(self, path: str, header: str) -> None:
        code, text = check({path: f"#pragma once\n#include {header}\n"})
        self.assertEqual(code, 1, f"{header} in {path} was let through")
        self.assertIn(f"{path}:2:", text)

    def test_layers_include_what_is_under_them(self) -> None:
        self.assert_allowed("allocator/a.cpp", '"allocator/device/device.h"')
        self.assert_allowed("allocator/device/a.cpp", '"allocator/error.h"')
        self.assert_allowed("ipc/protocol/a.h", '"allocator/lending.h"')
        self.assert_allowed("hooks/a.cpp", '"ipc/sharing.h"')
        self.assert_allowed("tests/unit/a.cpp", '"hooks/capi.h"')
        self.assert_allowed("allocator/a.cpp", "<vector>")
        self.assert_allowed("ipc/a.cpp", "<sys/socket.h>")

    def test_layers_do_not_include_what_is_above_them(self) -> None:
        self.assert_refused("allocator/a.cpp", '"ipc/sharing.h"')
        self.assert_refused("allocator/device/a.h", '"allocator/allocator.h"')
        self.assert_refused("ipc/a.cpp", '"hooks/capi.h"')
        self.assert_refused("ipc/protocol/a.cpp", "<hooks/capi.h>")
        self.assert_refused("hooks/a.cpp", '"tests/support/sandbox.h"')

    def test_cuda_only_under_the_device_interface(self) -> None:
        self.assert_allowed("allocator/device/cuda_device.cpp", "<cuda.h>")
        self.assert_allowed("hooks/a.cpp", "<cuda_runtime_api.h>")
        self.assert_refused("allocator/a.cpp", "<cuda.h>")
        self.assert_refused("ipc/a.cpp", "<cuda_runtime.h>")
        self.assert_refused("ipc/a.cpp", '"nvrtc.h"')

    def test_torch_only_in_hooks(self) -> None:
        self.assert_allowed("hooks/a.cpp", "<c10/core/Allocator.h>")
        self.assert_refused("ipc/a.cpp", "<c10/core/Allocator.h>")
        self.assert_refused("allocator/device/a.cpp", "<ATen/ATen.h>")
        self.assert_refused("allocator/a.cpp", "<Python.h>")

    def test_own_headers_by_their_path_from_the_root(self) -> None:
        self.assert_refused("allocator/a.cpp", '"error.h"')
        self.assert_refused("allocator/a.cpp", '"../ipc/sharing.h"')
        self.assert_allowed("tests/unit/a.cpp", '"beside.h"')

    def test_spaces_do_not_hide_an_include(self) -> None:
        code, _ = check({"allocator/a.cpp": '  #  include "ipc/sharing.h"\n'})
        self.assertEqual(code, 1)

    def test_python(self) -> None:
        self.assertEqual(check({"python_shim/torch_limbo/a.py": "from tests import x\n"})[0], 1)
        self.assertEqual(check({"python_shim/torch_limbo/a.py": "import torch\n"})[0], 0)
        self.assertEqual(check({"python_shim/a.cpp": "\n"})[0], 1)

    def test_a_wrong_root_is_an_error(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, str(SCRIPT), folder], capture_output=True, text=True, check=False
            )
        self.assertEqual(done.returncode, 2)
        self.assertIn("not the project's root", done.stderr)


if __name__ == "__main__":
    unittest.main()
