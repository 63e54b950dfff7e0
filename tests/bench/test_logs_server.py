"""Text logs of vLLM and llama-server. The lines are those of vLLM 0.32 and llama-server b11434."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wager.bench.logs import server as logs_server
from wager.bench.logs.read import read_log
from wager.bench.logs.records import BadLine, Entry, Recorded
from wager.errors import ConfigError

VLLM = r"""
(APIServer pid=9) INFO 11-30 00:20:19 [entrypoints/launchers/api_server.py:200] Started
(APIServer pid=9) DEBUG 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:55] Request chatcmpl-1 details: prompt: '<|im_start|>user\nSay \'hi\', "you"<|im_end|>\n', prompt_token_ids: [1, 4093, 198], prompt_embeds shape: None.
(APIServer pid=9) INFO 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:65] Received request chatcmpl-1: params: SamplingParams(n=1, temperature=0.0, seed=None, stop=['END', 'x)'], stop_token_ids=[7], bad_words=[], include_stop_str_in_output=False, ignore_eos=False, max_tokens=24, min_tokens=0, extra_args=None), lora_request: None.
(APIServer pid=9) DEBUG 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:101] Generated response chatcmpl-1 details: output_token_ids: [19556, 198, 2]
(APIServer pid=9) INFO 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:108] Generated response chatcmpl-1: output: 'Hello\nthere', finish_reason: stop
(APIServer pid=9) DEBUG 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:55] Request chatcmpl-2 details: prompt: 'p', prompt_token_ids: [5], prompt_embeds shape: None.
(APIServer pid=9) INFO 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:65] Received request chatcmpl-2: params: SamplingParams(n=1, stop=[], stop_token_ids=[], ignore_eos=True, max_tokens=8, min_tokens=0), lora_request: None.
(APIServer pid=9) DEBUG 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:101] Generated response chatcmpl-2 (streaming delta) details: output_token_ids: [1]
(APIServer pid=9) INFO 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:108] Generated response chatcmpl-2 (streaming delta): output: 'a', finish_reason: None
(APIServer pid=9) INFO 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:108] Generated response chatcmpl-2 (streaming delta): output: ' b', finish_reason: length
(APIServer pid=9) DEBUG 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:101] Generated response chatcmpl-2 (streaming complete) details: output_token_ids: None
(APIServer pid=9) INFO 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:108] Generated response chatcmpl-2 (streaming complete): output: 'a b', finish_reason: streaming_complete
(APIServer pid=9) DEBUG 11-30 00:20:20 [entrypoints/.../utils/request_logger.py:55] Request cmpl-3-0 details: prompt: None, prompt_token_ids: [5, 6], prompt_embeds shape: None.
(APIServer pid=9) INFO 11-30 00:20:21 [entrypoints/.../utils/request_logger.py:108] Generated response chatcmpl-9: output: 'who asked', finish_reason: stop
"""  # noqa: E501

OLDER_VLLM = r"""
INFO 05-01 10:00:00 [logger.py:39] Received request chatcmpl-1: prompt: "it's\n", params: SamplingParams(n=1, temperature=0.7, stop=[], stop_token_ids=[], ignore_eos=False, max_tokens=16, min_tokens=0), prompt_token_ids: [3, 4], prompt_embeds shape: None, lora_request: None, prompt_adapter_request: None.
INFO 05-01 10:00:01 [logger.py:71] Generated response chatcmpl-1: output: 'ok', output_token_ids: [8, 2], finish_reason: stop
"""  # noqa: E501

STATE = {"id": 1, "n_ctx": 1024, "id_task": 43, "params": {"max_tokens": 24, "ignore_eos": False},
         "prompt": "<|im_start|>user\nSay hello.<|im_end|>\n", "generated": ""}  # fmt: skip

LLAMA = f"""
0.00.519.341 D slot launch_slot_: id  1 | task -1 | launching slot : {{"id":1,"n_ctx":1024}}
0.01.160.726 I slot launch_slot_: id  1 | task 43 | processing task, is_child = 0
0.01.172.025 D slot process_toke: id  1 | task 43 | n_gen = 1, n_remaining = 23, next token: 19556 'Hello'
0.01.182.968 D slot process_toke: id  0 | task 50 | n_gen = 1, n_remaining = 22, next token:   665 ' there'
0.01.193.631 D slot process_toke: id  1 | task 43 | n_gen = 2, n_remaining = 21, next token:   198 '
'
0.01.204.036 D slot process_toke: id  1 | task 43 | stopped by EOS
0.01.204.037 D slot process_toke: id  1 | task 43 | n_gen = 3, n_remaining = 21, next token:     2 ''
0.01.999.000 D slot launch_slot_: id  1 | task -1 | launching slot : {json.dumps(STATE)}
"""  # noqa: E501


def entries(path: Path, text: str) -> tuple[list[Recorded], dict[int, str]]:
    path.write_text(text.lstrip("\n"), encoding="utf-8")
    found: list[Entry] = list(read_log(path))
    good = [f for f in found if isinstance(f, Recorded)]
    return good, {f.line: f.reason for f in found if isinstance(f, BadLine)}


def as_json(text: str, key: str) -> str:
    """How servers that are asked for JSON write the same lines."""
    lines = [line for line in text.strip("\n").split("\n") if line != "'"]
    return "".join(json.dumps({"time": 1, "level": "info", key: line + "\n"}) + "\n"
                   for line in lines)  # fmt: skip


@pytest.mark.parametrize("form", ["text", "json", "coloured"])
def test_log_of_vllm(tmp_path: Path, form: str) -> None:
    text = as_json(VLLM, "message") if form == "json" else VLLM
    text = text.replace("INFO", "\x1b[32mINFO\x1b[0m") if form == "coloured" else text
    (whole, streamed), bad = entries(tmp_path / "log", text)
    assert whole.text == "<|im_start|>user\nSay 'hi', \"you\"<|im_end|>\n"
    assert (whole.prompt_ids, whole.answer_ids) == ((1, 4093, 198), (19556, 198, 2))
    # A stop string was asked for, and the ids show where the answer ended.
    assert (whole.answer, whole.ending, whole.max_tokens) == ("Hello\nthere", "stop", 24)
    assert (whole.stop_token_ids, whole.notes) == ((7,), frozenset())
    assert (streamed.answer, streamed.answer_ids) == ("a b", None)
    assert (streamed.ending, streamed.ignore_eos, streamed.notes) == ("cut", True, frozenset())
    assert len(bad) == 2
    assert any("no answer" in reason for reason in bad.values())
    assert any("prompt of this answer" in reason for reason in bad.values())


def test_log_of_an_older_vllm(tmp_path: Path) -> None:
    (found,), bad = entries(tmp_path / "log", OLDER_VLLM)
    assert (found.text, found.prompt_ids) == ("it's\n", (3, 4))
    assert (found.answer_ids, found.ending, found.max_tokens) == ((8, 2), "end", 16)
    assert not bad


def test_prompts_that_vllm_cut(tmp_path: Path) -> None:
    cut = OLDER_VLLM.replace('"it\'s\\n"', "'0123456789'").replace(
        "[3, 4]", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    )
    good, bad = entries(tmp_path / "log", cut)
    assert not good
    assert list(bad.values()) == ["the prompt was cut by --max-log-len"]
    broken = OLDER_VLLM.replace("'ok'", "'o\\xk'")
    assert entries(tmp_path / "log", broken)[1] == {2: "the logged text is not whole"}


def test_requests_that_are_never_answered_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_server, "MAX_OPEN", 3)
    line = OLDER_VLLM.strip("\n").split("\n")[0]
    lines = [line.replace("chatcmpl-1", f"chatcmpl-{i}") for i in range(10)]
    good, bad = entries(tmp_path / "log", "\n".join(lines))
    assert not good
    assert sorted(bad) == list(range(1, 11))


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_of_llama_server(tmp_path: Path, form: str) -> None:
    text = as_json(LLAMA, "msg") if form == "json" else LLAMA
    (found,), bad = entries(tmp_path / "log", text)
    assert found.text == STATE["prompt"]
    assert (found.answer_ids, found.ending, found.max_tokens) == ((19556, 198, 2), "end", 24)
    # The task of the other slot was still running, or the last of its slot.
    assert list(bad.values()) == ["the prompt of this answer was not logged"]


def test_a_server_log_has_no_groups(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(VLLM)
    with pytest.raises(ConfigError, match="group"):
        list(read_log(path, "user"))
