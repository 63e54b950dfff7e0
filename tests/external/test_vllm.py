"""vLLM's side of the backend, against what vLLM 0.32 printed and sent (CPU build, SmolLM2)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.external.pretend import events, program, recorded, reply_of
from wager.arms import Arm, parse_arms
from wager.backend import Load, Prompt
from wager.config import SamplingParams
from wager.errors import ConfigError
from wager.external import metrics, vllm, vllm_wire
from wager.external.reply import Reply
from wager.external.server import ServerOptions
from wager.external.vllm import VllmBackend
from wager.types import DraftCounts

PLAIN, NGRAM = parse_arms("plain,ngram:k=4,min=2,max=5")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Make a backend whose program plays a recorded log; stopped at the end."""
    made: list[VllmBackend] = []

    def make(log: str, name: str = "vllm", **options: Any) -> VllmBackend:
        path = program(
            tmp_path, name, recorded("vllm_help.txt"), recorded(log),
            metrics=recorded("vllm_metrics.txt"),
        )  # fmt: skip
        made.append(VllmBackend("org/model", ServerOptions(program=path, **options)))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def test_the_log_says_what_is_in_effect() -> None:
    found = vllm.read_log(recorded("vllm_ngram.log"))
    assert found.version == "0.32.0"
    assert found.kv_tokens == 23296
    assert found.effective["speculative_config"].startswith("SpeculativeConfig(method='ngram'")
    assert found.effective["arguments"]["max_num_seqs"] == 4
    assert found.effective["dtype"] == "torch.float32"
    assert found.effective["enforce_eager"] == "True"


def test_what_the_log_tells_can_be_written_as_json() -> None:
    line = (
        "(APIServer pid=1) INFO 11-30 [utils.py:1] non-default args: {'a': 1, 'b': {2}, 'c': (3,)}"
    )
    assert vllm.read_log(line).effective["arguments"] == {"a": 1, "b": "{2}", "c": [3]}


def test_a_drafter_takes_half_of_the_kv_tokens_of_a_target_of_its_size() -> None:
    plain = vllm.read_log(recorded("vllm_plain.log"))
    draft = vllm.read_log(recorded("vllm_draft_model.log"))
    assert (plain.kv_tokens, draft.kv_tokens) == (23296, 11648)
    assert plain.effective["speculative_config"] == "None"


def test_warnings_that_matter_are_kept_once() -> None:
    warnings = vllm.read_log(recorded("vllm_ngram.log")).warnings
    for part in (
        "Model Runner V2 requires Triton; using the V1 model runner",
        "Async scheduling not supported with ngram",
        "min_p and logit_bias parameters won't work with speculative decoding",
        "max_num_scheduled_tokens is set to 2048",
    ):
        assert sum(part in line for line in warnings) == 1
    assert not any("GDN" in line for line in warnings)
    assert all(not line.startswith("WARNING") for line in warnings)


def test_a_stream_gives_ids_and_exact_counts() -> None:
    """24 tokens: one after the prompt, six steps with a draft and one without among them; of the
    last draft, accepted whole, the end of the reply cut off the bonus."""
    reply = reply_of(vllm_wire, "vllm_completions.sse", max_tokens=24)
    answer = reply.answer(1.0)
    assert answer.tokens == 24
    assert answer.token_ids is not None
    assert len(answer.token_ids) == 24
    assert [n for _, n in answer.chunks] == [1, 5, 5, 2, 1, 2, 4, 4]
    assert answer.counts == DraftCounts(
        steps=8,
        drafted_steps=6,
        committed=24,
        committed_drafted=22,
        drafted=23,
        accepted=17,
        drafted_at=[6, 6, 6, 5],
        accepted_at=[6, 4, 4, 3],
    )


def test_a_draft_cut_by_the_length_is_not_committed_whole() -> None:
    """4 tokens were asked for: one step without a draft, then 3 of the 4 + 1 of the next."""
    reply = reply_of(vllm_wire, "vllm_cut.sse", max_tokens=4)
    counts = reply.answer(1.0).counts
    assert counts is not None
    assert (counts.steps, counts.committed, counts.committed_drafted) == (2, 4, 3)
    assert (counts.drafted, counts.accepted) == (4, 4)


