"""Serving with another engine: tuned files, what is given twice, what is read back."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.external.pretend import program, recorded
from wager.arms import Arm, parse_arms
from wager.errors import ConfigError
from wager.external import llamacpp, sglang, vllm
from wager.external.engines import open_backend
from wager.external.process import free_port
from wager.external.serve import (
    Service,
    check_arguments,
    check_port,
    check_tuned,
    check_version,
    drafting,
    notes,
    passed_arm,
    ready_command,
    to_terminal,
    tuned_arm,
)
from wager.external.server import ServerBackend, ServerOptions
from wager.external.tuned import Tuned, read_tuned

PLAIN, NGRAM = parse_arms("plain,ngram:k=4,min=2,max=5")
CONFIG = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":2,"prompt_lookup_max":5}'
TUNED = Tuned(
    engine="vllm",
    version="0.32.0",
    model="org/model",
    command=("vllm", "serve", "org/model", "--speculative-config", CONFIG),
    arguments=("--speculative-config", CONFIG),
    speculation=json.loads(CONFIG),
    schedule=None,
    expected=({"workload": "copy", "clients": 1, "speedup": 2.0},),
    date="2026-11-30",
)


def test_a_tuned_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(TUNED.to_json())
    found = read_tuned(path)
    assert found.to_json() == TUNED.to_json()
    assert found.arguments == ["--speculative-config", CONFIG]
    assert tuned_arm(found).name == "ngram:k=4,min=2,max=5"
    assert tuned_arm(Tuned("vllm", None, "m", (), (), None)) == Arm("plain")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a tuned file"),
        ('{"schema": 2}', "has schema 2, this version reads 1; write it anew"),
        ("{}", "has schema null"),
        (TUNED.to_json().replace('"model": "org/model"', '"model": 3'), "'model' must be the name"),
        (TUNED.to_json().replace('"version": "0.32.0"', '"version": 3'), "'version' must be a"),
        (TUNED.to_json().replace('"arguments"', '"args"'), "'arguments' must be a list of texts"),
        (TUNED.to_json().replace('"method": "ngram",', ""), "'speculation' must be null or an obj"),
    ],
)  # fmt: skip
def test_another_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_tuned(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tuned: cannot read .*no\.json: No such file"):
        read_tuned(tmp_path / "no.json")


def test_a_tuned_file_of_another_engine_model_or_version() -> None:
    path = Path("t.json")
    check_tuned(TUNED, path, "vllm", "org/model")
    with pytest.raises(ConfigError, match=r"measured on vllm; serve with --engine vllm, or run"):
        check_tuned(TUNED, path, "llamacpp", "org/model", force=True)
    with pytest.raises(ConfigError, match=r"with the model org/model, not org/other; run.*--force"):
        check_tuned(TUNED, path, "vllm", "org/other")
    check_tuned(TUNED, path, "vllm", "org/other", force=True)
    check_version(TUNED, path, "0.32.0")
    check_version(TUNED, path, None)
    with pytest.raises(ConfigError, match=r"vLLM 0\.32\.0, and this is 0\.33\.0; run .*--force"):
        check_version(TUNED, path, "0.33.0")


def test_the_same_model_by_another_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.chdir(tmp_path)
    tuned = Tuned("llamacpp", None, str(tmp_path / "m.gguf"), (), (), None)
    check_tuned(tuned, Path("t.json"), "llamacpp", "./m.gguf")


OURS: dict[str, list[str]] = {
    "vllm": ["--max-model-len", "4096", "-tp", "2", "--speculative-config", CONFIG],
    "llamacpp": ["--threads", "2", "--parallel", "8", "--spec-type", "ngram-mod", "-md", "d.gguf"],
    "sglang": ["--tp-size", "2", "--speculative-algorithm", "NGRAM", "--mem-fraction-static", "-1"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "theirs", "said"),
    [
        ("vllm", "--max-model-len 8192", "--max-model-len: given twice: .*; leave one"),
        ("vllm", "--max_model_len=8192", r"--max_model_len: given twice: .*\(as --max-model-len\)"),
        ("vllm", "--tensor-parallel-size 4", r"--tensor-parallel-size: given twice.*\(as -tp\)"),
        ("vllm", "-sc {}", r"-sc: given twice: .*\(as --speculative-config\)"),
        ("vllm", "--speculative-config.method ngram", "--speculative-config: given twice"),
        ("vllm", "--spec-tokens 3", r"--spec-tokens: given twice"),
        ("vllm", "--enforce-eager --port 9", "--port: give --port to `wager serve` itself"),
        ("vllm", "--model x", "--model: give the model to `wager serve` itself"),
        ("vllm", "org/other", "'org/other' is no option of vLLM"),
        ("llamacpp", "-t 4", r"-t: given twice: .*\(as --threads\)"),
        ("llamacpp", "-np 4", "-np: given twice"),
        ("llamacpp", "--model-draft x.gguf", r"--model-draft: given twice: .*\(as -md\)"),
        ("llamacpp", "--spec-default", r"--spec-default: given twice: .*\(as --spec-type\)"),
        ("llamacpp", "--host 0.0.0.0", "--host: give --host"),
        ("llamacpp", "-hf org/m", "-hf: give the model"),
        ("sglang", "--tp 4", r"--tp: given twice: .*\(as --tp-size\)"),
        ("sglang", "--speculative_algorithm EAGLE", "--speculative_algorithm: given twice"),
    ],
)
def test_what_is_given_twice_is_refused_by_name(engine: str, theirs: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_arguments(engine, OURS[engine], theirs.split())


@pytest.mark.parametrize(
    ("engine", "theirs"),
    [
        ("vllm", "-pp 2 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --headless"),
        ("llamacpp", "-ngl 99 --spec-draft-ngl 99 --spec-draft-n-min 2 --metrics"),
        ("sglang", "--nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000 --seed -1"),
    ],
)
def test_whatever_else_is_passed_on(engine: str, theirs: str) -> None:
    check_arguments(engine, OURS[engine], theirs.split())
    check_arguments(engine, OURS[engine], [])


def test_a_negated_option_is_the_same_option() -> None:
    with pytest.raises(ConfigError, match="--enable-prefix-caching: given twice"):
        check_arguments("vllm", ["--no-enable-prefix-caching"], ["--enable-prefix-caching"])


def test_passed_options_may_ask_for_speculation() -> None:
    arm = passed_arm("vllm", ["--enforce-eager", "-sc", CONFIG])
    assert arm.name == "ngram:k=4,min=2,max=5"
    assert passed_arm("vllm", ["--enforce-eager"]) == Arm("plain")


def test_whether_it_drafts_is_what_the_engine_says() -> None:
    logs = {name: vllm.read_log(recorded(f"vllm_{name}.log")) for name in ("plain", "ngram")}
    assert drafting("vllm", logs["plain"].effective)[0] is False
    drafts, said = drafting("vllm", logs["ngram"].effective)
    assert drafts is True
    assert "method='ngram'" in said
    assert drafting("vllm", {}) == (None, "")
    assert drafting("llamacpp", {"speculative": False}) == (False, "its page /slots")
    assert drafting("llamacpp", {}) == (None, "")
    effective = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 5}
    said = "its settings: speculative_algorithm NGRAM, speculative_num_draft_tokens 5"
    assert drafting("sglang", effective) == (True, said)
    assert drafting("sglang", {"speculative_algorithm": None})[0] is False
    assert drafting("sglang", {}) == (None, "")


def opened(engine: str, model: str = "org/model", **options: Any) -> ServerBackend:
    return open_backend(engine, model, ServerOptions(measuring=False, **options))


def test_a_server_for_users_has_nothing_that_only_a_measurement_needs(tmp_path: Path) -> None:
    """No prefix cache switched off, no counters per request, no number of slots or threads."""
    model = tmp_path / "m.gguf"
    model.touch()
    assert isinstance(opened("vllm"), vllm.VllmBackend)
    assert opened("vllm").arguments(NGRAM) == ["--speculative-config", CONFIG]
    simple = opened("llamacpp", str(model)).arguments(NGRAM)
    assert simple[:2] == ["--spec-type", "ngram-simple"]
    assert isinstance(opened("sglang"), sglang.SglangBackend)
    assert opened("sglang").arguments(PLAIN) == []
    for engine in ("vllm", "sglang"):
        assert opened(engine, max_clients=8).arguments(PLAIN) == []
    some = opened("llamacpp", str(model), max_model_len=512, max_clients=4, threads=1)
    assert isinstance(some, llamacpp.LlamaCppBackend)
    assert some.arguments(PLAIN) == [
        "--threads", "1", "--threads-batch", "1", "--parallel", "4", "--ctx-size", "2048",
    ]  # fmt: skip


def test_the_ready_command_can_be_run_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(tmp_path, "llama-server", recorded("llama_help.txt"), "")
    model = tmp_path / "m.gguf"
    model.touch()
    backend = opened("llamacpp", str(model), program=path)
    plain = [path, "--model", str(model), "--host", "127.0.0.1", "--port", "8000"]
    assert ready_command(backend, PLAIN) == plain
    backend = opened("llamacpp", str(model), program=path, environment={"A": "b c"})
    assert ready_command(backend, PLAIN, 81) == ["env", "A=b c", *plain[:-1], "81"]
    backend = opened("vllm", engine_command="docker run -p {port}:{port} image {model} {args}")
    monkeypatch.setattr(backend, "environment", lambda arm: {})
    command = ready_command(backend, NGRAM, 81)
    assert command[3:] == ["81:81", "image", "org/model", "--speculative-config", CONFIG]


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port: cannot listen on 127\.0\.0\.1:{port}: "):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_what_the_dialect_has_to_say() -> None:
    assert notes("vllm", PLAIN) == ()
    assert "ngram-simple" in " ".join(notes("llamacpp", NGRAM))
    with pytest.raises(ConfigError, match="nonsense: not a method of vLLM"):
        notes("vllm", parse_arms("nonsense:k=4")[0])


class Terminal:
    """Takes what is said and echoed; ``on`` is called with each line."""

    def __init__(self, on: Any = None) -> None:
        self.said: list[str] = []
        self.echoed = b""
        self.on = on

    def say(self, line: str) -> None:
        self.said.append(line)
        if self.on:
            self.on(line)

    def echo(self, piece: bytes) -> None:
        self.echoed += piece


def service(backend: ServerBackend, arm: Arm, terminal: Terminal, **more: Any) -> Service:
    port = free_port()
    return Service(backend, arm, arm, port, terminal.say, terminal.echo, **more)


def vllm_backend(tmp_path: Path, log: str, **options: Any) -> ServerBackend:
    page = recorded("vllm_metrics.txt")
    path = program(tmp_path, "vllm", recorded("vllm_help.txt"), recorded(log), metrics=page)
    return opened("vllm", program=path, stop_timeout_s=1.0, **options)


@pytest.mark.parametrize(
    ("log", "arm", "said"),
    [
        ("vllm_ngram.log", NGRAM, "drafting is in effect (its log: SpeculativeConfig(method='ng"),
        ("vllm_plain.log", NGRAM, "NOT ACTIVE: it runs without drafting, though ngram:k=4,min=2"),
        ("vllm_plain.log", PLAIN, "plain decoding, nothing is drafted"),
    ],
)
def test_it_says_what_is_in_effect_and_ends_when_told(
    tmp_path: Path, log: str, arm: Arm, said: str
) -> None:
    backend = vllm_backend(tmp_path, log)

    def interrupt(line: str) -> None:
        if line.startswith(said):
            os.kill(os.getpid(), signal.SIGINT)

    terminal = Terminal(interrupt)
    try:
        assert service(backend, arm, terminal).run() == 128 + signal.SIGTERM
    finally:
        backend.close()
    assert terminal.said[0].startswith("vLLM 0.32.0 is ready after ")
    assert len(terminal.said) == 2
    assert recorded(log).strip() in terminal.echoed.decode()
    assert backend.session is None


def test_what_the_engine_does_not_say_itself_is_said_for_it(tmp_path: Path) -> None:
    """SGLang without CUDA: what it drafts changes what it answers."""
    info = {"version": "0.5.9", "speculative_algorithm": "NGRAM"}
    path = program(
        tmp_path, "sglang", recorded("sglang_help.txt"), recorded("sglang.log"), server_info=info
    )
    backend = opened("sglang", program=path, stop_timeout_s=1.0)

    def interrupt(line: str) -> None:
        if line.startswith("without CUDA"):
            os.kill(os.getpid(), signal.SIGTERM)

    terminal = Terminal(interrupt)
    try:
        service(backend, NGRAM, terminal).run()
    finally:
        backend.close()
    assert terminal.said[0].startswith("SGLang 0.5.9 is ready after ")
    assert terminal.said[1] == ("drafting is in effect (its settings: speculative_algorithm NGRAM)")
    assert len(terminal.said) == 3


def test_a_server_with_a_certificate_is_asked_by_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = vllm_backend(
        tmp_path, "vllm_plain.log", arguments=("--ssl-certfile", "c.pem"), host="::1"
    )
    asked: list[str] = []

    def ready() -> bool:
        asked.append(backend._url)
        return "speculative_config" in backend.log_text()

    def interrupt(line: str) -> None:
        if line.startswith("plain decoding"):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(backend, "ready", ready)
    monkeypatch.setattr(backend, "get", lambda path: (404, ""))
    terminal = Terminal(interrupt)
    one = service(backend, PLAIN, terminal)
    try:
        one.run()
    finally:
        backend.close()
    assert asked[0] == f"https://[::1]:{one.port}"
    assert terminal.said[0].endswith(f" s at https://[::1]:{one.port}")


def test_another_version_than_the_measured_one_is_not_served(tmp_path: Path) -> None:
    backend = vllm_backend(tmp_path, "vllm_ngram.log")
    terminal = Terminal()
    seen: list[str | None] = []

    def check(version: str | None) -> None:
        seen.append(version)
        if version is not None:
            raise ConfigError("another version")

    try:
        with pytest.raises(ConfigError, match="another version"):
            service(backend, NGRAM, terminal, check=check).run()
    finally:
        backend.close()
    assert seen[-1] == "0.32.0"
    # Its log told it: nobody had to wait until it was ready.
    assert terminal.said == []
    assert backend.session is None


def test_an_engine_that_fails_gives_its_own_status(tmp_path: Path) -> None:
    path = tmp_path / "vllm"
    path.write_text("#!/bin/sh\necho out of memory >&2\nexit 7\n")
    path.chmod(0o755)
    backend = opened("vllm", program=str(path))
    terminal = Terminal()
    assert service(backend, PLAIN, terminal).run() == 7
    backend.close()
    assert terminal.said == ["vLLM ended with exit status 7 before it was ready"]
    assert terminal.echoed == b"out of memory\n"


def test_the_log_that_is_kept_has_a_limit(tmp_path: Path) -> None:
    """Everything goes to the terminal; a server of months must not fill a disk."""
    path = tmp_path / "vllm"
    path.write_text("#!/bin/sh\nhead -c 6000000 /dev/zero\nexit 0\n")
    path.chmod(0o755)
    backend = opened("vllm", program=str(path), log_dir=tmp_path / "logs")
    terminal = Terminal()
    assert service(backend, PLAIN, terminal).run() == 0
    backend.close()
    (log,) = (tmp_path / "logs").glob("*.log")
    assert log.stat().st_size == 4 << 20
    assert len(terminal.echoed) == 6_000_000


def test_output_goes_out_whole() -> None:
    reading, writing = os.pipe()
    try:
        to_terminal(writing)(b"abc\n")
        assert os.read(reading, 100) == b"abc\n"
    finally:
        os.close(reading)
        os.close(writing)
