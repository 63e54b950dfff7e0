"""`wager bench` over servers: a scripted one, and one that is started and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.external.stub import DONE, Script, Stub, counters, text, usage
from tests.external.test_process import living, wait_until
from wager.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "bench.schema.json").read_text())
Capture = pytest.CaptureFixture[str]
QUICK = ["--prompts", "6", "--max-tokens", "5", "--identity", "2"]


def page(steps: int) -> str:
    """After so many steps of 4 drafted tokens, 3 of which were accepted."""
    return counters(
        "vllm",
        spec_decode_num_drafts={'engine="0"': steps},
        spec_decode_num_draft_tokens={'engine="0"': 4 * steps},
        spec_decode_num_accepted_tokens={'engine="0"': 3 * steps},
        generation_tokens={'engine="0"': 4 * steps},
    )


def replies(gap: float, *tokens: int) -> list[Script]:
    """Five tokens in pieces of one and four, ``gap`` seconds apart."""
    pieces = [(0.01, text("a", ids=tokens[:1])), (0.01 + gap, text("bcde", ids=tokens[1:]))]
    end = 0.01 + gap
    return [Script([*pieces, (end, usage(5, prompt=7)), (end, DONE)])]


def run(file: Path, off: Stub, on: Stub, *more: str) -> Any:
    prompts = file.with_suffix(".jsonl")
    prompts.write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(6)))
    places = ["--engine", "url", "--url-off", off.url, "--url-on", on.url]
    wanted = ["--workload", str(prompts), *QUICK, "--json", str(file)]
    assert main(["bench", "-", *places, *wanted, *more]) == 0
    found = json.loads(file.read_text())
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    return found


def test_running_servers_are_measured_from_outside(tmp_path: Path, capsys: Capture) -> None:
    pages = [page(5 * i) for i in range(200)]
    with (
        Stub(replies(0.04, 1, 2, 3, 4, 5), models=["m"]) as off,
        Stub(replies(0.02, 1, 2, 9, 4, 5), pages=pages, models=["m"]) as on,
    ):
        found = run(tmp_path / "out.json", off, on)
    (cell,) = found["cells"]
    assert (found["engine"], cell["arm"], cell["outputs"]) == ("url", "speculative", 6)
    assert (cell["active"], cell["draft_figures_from"]) == (True, "server")
    assert cell["acceptance_rate"] == 0.75
    assert cell["tokens_per_step"] == 4.0
    # Four tokens came in one piece, so that per token and per chunk differ fourfold.
    assert cell["chunk_gap_s"]["plain"]["p50"] == pytest.approx(0.04, abs=0.02)
    assert cell["tpot_s"]["plain"]["p50"] == pytest.approx(0.01, abs=0.005)
    assert found["model"] == "m"
    assert (cell["identity"]["unit"], cell["identical"]) == ("tokens", 0)
    assert {d["position"] for d in cell["identity"]["first_divergences"]} == {2}
    assert cell["identity"]["control"] == {"compared": 6, "equal": 6}
    assert cell["repeated_prompts"]
    assert found["arms"][1]["active"]
    assert found["arms"][1]["counters"]["drafted"] > 0
    assert found["arms"][1]["identity"]["compared"] == 2
    printed = capsys.readouterr().out
    assert "the engine says: the server runs on between the arms" in printed
    assert "REPEATED PROMPTS: out" in printed


def test_a_method_that_never_drafted_is_not_active(tmp_path: Path, capsys: Capture) -> None:
    """Whatever the times say: the flag was read and nothing was drafted."""
    same = (1, 2, 3, 4, 5)
    with Stub(replies(0.03, *same)) as off, Stub(replies(0.001, *same), pages=[page(0)]) as on:
        found = run(tmp_path / "out.json", off, on)
    (cell,) = found["cells"]
    assert (cell["status"], cell["active"], cell["verdict"]) == ("NOT ACTIVE", False, None)
    assert cell["acceptance_rate"] is None
    assert found["arms"][1]["active"] is False
    assert "NOT ACTIVE" in capsys.readouterr().out


def test_absent_and_reset_counters_are_not_zero(tmp_path: Path) -> None:
    same = (1, 2, 3, 4, 5)
    with Stub(replies(0.01, *same)) as off, Stub(replies(0.01, *same)) as on:
        (cell,) = run(tmp_path / "absent.json", off, on)["cells"]
    assert (cell["active"], cell["drafted"], cell["draft_figures_from"]) == (None, None, None)
    pages = [page(i % 7) for i in range(200)]
    with Stub(replies(0.01, *same)) as off, Stub(replies(0.01, *same), pages=pages) as on:
        found = run(tmp_path / "reset.json", off, on)
    assert found["cells"][0]["drafted"] is None
    assert found["arms"][1]["counters"]["resets"] > 0


def test_failed_requests_are_counted_apart(tmp_path: Path, capsys: Capture) -> None:
    sound = replies(0.01, 1, 2, 3, 4, 5)[0]
    broken = Script(status=500, body='{"error": {"message": "out of memory"}}')

    def script(number: int, _: dict[str, Any]) -> Script:
        return broken if number == 3 else sound

    with Stub([sound]) as off, Stub(script) as on:
        found = run(tmp_path / "out.json", off, on)
    (cell,) = found["cells"]
    assert cell["errors"] == {"plain": 0, "spec": 1}
    assert any("out of memory" in note for note in cell["notes"])
    assert "ERRORS: out: 0 plain and 1 speculative replies failed" in capsys.readouterr().out


STARTED = """
import sys
from wager.external import engines
engines._BACKENDS["vllm"] = ("tests.external.test_server", "DummyBackend")
from wager.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""