def told(drafted: list[int], accepted: list[int]) -> dict[str, Any]:
    return {
        "num_spec_steps": len(drafted), "per_step_drafted": drafted, "per_step_accepted": accepted,
    }  # fmt: skip


def reply(pieces: list[int]) -> Reply:
    made = Reply(Prompt("p", SamplingParams(max_tokens=99), text="x"))
    for size in pieces:
        made.take("a" * size, list(range(size)))
    return made


def test_a_last_token_is_a_step_of_its_own_or_the_head_of_a_draft() -> None:
    alone = vllm_wire.counts(told([3], [2]), reply([1, 3, 1]))
    assert alone is not None
    assert (alone.steps, alone.committed_drafted) == (3, 3)
    headed = vllm_wire.counts(told([3], [2]), reply([1, 1]))
    assert headed is not None
    assert (headed.steps, headed.committed_drafted) == (2, 1)


def test_merged_pieces_make_the_counts_unknown() -> None:
    assert vllm_wire.counts(told([3, 3], [3, 3]), reply([1, 8])) is None


def test_nothing_drafted_is_known_exactly() -> None:
    assert vllm_wire.counts(told([], []), reply([1, 1, 1])) == DraftCounts(steps=3, committed=3)


def test_counts_without_their_steps_are_unknown() -> None:
    summary = {"num_spec_steps": 2, "per_step_drafted": None, "per_step_accepted": None}
    assert vllm_wire.counts(summary, reply([1, 3])) is None


def test_a_plain_server_tells_no_counts() -> None:
    made = Reply(Prompt("p", SamplingParams(max_tokens=24), text="x"))
    for event in events("vllm_completions.sse"):
        vllm_wire.read({k: v for k, v in event.items() if k != "metrics"}, made)
    assert made.answer(1.0).counts is None


def test_a_chat_streams_ids_too() -> None:
    answer = reply_of(vllm_wire, "vllm_chat.sse", max_tokens=4).answer(1.0)
    assert answer.token_ids == [1348, 314, 253, 8170]
    assert answer.text == "This is a classic"
    assert answer.finish_reason == "length"


def test_the_metrics_page_gives_counters_and_room() -> None:
    page = metrics.parse(recorded("vllm_metrics.txt"))
    found = metrics.counters(page)
    assert (found.drafts, found.drafted, found.accepted) == (15, 58, 40)
    assert found.accepted_at == (14, 10, 9, 7)
    assert found.preemptions == 0
    assert vllm._kv_tokens(recorded("vllm_metrics.txt")) == 23296


def test_steps_are_counted_by_the_times_between_them() -> None:
    """Six replies, read one by one: 8, 2, 24, 4, 22 and 8 pieces, each of one step."""
    assert metrics.counters(metrics.parse(recorded("vllm_metrics.txt"))).steps == 68


def test_a_plain_server_has_no_counters_of_speculation() -> None:
    found = metrics.counters(metrics.parse(recorded("vllm_plain_metrics.txt")))
    assert (found.drafts, found.drafted, found.accepted, found.accepted_at) == (None,) * 4


def test_requests_say_everything() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=3, max_tokens=5, ignore_eos=True)
    path, body = vllm_wire.request(Prompt("p", params, token_ids=(1, 2)), "m")
    assert path == "/v1/completions"
    assert body["prompt"] == [1, 2]
    assert body["return_token_ids"] is True
    assert body["repetition_penalty"] == 1.0
    assert (body["top_k"], body["top_p"], body["ignore_eos"]) == (0, 0.9, True)
    assert "min_p" not in body
    assert "seed" not in body  # it would end a server on a CPU
    path, body = vllm_wire.request(
        Prompt("p", SamplingParams(min_p=0.1), messages=(("user", "hi"),)), "m"
    )
    assert path == "/v1/chat/completions"
    assert body["min_p"] == 0.1


