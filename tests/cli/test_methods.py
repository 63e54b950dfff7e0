"""`wager methods` from its options to its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.tiny import write_tiny_hf
from wager.bench.spelling import size
from wager.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    # --offline sets it for the process; here it is put back.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def exactly(**properties: Any) -> dict[str, Any]:
    """An object with these keys and no others."""
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "additionalProperties": False,
    }


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


TEXT = {"type": "string", "minLength": 1}
TEXT_OR_NULL = {"type": ["string", "null"], "minLength": 1}
BYTES = {"type": "number", "minimum": 0}
ADDS = exactly(weight_bytes=BYTES, kv_bytes_per_token=BYTES)
RUNS = exactly(
    engine=TEXT, title=TEXT, version=TEXT_OR_NULL, command=TEXT_OR_NULL, notes=array(TEXT),
    needs=TEXT_OR_NULL,
)  # fmt: skip
SCHEMA = exactly(
    version={"const": 1},
    target=exactly(
        name=TEXT, source={"enum": ["gguf", "directory", "hub"]}, location=TEXT, architecture=TEXT,
        parameters=BYTES, weight_bytes=BYTES, kv_bytes_per_token=BYTES, mtp_layers=BYTES,
    ),
    hub_asked={"type": "boolean"},
    methods=array(exactly(
        kind=TEXT, method=TEXT, drafter=TEXT_OR_NULL, origin=TEXT, source=TEXT_OR_NULL,
        adds={"anyOf": [ADDS, {"type": "null"}]}, runs=array(RUNS), notes=array(TEXT),
        unread=TEXT_OR_NULL,
    )),
    refused=array(exactly(name=TEXT, reason=TEXT)),
    notes=array(TEXT),
)  # fmt: skip


def found(capsys: Capture, *arguments: str) -> Any:
    assert main(["methods", *arguments, "--offline", "--json"]) == 0

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} in JSON")

    out = json.loads(capsys.readouterr().out, parse_constant=refuse)
    jsonschema.validate(out, SCHEMA, cls=jsonschema.Draft202012Validator)
    return out


def test_json(tiny_path: Path, tmp_path: Path, capsys: Capture) -> None:
    same = write_tiny_hf(tmp_path / "same", seed=3)
    out = found(capsys, str(tiny_path), "--candidates", str(same))
    assert [way["kind"] for way in out["methods"]] == [
        "ngram",
        "ngram-mod",
        "suffix",
        "suffix+ngram",
        "draft_model",
        "draft_model",
    ]
    assert [way["drafter"] for way in out["methods"][4:]] == ["self", str(same)]
    assert out["methods"][0]["adds"] == {"weight_bytes": 0, "kv_bytes_per_token": 0.0}
    assert out["methods"][5]["adds"]["weight_bytes"] > out["methods"][4]["adds"]["weight_bytes"] > 0
    assert out["target"]["mtp_layers"] == 0
    assert out["hub_asked"] is False


def test_one_engine_only(tiny_path: Path, capsys: Capture) -> None:
    out = found(capsys, str(tiny_path), "--engine", "llamacpp")
    assert [way["kind"] for way in out["methods"]] == ["ngram", "ngram-mod"]
    assert {run["engine"] for way in out["methods"] for run in way["runs"]} == {"llamacpp"}


def test_an_engine_that_runs_none_is_said(tiny_path: Path, capsys: Capture) -> None:
    assert main(["methods", str(tiny_path), "--offline", "--engine", "ollama"]) == 0
    assert "Ollama: none of the ways found here runs on it" in capsys.readouterr().out


def test_the_table(tiny_path: Path, capsys: Capture) -> None:
    assert main(["methods", str(tiny_path), "--offline"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "needs no model" in printed
    assert f'wager run {tiny_path} -sc \'{{"method":["suffix","ngram"]' in printed
    assert f"vllm serve {tiny_path} --speculative-config" in printed
    assert "not looked up on the hub: offline" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./no/such.gguf"], "no/such.gguf: there is no such file"),
        (["TINY", "--engine", "tgi"], "engine: 'tgi' is not known; there are: own, vllm"),
    ],
)
def test_errors_are_one_line(
    tiny_path: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    given = [str(tiny_path) if word == "TINY" else word for word in arguments]
    assert main(["methods", *given, "--offline"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err


def test_neither_torch_nor_the_extension_is_loaded(tiny_path: Path) -> None:
    code = (
        "import sys\nfrom wager.cli.main import main\n"
        f"status = main(['methods', {str(tiny_path)!r}, '--offline'])\n"
        "print(*sys.modules, file=sys.stderr)\nsys.exit(status)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stderr.split())
    assert "wager.bench.methods.find" in loaded
    assert not loaded & {"torch", "transformers", "wager._native", "huggingface_hub"}


def test_offline_asks_nobody(tmp_path: Path) -> None:
    wager = [sys.executable, "-m", "wager", "methods", "org/nowhere", "--offline"]
    # An address that nothing answers at: had it been asked, the message would say so.
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    env.pop("HF_HUB_OFFLINE")
    run = subprocess.run(wager, capture_output=True, text=True, env=env, check=False)
    assert run.returncode == 2
    assert "org/nowhere: is not in the cache of this machine" in run.stderr


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(999, "999 B"), (999_400, "999 kB"), (999_900_000, "1 GB"), (143_034_000, "143 MB")],
)
def test_sizes_never_have_an_exponent(nbytes: int, text: str) -> None:
    assert size(nbytes) == text
