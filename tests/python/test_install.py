"""The installed package: what the wheel has, LIMBO_ENABLE=1, uninstalling, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch_limbo
from torch_limbo import _library, _torch, _version

ROOT = Path(__file__).resolve().parent.parent.parent
INSTALLED = os.environ.get("LIMBO_TEST_INSTALLED")
needs_installed = pytest.mark.skipif(
    INSTALLED is None, reason="runs on the source tree: no wheel was made"
)

needs_pip = pytest.mark.skipif(
    importlib.util.find_spec("pip") is None, reason="this Python has no pip"
)


def run(
    *command: str, drop: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in drop}
    return subprocess.run(
        command,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def files_under(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def wheel() -> Path:
    assert INSTALLED is not None
    (found,) = (Path(INSTALLED) / "wheel").glob("*.whl")
    return found


def test_versions_stand_for_one_another() -> None:
    minor, version = _version.TORCH_MINOR, _version.__version__
    assert f'dependencies = ["torch=={minor}.*"]' in text_of("pyproject.toml")
    assert f"project(limbo VERSION {version} " in text_of("CMakeLists.txt")
    assert re.search(rf"^torch=={re.escape(minor)}\.", text_of("requirements.txt"), re.MULTILINE)
    library = _library.load()
    assert library.limbo_version().decode() == version == torch_limbo.__version__
    assert library.limbo_torch_built_for().decode() == minor


@needs_installed
def test_these_tests_run_on_the_installed_copy() -> None:
    assert INSTALLED is not None
    for path in (Path(torch_limbo.__file__), torch_limbo.library_path()):
        assert path.is_relative_to(Path(INSTALLED) / "site"), path


@needs_installed
def test_the_wheel_says_which_torch_it_is_for() -> None:
    minor = _version.TORCH_MINOR
    expected = f"torch_limbo-{_version.__version__}+torch{minor}-py3-none-linux_x86_64.whl"
    assert wheel().name == expected
    with zipfile.ZipFile(wheel()) as content:
        names = content.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        assert f"Requires-Dist: torch=={minor}.*" in content.read(metadata).decode()
    for name in (
        "torch_limbo_enable.pth",
        "torch_limbo/lib/libtorch_limbo.so",
        "torch_limbo/lib/cmake/limbo/limboConfig.cmake",
        "torch_limbo/include/limbo/ipc/sharing.h",
    ):
        assert name in names


def installed_by(build: Path, prefix: str, platlib: Path) -> set[str]:
    """What CMake says that a configured folder installs, by name in the wheel."""
    reply = build / ".cmake/api/v1/reply"
    names: set[str] = set()
    for file in reply.glob("directory-*.json"):
        for installer in json.loads(file.read_text(encoding="utf-8")).get("installers", []):
            if installer["type"] in ("code", "script"):
                continue
            folder = Path(installer["destination"])
            at = folder.relative_to(platlib) if folder.is_absolute() else prefix / folder
            for path in installer["paths"]:
                source = path["to"] if isinstance(path, dict) else path
                names.add((at / Path(source).name).as_posix())
    return names


@needs_installed
def test_pip_installs_what_the_tested_wheel_has(tmp_path: Path) -> None:
    """These tests' wheel is made of a build folder, by cmake/wheel_of_build; ``pip install .`` goes
    by the root's CMakeLists.txt. Nothing is built here a second time."""
    tomllib = pytest.importorskip("tomllib", reason="this Python cannot read pyproject.toml")
    build, platlib = tmp_path / "build", tmp_path / "platlib"
    query = build / ".cmake/api/v1/query"
    query.mkdir(parents=True)
    (query / "codemodel-v2").touch()
    settings = tomllib.loads(text_of("pyproject.toml"))["tool"]["scikit-build"]
    words = {True: "ON", False: "OFF"}
    defines = {
        **settings["cmake"]["define"],
        "SKBUILD": "2",
        "SKBUILD_PLATLIB_DIR": str(platlib),
        "CMAKE_BUILD_TYPE": settings["cmake"]["build-type"],
    }
    done = run(
        "cmake",
        *("-S", str(ROOT), "-B", str(build)),
        *(f"-D{name}={words.get(value, value)}" for name, value in defines.items()),
        LIMBO_PYTHON=sys.executable,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(wheel()) as content:
        names = content.namelist()
    prefix = settings["wheel"]["install-dir"]
    package = {f"{prefix}/{name}" for name in files_under(ROOT / "python_shim" / prefix)}
    made = {
        name
        for name in names
        if ".dist-info/" not in name
        and name not in package
        # Exported targets have a file of each kind of build beside the one that CMake names.
        and not re.search(r"Targets-\w+\.cmake$", name)
    }
    assert "torch_limbo_enable.pth" in made
    assert installed_by(build, prefix, platlib) == made


def test_another_torch_is_refused_at_import() -> None:
    code = """
import torch
torch.__version__ = "2.12.1+cu130"
try:
    import torch_limbo
except RuntimeError as error:
    print(error.code, error)
import torch.multiprocessing.reductions as reductions
assert "_limbo_stock" not in reductions.reduce_tensor.__dict__
"""
    done = run(sys.executable, "-c", code)
    assert done.stdout.startswith("wrong_torch This Limbo is built for torch"), done.stderr
    assert "torch 2.12.1+cu130 is running" in done.stdout
    assert f"pip install 'torch=={_version.TORCH_MINOR}.*'" in done.stdout


def test_a_python_without_torch_is_told_what_to_do() -> None:
    code = """
import sys
sys.modules["torch"] = None
try:
    import torch_limbo
except ModuleNotFoundError as error:
    print(error)
"""
    done = run(sys.executable, "-c", code)
    assert "has no torch" in done.stdout, done.stderr
    assert "pip install 'torch==" in done.stdout


def test_only_the_command_line_goes_on_without_the_right_torch() -> None:
    code = "from torch_limbo import _torch; print(_torch.runs_as_command())"
    assert run(sys.executable, "-c", code).stdout.strip() == "False"
    assert not _torch.runs_as_command()


class Environment:
    """A virtual environment that sees this Python's packages, with the wheel installed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "bin/python")
        done = run(sys.executable, "-m", "venv", "--without-pip", str(folder))
        assert done.returncode == 0, done.stdout + done.stderr
        (self.site,) = folder.glob("lib/python*/site-packages")
        parents = [path for path in sys.path if path.endswith("-packages")]
        (self.site / "parent.pth").write_text("\n".join(parents) + "\n", encoding="utf-8")

    # Without PYTHONPATH in both: there is the copy of the other tests.
    def pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", self.python, *arguments]
        done = run(*command, drop=("PYTHONPATH",))
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return run(self.python, *options, "-c", code, drop=("PYTHONPATH",), **variables)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    made = Environment(tmp_path_factory.mktemp("venv") / "env")
    before = files_under(made.folder)
    made.pip("install", "--quiet", "--no-deps", "--no-index", str(wheel()))
    assert files_under(made.folder) != before
    yield made
    made.pip("uninstall", "--quiet", "--yes", "torch-limbo")
    assert files_under(made.folder) == before  # nothing is left


@needs_installed
def test_limbo_enable_makes_limbo_the_allocator(environment: Environment) -> None:
    code = """
import sys
assert "torch" not in sys.modules and "torch_limbo" not in sys.modules
import torch
assert torch.cuda.get_allocator_backend() == "limbo", torch.cuda.get_allocator_backend()
assert torch.__spec__.loader.get_filename("torch") == torch.__file__
assert not torch.cuda.is_initialized()
tensor = torch.ops.limbo.sim_empty([4], dtype=torch.float32, device=0)
import torch_limbo
assert torch_limbo.stats()["allocated_bytes"] > 0
print(torch_limbo.__file__)
"""
    done = environment.run(code, "-W", "error", LIMBO_ENABLE="1")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(environment.site)


@needs_installed
def test_limbo_enable_where_torch_limbo_is_imported_first(environment: Environment) -> None:
    code = "import torch_limbo, torch; print(torch.cuda.get_allocator_backend())"
    done = environment.run(code, "-W", "error", LIMBO_ENABLE="1")
    assert done.stdout.strip() == "limbo", done.stderr
    for off in ("", "0"):
        assert environment.run(code, LIMBO_ENABLE=off).stdout.strip() == "native"


@needs_installed
@pytest.mark.parametrize("value", ["", "0", "1"])
def test_a_program_without_torch_pays_nothing(environment: Environment, value: str) -> None:
    code = """
import json, sys
names = [name for name in sys.modules if "torch" in name or "limbo" in name]
finders = [type(finder).__name__ for finder in sys.meta_path]
print(json.dumps([names, finders.count("TorchFinder")]))
"""
    done = environment.run(code, LIMBO_ENABLE=value)
    armed = value == "1"
    expected = '[["torch_limbo_enable"], 1]' if armed else "[[], 0]"
    assert done.stdout.strip() == expected, done.stderr


@needs_installed
def test_what_limbo_enable_cannot_do_is_a_warning(environment: Environment) -> None:
    code = "import torch; print(torch.cuda.get_allocator_backend())"
    done = environment.run(code, LIMBO_ENABLE="yes")
    assert done.stdout.strip() == "native"
    assert 'RuntimeWarning: LIMBO_ENABLE is "yes". Use 1, or 0' in done.stderr
    done = environment.run(code, LIMBO_ENABLE="1", PYTORCH_CUDA_ALLOC_CONF="backend:native")
    assert done.stdout.strip() == "native"
    assert "LIMBO_ENABLE=1 had no effect" in done.stderr
    assert "bad_argument" in done.stderr


@needs_installed
def test_limbo_enable_where_an_earlier_pth_has_imported_torch(environment: Environment) -> None:
    earlier = environment.site / "some_tool.pth"  # behind parent.pth, before torch_limbo_enable.pth
    earlier.write_text("import torch\n", encoding="utf-8")
    code = "import torch; print(torch.cuda.get_allocator_backend())"
    try:
        done = environment.run(code, "-W", "error", LIMBO_ENABLE="1")
        assert (done.stdout.strip(), done.stderr) == ("limbo", "")
        assert environment.run(code).stdout.strip() == "native"
        done = environment.run(code, LIMBO_ENABLE="1", PYTORCH_CUDA_ALLOC_CONF="backend:native")
        assert done.stdout.strip() == "native"
        assert "LIMBO_ENABLE=1 had no effect" in done.stderr
    finally:
        earlier.unlink()


def test_limbo_enable_in_the_middle_of_the_import_of_torch() -> None:
    code = """
import importlib.machinery, sys, types
torch = types.ModuleType("torch")
torch.__spec__ = importlib.machinery.ModuleSpec("torch", None)
torch.__spec__._initializing = True
sys.modules["torch"] = torch
import torch_limbo_enable
torch_limbo_enable.arm()
torch_limbo_enable.arm()
assert "torch_limbo" not in sys.modules
"""
    done = run(sys.executable, "-c", code, LIMBO_ENABLE="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning: LIMBO_ENABLE=1 had no effect") == 1
    assert "torch was being imported" in done.stderr


#: What tools that watch imports do (wrapt): a loader that is a proxy of the one that was found, so
#: that whatever is set on it is set on that one, and a finder that asks all others again.
WATCHED_IMPORT = """
import importlib.util, sys
import torch_limbo_enable

executed = []

class Proxy:
    def __init__(self, loader):
        object.__setattr__(self, "inner", loader)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)

    def exec_module(self, module):
        for holder, name in ((module, "__loader__"), (module.__spec__, "loader")):
            if getattr(holder, name) is self:
                setattr(holder, name, self.inner)
        self.inner.exec_module(module)
        executed.append(module.__name__)