def test_a_start_gives_the_facts_and_the_command(started: Any) -> None:
    backend = started(
        "vllm_ngram.log", max_model_len=512, max_clients=4, arguments=("--dtype", "float32")
    )
    said = backend.check(NGRAM)
    assert '"num_speculative_tokens":4' in said
    found = backend.start(NGRAM)
    command = found.command
    assert command is not None
    assert command[1:3] == ["serve", "org/model"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--max-model-len") + 1] == "512"
    assert command[command.index("--max-num-seqs") + 1] == "4"
    assert "--no-enable-prefix-caching" in command
    # The model's own sampling defaults would apply where a request cannot say anything.
    assert command[command.index("--generation-config") + 1] == "vllm"
    assert command[command.index("--per-request-spec-decode-metrics") + 1] == "detailed"
    assert command[-2:] == ["--dtype", "float32"]
    assert found.kv_tokens == 23296
    assert found.version == "0.32.0"
    assert found.cold is None
    assert not any("NOT ACTIVE" in warning for warning in found.warnings)
    answers = list(backend.stream([Prompt("p", SamplingParams(max_tokens=1), text="x")], Load(1)))
    assert [answer.tokens for answer in answers] == [1]
    assert (backend.counters().drafts, backend.counters().steps) == (15, 68)


def test_an_arm_that_the_engine_did_not_take_up_is_not_active(started: Any) -> None:
    warnings = started("vllm_plain.log").start(NGRAM).warnings
    assert "NOT ACTIVE" in warnings[0]
    assert not any("NOT ACTIVE" in line for line in started("vllm_plain.log").start(PLAIN).warnings)


def test_a_plain_arm_asks_for_no_speculation(started: Any) -> None:
    backend = started("vllm_plain.log")
    assert backend.check(PLAIN) == "no speculation"
    arguments = backend.arguments(PLAIN)
    assert "--speculative-config" not in arguments
    assert "--per-request-spec-decode-metrics" not in arguments


def test_an_option_that_the_version_lacks_is_named(started: Any) -> None:
    backend = started("vllm_plain.log", arguments=("--speculative-model", "ngram"))
    with pytest.raises(ConfigError, match="knows no --speculative-model"):
        backend.check(PLAIN)


def test_an_older_version_is_not_asked_for_what_it_lacks(tmp_path: Path) -> None:
    lines = recorded("vllm_help.txt").splitlines()
    new = ("--per-request-spec", "--generation-config")
    old = "\n".join(line for line in lines if not line.strip().startswith(new))
    path = program(tmp_path, "vllm", old, "")
    backend = VllmBackend("org/model", ServerOptions(program=path))
    assert "--per-request-spec-decode-metrics" not in backend.arguments(NGRAM)
    assert "--generation-config" not in backend.arguments(NGRAM)


def test_a_version_without_groups_of_options_is_asked_for_all(tmp_path: Path) -> None:
    path = tmp_path / "vllm"
    path.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "if sys.argv[-1] == '--help=all': sys.exit('error: ignored explicit argument')\n"
        "print('  --port PORT  where')\n"
    )
    path.chmod(0o755)
    backend = VllmBackend("org/model", ServerOptions(program=str(path)))
    with pytest.raises(ConfigError, match="knows no --host"):
        backend.check(PLAIN)


def test_a_wrapper_is_not_given_the_word_serve(started: Any) -> None:
    assert started("vllm_plain.log", name="serve").command(PLAIN, 1)[1] == "org/model"


def test_a_gguf_file_is_refused(started: Any) -> None:
    with pytest.raises(ConfigError, match="vLLM reads no GGUF"):
        VllmBackend("a/b.gguf", ServerOptions()).check(PLAIN)


def test_a_missing_program_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="--engine-program"):
        VllmBackend("org/model", ServerOptions()).check(PLAIN)
    with pytest.raises(ConfigError, match="'/nowhere/x' is not a program"):
        VllmBackend("org/model", ServerOptions(program="/nowhere/x")).check(PLAIN)


