"""`wager serve` with the own engine: what its options become, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wager.cli.main import main
from wager.cli.serve_own import name_of
from wager.config import EngineConfig
from wager.external.tuned import Tuned
from wager.server.options import ServerOptions
from wager.speculation import SpeculationConfig

Capture = pytest.CaptureFixture[str]
NGRAM = '{"method": "ngram", "num_speculative_tokens": 8}'


class Asked:
    """What `wager serve` would have started."""

    model: str
    engine: EngineConfig
    speculation: SpeculationConfig | None
    options: ServerOptions


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command without serving; returns what was asked for."""
    asked = Asked()

    def instead(model: str, engine: Any, speculation: Any, options: Any, say: Any) -> int:
        asked.model, asked.engine = model, engine
        asked.speculation, asked.options = speculation, options
        return 0

    monkeypatch.setattr("wager.server.run.serve", instead)
    monkeypatch.delenv("WAGER_API_KEY", raising=False)

    def command(*arguments: str, model: str = "/models/tiny.gguf") -> Asked:
        assert main(["serve", model, *arguments]) == 0
        return asked

    return command


def test_the_defaults(serve: Any) -> None:
    asked = serve()
    assert asked.model == "/models/tiny.gguf"
    assert asked.engine == EngineConfig()
    assert asked.speculation is None
    assert asked.options == ServerOptions(served_names=("tiny",))


def test_every_option(serve: Any) -> None:
    asked = serve(
        "--host", "0.0.0.0", "--port", "9000", "--served-model-name", "a", "--served-model-name",
        "b", "--api-key", "k1", "--api-key", "k2", "--allowed-origins", "http://a,http://b:1",
        "--allowed-origins", "https://c", "--max-queue", "7", "--max-body", "1MB",
        "--max-prompts", "3", "--max-choices", "4", "--request-timeout", "5",
        "--drain-timeout", "0", "--stall-timeout", "9", "--metrics-alias", "vllm",
        "--metrics-port", "9001", "--dashboard-show-text", "--json-logs", "--weights", "int8",
        "--kv", "f16", "--threads", "2", "--ops", "native", "--max-model-len", "1024",
        "--max-num-seqs", "8", "--max-batch-tokens", "256", "--kv-memory", "1GiB",
        "-sc", NGRAM, "--engine", "own",
    )  # fmt: skip
    assert asked.options == ServerOptions(
        host="0.0.0.0", port=9000, served_names=("a", "b"), api_keys=("k1", "k2"),
        allowed_origins=("http://a", "http://b:1", "https://c"), max_queue=7, max_body=10**6,
        max_prompts=3, max_choices=4, request_timeout=5.0, drain_timeout=0.0, stall_timeout=9.0,
        metrics_alias="vllm", metrics_port=9001, dashboard_show_text=True, json_logs=True,
    )  # fmt: skip
    assert asked.engine == EngineConfig(
        weights="int8", kv="f16", threads=2, ops="native", max_model_len=1024, max_num_seqs=8,
        max_batch_tokens=256, kv_memory=1 << 30,
    )  # fmt: skip
    assert asked.speculation == SpeculationConfig.parse(NGRAM)


def test_a_length_in_a_config_is_a_bound_and_in_an_arm_it_is_the_length(serve: Any) -> None:
    assert serve("-sc", NGRAM).speculation.controller == "on"
    asked = serve("--arm", "ngram:k=8")
    assert asked.speculation.controller == "off"
    assert asked.speculation.num_speculative_tokens == 8
    assert serve("--arm", "plain").speculation is None


