"""`wager fit` from its options to what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hub import fake_hub, point_library_at
from tests.tiny import write_tiny_hf
from tests.tiny_gguf import write_tiny_gguf
from wager.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def fit(capsys: Capture, *arguments: str) -> Any:
    assert main(["fit", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: Capture, *arguments: str) -> str:
    assert main(["fit", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("wager: error: ")


def test_a_table_for_people(tiny_path: Path, capsys: Capture) -> None:
    model = str(tiny_path)
    assert main(["fit", model, "--memory", "1GB", "--draft", "ngram", "-k", "4"]) == 0
    printed = capsys.readouterr().out
    head, table = printed.split("\n", 1)
    assert head.startswith(f"{tiny_path.name}: 2 layers, 0.1 M weights, F32")
    assert "own (cpu), memory 1.00 GB (given: --memory), KV f32, 1 x 512 tokens" in table
    assert "with ngram, k 4" in table
    # 2 layers x 2 heads x 16 x keys and values x 4 B
    assert "512 B" in table
    assert "Fits: 1 client with 512 tokens each." in table


def test_what_the_machine_has(tiny_path: Path, capsys: Capture) -> None:
    found = fit(capsys, str(tiny_path))
    assert found["setting"]["memory_kind"] == "read from the machine"
    assert found["setting"]["device"] == "cpu"
    assert found["setting"]["memory"] > 1 << 28
    assert found["drafted"] is None
    assert found["plain"]["largest_context_one_client"] == 512


def test_a_gpu_is_found(tiny_path: Path, tmp_path: Path, capsys: Capture) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA L4, 23034, 22500'\n")
    program.chmod(0o755)
    found = fit(capsys, str(tiny_path), "--engine", "vllm")
    assert (found["setting"]["device"], found["setting"]["memory"]) == ("gpu", 23034 << 20)
    assert found["setting"]["memory_what"] == "NVIDIA L4"
    assert found["setting"]["utilization"] == 0.92
    two = fit(capsys, str(tiny_path), "--engine", "vllm", "-tp", "2")
    assert two["notes"][-1] == "this machine has 1 GPU(s), not 2"
    assert fit(capsys, str(tiny_path), "--engine", "vllm", "--device", "cpu")["setting"][
        "device"
    ] == "cpu"  # fmt: skip


def test_options_reach_the_reckoning(tiny_path: Path, capsys: Capture) -> None:
    found = fit(
        capsys, str(tiny_path), "--engine", "vllm", "--memory", "24GB", "--clients", "8",
        "--max-model-len", "256", "--kv-dtype", "fp8", "--dtype", "float16", "--kv-memory", "1MiB",
        "--gpu-memory-utilization", "0.5", "--draft", str(tiny_path), "-k", "3",
    )  # fmt: skip
    setting = found["setting"]
    assert (setting["clients"], setting["max_model_len"], setting["kv_dtype"]) == (8, 256, "fp8")
    assert (setting["device"], setting["utilization"], found["setting"]["usable"]) == (
        "gpu", 0.5, 12 * 10**9,
    )  # fmt: skip
    assert found["plain"]["left_for_kv"] == 1 << 20
    assert found["plain"]["kv_bytes_per_token"] == 128
    assert found["plain"]["kv_tokens"] == 8192
    assert found["drafted"]["kv_tokens"] == 4096
    assert found["drafted"]["lookahead_slots"] == 8 * 2 * 3
    assert found["draft"] == {
        "label": f"{tiny_path.name} (draft_model)", "method": "draft_model",
        "num_speculative_tokens": 3,
    }  # fmt: skip
    parts = {part["name"]: part["bytes" if "bytes" in part else "nbytes"]
             for part in found["plain"]["parts"]}  # fmt: skip
    assert parts["weights"] == 2 * found["model"]["parameters"]


def test_gguf_and_llama_cpp(tmp_path: Path, capsys: Capture) -> None:
    model = str(write_tiny_gguf(tmp_path / "m.gguf", tensor_type="Q8_0"))
    found = fit(capsys, model, "--engine", "llamacpp", "--memory", "1GB", "--draft", "ngram-mod")
    assert found["draft"]["num_speculative_tokens"] == 64
    names = [part["name"] for part in found["drafted"]["parts"]]
    assert names == ["weights", "compute buffer", "output buffer", "hash of n-grams"]


def test_a_model_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    write_tiny_hf(tmp_path / "repos/org/qwen", config={"architectures": ["GptOssForCausalLM"]})
    with fake_hub(tmp_path / "repos") as hub:
        point_library_at(monkeypatch, hub.endpoint, tmp_path / "cache")
        found = fit(capsys, "org/qwen", "--memory", "8GB")
        assert found["setting"]["engine"] == "vllm"
        assert found["notes"] == [
            "reckoned for vllm: wager's own engine does not run GptOssForCausalLM"
        ]
        # Without a draft model nobody compares tokenizers.
        assert not hub.served["org/qwen/tokenizer.json"]
        fit(capsys, "org/qwen", "--memory", "8GB", "--draft", "org/qwen")
        assert hub.served["org/qwen/tokenizer.json"]


def test_what_is_refused(tiny_path: Path, tmp_path: Path, capsys: Capture) -> None:
    model = str(tiny_path)
    assert refused(capsys, model, "--memory", "8").startswith("memory: '8' is no size; write a")
    assert refused(capsys, model, "--kv-memory", "8GG").startswith("kv-memory: '8GG' is no size")
    assert refused(capsys, model, "--clients", "0") == "clients: must be from 1 to 65536, got 0"
    assert "engine: must be one of own, vllm" in refused(capsys, model, "--engine", "tgi")
    assert "device: must be auto, cpu or gpu" in refused(capsys, model, "--device", "tpu")
    assert "nothing drafts; add --draft" in refused(capsys, model, "-k", "4")
    assert "llama.cpp runs GGUF files" in refused(capsys, model, "--engine", "llamacpp")
    assert "kv-dtype: 'q8_0'" in refused(capsys, model, "--kv-dtype", "q8_0")
    assert "nvidia-smi finds no GPU here" in refused(
        capsys, model, "--engine", "vllm", "--device", "gpu"
    )
    assert "runs on the CPU" in refused(capsys, model, "--device", "gpu")
    assert "on one device only" in refused(capsys, model, "-tp", "2")
    assert "is an option of vLLM, not of own" in refused(
        capsys, model, "--gpu-memory-utilization", "0.9"
    )
    assert "above 0 and at most 1" in refused(
        capsys, model, "--engine", "vllm", "--gpu-memory-utilization", "90"
    )
    assert "no layers for multi-token prediction" in refused(capsys, model, "--draft", "mtp")
    assert "no file or directory 'nothing'" in refused(capsys, model, "--draft", "nothing")
    assert "draft: there is no" in refused(capsys, model, "--draft", "nothing")
    assert "is the method ngram meant?" in refused(capsys, model, "--draft", "ngrm")
    assert "methods are ngram, suffix, " in refused(capsys, model, "--draft", "eagle3")
    gguf = str(write_tiny_gguf(tmp_path / "m.gguf", tensor_type="Q8_0"))
    assert "engine: vLLM 0.32 reads no GGUF files" in refused(capsys, gguf, "--engine", "vllm")
    assert "draft: vLLM 0.32 reads no GGUF files" in refused(
        capsys, model, "--engine", "vllm", "--draft", gguf
    )
    assert "kv-memory: llama-server has no such option" in refused(
        capsys, gguf, "--engine", "llamacpp", "--kv-memory", "1GB"
    )
    qwen = write_tiny_hf(tmp_path / "q", config={"architectures": ["GptOssForCausalLM"]})
    assert "does not run GptOssForCausalLM; take --engine vllm" in refused(
        capsys, str(qwen), "--engine", "own"
    )
    head = write_tiny_hf(tmp_path / "h", config={"draft_vocab_size": 100})
    assert "is a draft head (eagle3)" in refused(capsys, str(head), "--engine", "vllm")


def test_a_context_beyond_the_models_own_is_mentioned(tiny_path: Path, capsys: Capture) -> None:
    found = fit(capsys, str(tiny_path), "--max-model-len", "1024", "--memory", "400MB")
    assert found["notes"] == ["the model's own longest context is 512 tokens"]


def test_what_the_engine_does_otherwise_is_mentioned(tiny_path: Path, capsys: Capture) -> None:
    line = (str(tiny_path), "--memory", "1GB", "--kv-memory", "2GB")
    found = fit(capsys, *line, "--draft", "suffix")
    assert [note.split(":")[0] for note in found["notes"]] == ["kv-memory"]
    found = fit(capsys, *line[:3], "--kv-memory", "10MB", "--draft", "ngram-mod")
    assert found["notes"] == ["own has no ngram-mod: reckoned as ngram"]
    assert found["plain"]["left_for_kv"] == 10**7


@pytest.mark.parametrize("draft", [(), ("--draft", "ngram")])
def test_it_loads_nothing_heavy(tiny_path: Path, draft: tuple[str, ...]) -> None:
    arguments = ["fit", str(tiny_path), "--memory", "1GB", *draft]
    script = (
        f"from wager.cli.main import main\nassert main({arguments!r}) == 0\n"
        "import sys\nprint('MODULES', *sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.rpartition("MODULES")[2].split())
    assert "wager.bench.fit.calculate" in loaded
    assert not loaded & {"torch", "transformers", "tokenizers", "wager._native", "huggingface_hub"}