def test_on_a_cpu_memory_and_cores_are_given(monkeypatch: pytest.MonkeyPatch, started: Any) -> None:
    monkeypatch.setattr(vllm, "_on_cpu", lambda: True)
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    given = started("vllm_plain.log").environment(PLAIN)
    assert given["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert given["VLLM_CPU_OMP_THREADS_BIND"]
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    assert "VLLM_CPU_KVCACHE_SPACE" not in started("vllm_plain.log").environment(PLAIN)
    asked = started("vllm_plain.log", kv_memory=(1 << 30) + 1, threads=1)
    assert asked.environment(PLAIN)["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert "--kv-cache-memory-bytes" not in asked.arguments(PLAIN)


def test_on_a_cpu_numba_keeps_its_threads_to_itself(
    monkeypatch: pytest.MonkeyPatch, started: Any
) -> None:
    monkeypatch.setattr(vllm, "_on_cpu", lambda: True)
    monkeypatch.delenv("NUMBA_THREADING_LAYER", raising=False)
    for arm in (PLAIN, NGRAM):
        assert started("vllm_plain.log").environment(arm)["NUMBA_THREADING_LAYER"] == "workqueue"
    monkeypatch.setenv("NUMBA_THREADING_LAYER", "tbb")
    assert "NUMBA_THREADING_LAYER" not in started("vllm_plain.log").environment(PLAIN)


def test_on_a_gpu_memory_is_an_argument(monkeypatch: pytest.MonkeyPatch, started: Any) -> None:
    monkeypatch.setattr(vllm, "_on_cpu", lambda: False)
    with pytest.raises(ConfigError, match="threads: vLLM"):
        started("vllm_plain.log", threads=2).check(PLAIN)
    backend = started("vllm_plain.log", kv_memory=5)
    assert "VLLM_CPU_KVCACHE_SPACE" not in backend.environment(PLAIN)
    assert "NUMBA_THREADING_LAYER" not in backend.environment(PLAIN)
    assert backend.arguments(PLAIN)[-2:] == ["--kv-cache-memory-bytes", "5"]


def test_compiled_code_is_cold_until_some_is_kept(tmp_path: Path, started: Any) -> None:
    log = recorded("vllm_plain.log").replace("enforce_eager=True", "enforce_eager=False")
    path = program(tmp_path, "vllm", recorded("vllm_help.txt"), log, metrics="")
    root = tmp_path / "cache"
    options = ServerOptions(program=path, environment={"VLLM_CACHE_ROOT": str(root)})
    backend = VllmBackend("org/model", options)
    assert backend.start(PLAIN).cold is True
    (root / "torch_compile_cache" / "abc").mkdir(parents=True)
    assert backend.start(PLAIN).cold is False
    backend.close()
    # What was kept did not load: vLLM said so, and compiled again.
    again = log + "\n(Worker pid=1) WARNING 11-30 00:11:45 [decorators.py:333] [backbone] "
    again += "Compiling model again due to a load failure from torch_aot_compile/a711\n"
    program(tmp_path, "vllm", recorded("vllm_help.txt"), again, metrics="")
    found = backend.start(PLAIN)
    assert found.cold is True
    assert any("Compiling model again" in line for line in found.warnings)
    backend.close()


def test_a_users_command_gets_the_arguments(tmp_path: Path) -> None:
    template = "docker run -p {port}:80 image {model} {args}"
    backend = VllmBackend("org/model", ServerOptions(engine_command=template, max_model_len=64))
    assert '"method":"ngram"' in backend.check(NGRAM)
    command = backend.full_command(NGRAM, 81)
    assert command[:6] == ["docker", "run", "-p", "81:80", "image", "org/model"]
    assert command[6:8] == ["--max-model-len", "64"]
    config = json.loads(command[command.index("--speculative-config") + 1])
    assert config["num_speculative_tokens"] == 4


def test_an_arm_of_another_engine_is_refused_before_anything_starts() -> None:
    backend = VllmBackend("org/model", ServerOptions(engine_command="x {port} {args}"))
    with pytest.raises(ConfigError, match="mlp_speculator"):
        backend.check(Arm("x", parse_arms("mlp_speculator:k=3")[0].speculation))