class Finder:
    asking = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(name)
            spec.loader = Proxy(spec.loader)
            return spec
        finally:
            self.asking = False

enabled = []
enable = torch_limbo_enable.enable
torch_limbo_enable.enable = lambda: enabled.append(enable())
if WATCHER == "behind":
    sys.meta_path.insert(0, Finder())
torch_limbo_enable.arm()
if WATCHER == "before":
    sys.meta_path.insert(0, Finder())

spec = importlib.util.find_spec("torch")  # to look at, not to load
assert spec.loader.is_package("torch")
assert spec.loader.get_filename("torch") == spec.origin
assert spec.loader.get_data(spec.origin)
assert spec.loader.get_resource_reader("torch") is not None
assert not hasattr(spec.loader, "no_such_attribute")

import torch
assert torch.cuda.get_allocator_backend() == "limbo", torch.cuda.get_allocator_backend()
assert len(enabled) == 1
assert executed == ["torch"] * (WATCHER != "no"), executed
for loader in (torch.__loader__, torch.__spec__.loader):
    assert type(loader).__name__ == "SourceFileLoader", loader
    assert "exec_module" not in vars(loader)
"""


@pytest.mark.parametrize("watcher", ["no", "behind", "before"])
def test_limbo_enable_beside_a_tool_that_watches_imports(watcher: str) -> None:
    code = f"WATCHER = {watcher!r}\n{WATCHED_IMPORT}"
    done = run(sys.executable, "-W", "error", "-c", code, LIMBO_ENABLE="1")
    assert done.returncode == 0, done.stderr[-2000:]


def backend(**variables: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'cmake')!r}); import wheel_backend\n"
    code += "wheel_backend.prepare(); print('fine')"
    return run(sys.executable, "-c", code, **variables)


@needs_pip
def test_an_editable_install_is_refused_with_what_to_do(tmp_path: Path) -> None:
    command = ["install", "-e", str(ROOT), "--no-deps", "--no-build-isolation"]
    done = run(sys.executable, "-m", "pip", *command, "--target", str(tmp_path / "site"))
    assert done.returncode != 0
    assert "Limbo cannot be built: an editable install is not offered" in done.stdout + done.stderr
    assert f"PYTHONPATH={ROOT / 'python_shim'}" in done.stdout + done.stderr


def fake_python(folder: Path, *facts: str) -> str:
    script = folder / "python"
    lines = "\n".join(f"echo '{fact}'" for fact in ("executable=/x", *facts))
    script.write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def test_a_build_needs_the_right_torch(tmp_path: Path) -> None:
    python = fake_python(tmp_path)
    done = backend(LIMBO_PYTHON=python)
    assert done.returncode == 1
    assert f"Limbo cannot be built: {python} has no torch" in done.stderr
    assert "--no-build-isolation" in done.stderr
    assert "Traceback" not in done.stderr

    python = fake_python(tmp_path, "torch_dir=/t", "torch_version=2.12.0+cu130")
    done = backend(LIMBO_PYTHON=python)
    assert done.returncode == 1
    assert "has torch 2.12.0+cu130, and this Limbo is for torch" in done.stderr
    assert "pip install 'torch==" in done.stderr

    right = f"torch_version={_version.TORCH_MINOR}.0"
    python = fake_python(tmp_path, "torch_dir=/t", right, "torch_has_cuda_library=0")
    done = backend(LIMBO_PYTHON=python)
    assert "without CUDA" in done.stderr

    done = backend(LIMBO_PYTHON="/nowhere/python")
    assert "/nowhere/python does not run" in done.stderr


def test_a_build_needs_a_compiler(tmp_path: Path) -> None:
    right = f"torch_version={_version.TORCH_MINOR}.0"
    python = fake_python(tmp_path, "torch_dir=/t", right, "torch_has_cuda_library=1")
    assert backend(LIMBO_PYTHON=python).stdout.strip() == "fine"
    done = backend(LIMBO_PYTHON=python, CXX="/nowhere/g++")
    assert done.returncode == 1
    assert "there is no C++ compiler; looked for /nowhere/g++" in done.stderr
    assert "apt install g++" in done.stderr
    done = backend(LIMBO_PYTHON=python, CXX="false")
    assert "does not compile C++20" in done.stderr