def test_past_answers(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "memory"
    asked = serve("-sc", '{"method": "suffix"}', "--draft-memory", str(file))
    assert asked.speculation.values()["draft_memory"] == str(file)


def test_keys_of_the_environment(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_API_KEY", "one,two")
    assert serve().options.api_keys == ("one", "two")
    assert serve("--api-key", "three").options.api_keys == ("three",)


def test_an_empty_key_does_not_open_the_server(
    serve: Any, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("WAGER_API_KEY", "")
    assert main(["serve", "m"]) == 2
    assert "api_key: key 1 of 1 is empty" in capsys.readouterr().err


def tuned_file(folder: Path, *arguments: str, **other: Any) -> str:
    fields: dict[str, Any] = {
        "engine": "own", "version": "", "model": "m", "command": ("wager", "run", "m"),
        "arguments": arguments,
        "speculation": {"method": "ngram", "num_speculative_tokens": 3}, **other,
    }  # fmt: skip
    path = folder / "tuned.json"
    path.write_text(Tuned(**fields).to_json())
    return str(path)


def test_a_tuned_file(serve: Any, tmp_path: Path) -> None:
    tuned = tuned_file(tmp_path, "--weights", "int8", "--threads", "2", "-sc", NGRAM)
    asked = serve("--tuned", tuned, model="m")
    assert asked.engine == EngineConfig(weights="int8", threads=2)
    # Its record of the speculation counts, not how a command would say it.
    assert asked.speculation.num_speculative_tokens == 3
    assert asked.speculation.controller == "off"
    assert serve("--tuned", tuned, "--threads", "2", model="m").engine.threads == 2
    none = tuned_file(tmp_path, speculation=None)
    assert serve("--tuned", none, model="m").speculation is None


def test_what_a_tuned_file_does_not_allow(serve: Any, tmp_path: Path, capsys: Capture) -> None:
    tuned = tuned_file(tmp_path, "--weights", "int8")
    for arguments, said in (
        (["--weights", "f32"], "weights: the tuned file was measured with int8"),
        (["-sc", NGRAM], "arm: give one of --tuned, --arm and --speculative-config"),
    ):
        assert main(["serve", "m", "--tuned", tuned, *arguments]) == 2
        assert said in capsys.readouterr().err
    assert main(["serve", "other", "--tuned", tuned]) == 2
    assert "measured with the model m, not other" in capsys.readouterr().err
    tuned = tuned_file(tmp_path, engine="vllm")
    assert main(["serve", "m", "--tuned", tuned]) == 2
    assert "was measured on vllm; serve with --engine vllm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "--alias", "x"], "--alias: wager's own engine takes nothing after its options"),
        (["stray"], "stray: wager's own engine takes nothing"),
        (["--engine-program", "x"], "engine-program: starts another engine; add --engine"),
        (["--engine-command", "x {port}"], "engine-command: starts another engine"),
        (["--force"], "force: there is no --tuned FILE"),
        (["--draft-memory", "f"], "draft-memory: nothing drafts"),
        (["--arm", "plain,ngram:k=4"], "arm: a server runs one arm"),
        (["--arm", "ngram:k=4", "-sc", NGRAM], "arm: give one of"),
        (["-sc", '{"method": "nope"}'], "method: 'nope'"),
        (["-sc", '{"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 2}'],
         "prompt_lookup_min: 5 is larger"),
        (["-sc", "[]"], "speculative-config: must be a JSON object"),
        (["--kv-memory", "2"], "kv-memory: '2' is no size"),
        (["--max-body", "x"], "max-body: 'x' is no size"),
        (["--weights", "int7"], "weights: must be one of"),
        (["--max-num-seqs", "0"], "max_num_seqs: must be at least 1"),
        (["--max-queue", "0"], "max_queue: must be a whole number"),
        (["--request-timeout", "nan"], "request_timeout: must be a finite number"),
        (["--metrics-alias", "sglang"], "metrics_alias: must be vllm"),
        (["--metrics-port", "8000"], "metrics_port: 8000 is --port too"),
        (["--api-key", "a b"], "api_key: key 1 of 1"),
        (["--allowed-origins", "localhost"], "allowed_origins: 'localhost' is no origin"),
        (["--served-model-name", ""], "served_model_name: ''"),
        (["--port", "0"], "Invalid value for '--port'"),
        (["--dtype", "float16"], "--dtype"),
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size"),
    ],
)  # fmt: skip
def test_what_is_refused(serve: Any, capsys: Capture, arguments: list[str], said: str) -> None:
    assert main(["serve", "/nowhere/model", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.startswith("wager: error: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--threads", "2"], ["--weights", "int8"], ["--kv", "f32"], ["--max-model-len", "10"],
        ["--max-num-seqs", "2"], ["--kv-memory", "1GB"], ["--draft-memory", "f"],
        ["--served-model-name", "x"], ["--api-key", "k"], ["--allowed-origins", "*"],
        ["--max-queue", "0"], ["--drain-timeout", "0"], ["--metrics-port", "1"], ["--json-logs"],
        ["--dashboard-show-text"],
    ],
)  # fmt: skip
def test_another_engine_has_options_of_its_own(capsys: Capture, arguments: list[str]) -> None:
    assert main(["serve", "--engine", "vllm", "m", *arguments]) == 2
    name = arguments[0].removeprefix("--")
    assert capsys.readouterr().err == (
        f"wager: error: {name}: is an option of wager's own engine; leave it out, and give vLLM "
        "its own options after a --\n"
    )


def test_a_key_in_the_environment_is_no_option_of_another_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.setenv("WAGER_API_KEY", "one")
    model = tmp_path / "m.gguf"
    model.touch()
    given = ["serve", "--engine", "llamacpp", str(model), "--engine-program", "no-such"]
    assert main(given) == 2
    assert "engine-program: 'no-such' is not a program" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("/models/SmolLM2-135M-Instruct-Q8_0.gguf", "SmolLM2-135M-Instruct-Q8_0"),
        ("/models/Qwen3-8B-Q4_K_M-00002-of-00003.gguf", "Qwen3-8B-Q4_K_M"),
        ("/models/tiny/", "tiny"),
        ("./models/a.b", "a.b"),
    ],
)
def test_names_of_models(model: str, name: str) -> None:
    assert name_of(model) == name


def test_a_model_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert name_of(".") == "mine"


def test_the_help_names_the_options(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["serve", "--help"]) == 0
    printed = capsys.readouterr().out
    for name in ("--api-key", "--max-queue", "--kv-memory", "--metrics-port"):
        assert name in printed
