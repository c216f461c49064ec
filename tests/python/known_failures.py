"""What gpu/scripts/known_failures.py has to have seen, case by case, on whatever device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_FULL = 20


def _all_is_back(case: dict[str, Any]) -> None:
    before, after = case["before"], case["after"]
    for name in ("allocated_bytes", "active_bytes", "limbo_blocks"):
        assert after[name] == before[name], name
    assert after["allocated_bytes"] == after["active_bytes"]
    assert after["limbo_blocks"] == 0


def _opened(result: dict[str, Any]) -> None:
    for way in ("bytes", "pickle"):
        for times in range(4):
            if times == 2:
                continue
            case = result["opened"][way][str(times)]
            assert case["right"] == [True] * times
            assert case["held"] == 1 or times == 0
            _all_is_back(case)
            assert case["after"]["expired"] - case["before"]["expired"] == (times == 0)


def _left(result: dict[str, Any]) -> None:
    case = result["left"]
    assert case["right"] == [True] * 10
    assert case["held"] == 10
    assert case["exit"] == 0
    assert case["after"]["claims_swept"] == case["before"]["claims_swept"] + 10
    _all_is_back(case)


def _chain(result: dict[str, Any]) -> None:
    case = result["chain"]
    assert case["right"] == [True] * 3
    assert case["exit"] == 0
    assert case["held"] == [1, 1, 1], "it came back while the last reader held it"
    _all_is_back(case)


def _sender(result: dict[str, Any]) -> None:
    case = result["sender"]
    assert (case["exit"], case["said"]) == (0, "")
    assert case["right"] == [True] * _FULL


def _reader(result: dict[str, Any]) -> None:
    case = result["reader"]
    assert (case["exit"], case["said"]) == (0, "")
    assert case["held"] == _FULL
    _all_is_back(case)


CASES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a message opened 0, 1 and 3 times": _opened,
    "a reader leaves by os._exit": _left,
    "sent on by one that ends": _chain,
    "a sender exits with a full limbo": _sender,
    "a reader exits with what it holds": _reader,
}
