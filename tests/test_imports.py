"""What is loaded when: `import wager` and `wager --help` stay light."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import wager

HEAVY = (
    "numpy", "torch", "transformers", "tokenizers", "jinja2", "gguf", "huggingface_hub",
    "wager._native",
)  # fmt: skip


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import wager",
        "from wager import SamplingParams, SpeculationConfig; SamplingParams(temperature=0.0)",
        "from wager import SpeculationConfig as Config; Config.parse("
        "{'method': ['suffix', 'draft_model'], 'model': 'd', 'num_speculative_tokens': 4})",
        "import wager.cli.main",
    ],
)
def test_light_imports(code: str) -> None:
    loaded = loaded_by(code)
    assert not loaded.intersection(HEAVY)


def test_the_engine_loads_no_torch() -> None:
    loaded = loaded_by("from wager import LLM")
    assert "numpy" in loaded
    assert not loaded.intersection({"torch", "transformers", "jinja2", "gguf", "huggingface_hub"})


def test_public_names_exist() -> None:
    for name in wager.__all__:
        assert getattr(wager, name) is not None
    with pytest.raises(AttributeError):
        _ = wager.nothing
    assert importlib.import_module("wager").__version__
