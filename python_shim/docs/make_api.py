#!/usr/bin/env python3
"""Writes API.md from the docstrings of torch_limbo.

    make_api.py [--check]

Takes the package beside it and the library that the package finds (for the table of options). With
--check it writes nothing; exit code 1 if API.md is not what it would write.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import sys
import types
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
API = HERE / "API.md"
HOW = "python python_shim/docs/make_api.py"

sys.path.insert(0, str(HERE.parent))
import torch_limbo  # noqa: E402

PUBLIC: dict[str, Any] = {name: getattr(torch_limbo, name) for name in torch_limbo.__all__}


def inline(text: str) -> str:
    """The marks inside of a paragraph: ``code`` and `name of something public`."""
    code: list[str] = []

    def keep(match: re.Match[str]) -> str:
        code.append(f"`{match[1]}`")
        return f"\0{len(code) - 1}\0"

    def link(match: re.Match[str]) -> str:
        name = match[1].removeprefix("torch_limbo.")
        return f"[`{match[1]}`](#{name.lower()})" if name in PUBLIC else f"`{match[1]}`"

    text = re.sub(r"``(.+?)``", keep, text, flags=re.DOTALL)
    text = re.sub(r"`([\w.]+)`", link, text.replace("<", "\\<"))
    return re.sub(r"\0(\d+)\0", lambda match: code[int(match[1])], text)


def table(lines: list[str]) -> list[str]:
    """A table whose columns stand under lines of =====."""
    columns = [(match.start(), match.end()) for match in re.finditer("=+", lines[0])]
    ends = [begin for begin, _ in columns[1:]] + [None]
    rows: list[list[str]] = []
    for line in lines[1:]:
        if line.startswith("="):
            continue
        cells = [line[begin:end].strip() for (begin, _), end in zip(columns, ends, strict=True)]
        if cells[0]:
            rows.append(cells)
        else:  # goes on from the line before
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    written = ["| " + " | ".join(inline(cell) for cell in row) + " |" for row in rows]
    return [written[0], "|---" * len(columns) + "|", *written[1:]]


def markdown(docstring: str | None) -> str:
    """A docstring in the marks of this package as Markdown."""
    blocks: list[str] = []
    is_code = False
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring or "")):
        lines = block.split("\n")
        if is_code and block.startswith(" "):
            dedented = inspect.cleandoc("\n" + block)
            if blocks and blocks[-1].endswith("\n```") and "\n" in blocks[-1]:
                blocks[-1] = blocks[-1].removesuffix("```") + f"\n{dedented}\n```"
            else:
                blocks.append(f"```\n{dedented}\n```")
            continue
        is_code = block.endswith("::")
        if is_code:
            block = block.removesuffix("::").rstrip() + (":" if block != "::" else "")
        if re.fullmatch("[= ]+", lines[0]):
            blocks.append("\n".join(table(lines)))
        elif block:
            blocks.append(inline(block))
    return "\n\n".join(blocks)


def signature(name: str, function: Any, skip_self: bool) -> str:
    made = inspect.signature(function)
    parameters = []
    for parameter in list(made.parameters.values())[1 if skip_self else 0 :]:
        star = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else star
        text = f"{star}{parameter.name}: {parameter.annotation}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parameters.append(text)
    result = "" if name[0].isupper() else f" -> {made.return_annotation}"
    one_line = f"{name}({', '.join(parameters)}){result}"
    if len(one_line) <= 98:
        return f"```\n{one_line}\n```"
    return "```\n" + f"{name}(\n    " + ",\n    ".join(parameters) + f",\n){result}" + "\n```"


def fields(kind: type) -> str:
    """The fields of a dataclass, each with the text that stands below it in the source."""
    tree = ast.parse(inspect.cleandoc(inspect.getsource(kind)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    texts: dict[str, str] = {}
    for statement, below in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            texts[statement.target.id] = " ".join(str(below.value.value).split())
    rows = [
        f"| `{field.name}` | `{field.type}` | {inline(texts.get(field.name, ''))} |"
        for field in dataclasses.fields(kind)
    ]
    return "\n".join(["| field | type | |", "|---|---|---|", *rows])


def described_class(name: str, kind: type) -> list[str]:
    parts = [f"## {name}"]
    if dataclasses.is_dataclass(kind):
        return [*parts, markdown(kind.__doc__), fields(kind)]
    if "__init__" in vars(kind):
        parts.append(signature(name, vars(kind)["__init__"], skip_self=True))
    parts.append(markdown(kind.__doc__))
    for member, function in vars(kind).items():
        if member.startswith("_"):
            continue
        if isinstance(function, property):
            parts += [f"### {name}.{member}", markdown(function.__doc__)]
        elif isinstance(function, types.FunctionType):
            text = signature(member, function, skip_self=True)
            parts += [f"### {name}.{member}", text, markdown(function.__doc__)]
    return parts


def options_table() -> str:
    rows = [
        f"| `{option.name}` | {option.unit} | {option.minimum:,} | {option.maximum:,} "
        f"| {option.default:,} | {option.meaning} |"
        for option in sorted(torch_limbo.options(), key=lambda option: option.name)
    ]
    head = "| name | unit | from | to | default | meaning |"
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def api() -> str:
    functions = {name: one for name, one in PUBLIC.items() if inspect.isfunction(one)}
    classes = {name: one for name, one in PUBLIC.items() if inspect.isclass(one)}
    modules = {name: one for name, one in PUBLIC.items() if inspect.ismodule(one)}
    names = [*functions, *classes, *modules]
    parts = [
        "# torch_limbo: API reference",
        f"Written by `{HOW}` from the docstrings; change those.",
        markdown(torch_limbo.__doc__),
        " · ".join(f"[`{name}`](#{name.lower()})" for name in names)
        + " · [table of options](#table-of-options)",
    ]
    for name, function in functions.items():
        parts += [f"## {name}", signature(name, function, skip_self=False)]
        parts.append(markdown(function.__doc__))
    for name, kind in classes.items():
        parts += described_class(name, kind)
    for name, module in modules.items():
        parts += [f"## {name}", f"The module `torch_limbo.{name}`.", markdown(module.__doc__)]
        for member in getattr(module, "__all__", ()):
            function = getattr(module, member)
            parts.append(f"### {name}.{member}")
            parts.append(signature(f"{name}.{member}", function, skip_self=False))
            parts.append(markdown(function.__doc__))
    parts += [
        "## Table of options",
        "`enable(name=value)`, or the environment variable `LIMBO_<NAME>` in upper case.",
        options_table(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def main() -> int:
    made = api()
    if "--check" not in sys.argv[1:]:
        API.write_text(made, encoding="utf-8")
        return 0
    if API.exists() and API.read_text(encoding="utf-8") == made:
        return 0
    print(f"{API} is out of date: run {HOW} and commit what it writes.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
