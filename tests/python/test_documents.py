"""The documents: examples run, links lead somewhere, the API reference is up to date."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch_limbo
from documents import DOCUMENTS, ROOT, Example, examples, run_example

HERE = Path(__file__).resolve().parent
EXAMPLES = examples()


def test_there_are_examples() -> None:
    documents = {str(example.document.relative_to(ROOT)) for example in EXAMPLES}
    assert documents >= {"README.md", "python_shim/docs/GUIDE.md"}


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example(example: Example, tmp_path: Path) -> None:
    if example.gpu_only:
        pytest.skip("the simulated device cannot run it; python.gpu.test_gpu_documents does")
    operators = str(HERE / "cuda_on_simulated")
    path = os.pathsep.join([operators, os.environ["PYTHONPATH"]])
    run_example(example, tmp_path, LIMBO_DEVICE="simulated", PYTHONPATH=path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_is_whole_and_its_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert not re.search(r"^(<{7}|>{7}) ", text, re.M), "the marks of a merge were left in it"
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, part = target.partition("#")
        place = (document.parent / file) if file else document
        assert place.exists(), f"{document}: there is no {target}"
        if part:
            headings = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert part in anchors, f"{document}: {file or document.name} has no part {part}"


def test_readme_and_ci_install_the_same_for_the_test_command() -> None:
    """On Debian, where nothing else is: what README's command line names, CI's script names too."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"^ +apt install (.+)$", readme, re.M)
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    (installed,) = re.findall(r"^packages_of_test=\((.+?)\)$", script, re.M)
    assert sorted(told.split()) == sorted(installed.split())
    # Without it the replays of compressed traces fail.
    assert "zlib1g-dev" in told.split()


def test_the_api_reference_is_up_to_date() -> None:
    maker = ROOT / "python_shim" / "docs" / "make_api.py"
    done = subprocess.run(
        [sys.executable, str(maker), "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LIMBO_LIBRARY": str(torch_limbo.library_path())},  # for its options
    )
    assert done.returncode == 0, done.stderr