def started(*more: str) -> list[str]:
    wanted = ["--workload", "copy", *QUICK, "--clients", "1,2"]
    arguments = ["bench", "model", "--engine", "vllm", *wanted, *more]
    return [sys.executable, "-c", STARTED, *arguments]


def engines(folder: Path) -> list[int]:
    """Living dummies that were told of the folder; the dummy ignores the option."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"tests.external.dummy" in words and str(folder).encode() in words:
            found.append(int(entry.name))
    return living(found)


def timed_parts(journal: Path) -> int:
    return journal.read_bytes().count(b'"part"') if journal.exists() else 0


@pytest.mark.parametrize(
    ("number", "at"),
    [(signal.SIGKILL, 1), (signal.SIGKILL, 4), (signal.SIGTERM, 4), (signal.SIGINT, 1)],
)
def test_a_killed_run_leaves_no_engine_and_loses_no_finished_part(
    number: signal.Signals, at: int, tmp_path: Path
) -> None:
    """Four servers of three parts each; killed once so many parts are finished."""
    folder = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    more = ["--run-dir", str(folder), "--engine-args", f"--told {folder}"]
    process = subprocess.Popen(
        started(*more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    journal = folder / "journal.jsonl"
    wait_until(lambda: timed_parts(journal) >= at or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    assert engines(folder)
    process.send_signal(number)
    process.communicate()
    wait_until(lambda: engines(folder) == [])
    finished = timed_parts(journal)
    assert at <= finished < 12
    before = journal.read_bytes()
    done = subprocess.run(
        started(*more, "--resume"), capture_output=True, env=environment, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    assert timed_parts(journal) == 12
    assert journal.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    found = json.loads((folder / "bench.json").read_text())
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert found["complete"]
    assert [(c["clients"], c["outputs"]) for c in found["cells"]] == [(1, 6), (2, 6)]
    # Prompts of their own for each load: no server saw one twice.
    assert not any(c["repeated_prompts"] for c in found["cells"])
    ids = [{r["id"] for r in c["requests"]} for c in found["cells"]]
    assert not ids[0] & ids[1]
    assert found["arms"][0]["kv_tokens"] == 100
    assert found["arms"][0]["command"][1:3] == ["-m", "tests.external.dummy"]
    assert found["arms"][0]["command"][-1] == str(folder)
    assert engines(folder) == []
