"""What a start loads: nothing that only packing, chatting or pulling needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.tiny_gguf import write_tiny_gguf

PROGRAM = """
import sys
from tests.models.plain_ops import PlainOps
from wager.models.load import load_model

model = load_model(sys.argv[1], PlainOps())
print("gguf" in sys.modules)
print([name for name in ("jinja2", "rich", "huggingface_hub", "pydantic", "torch", "transformers")
       if name in sys.modules])
model.tokenizer.chat([{"role": "user", "content": "Hi"}])
print("jinja2" in sys.modules)
"""


def test_a_start_imports_what_it_needs(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", tensor_type="Q8_0")

    def start() -> list[str]:
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent.parent.parent,
        )
        return run.stdout.splitlines()

    assert start() == ["True", "[]", "True"]
    # Packed weights are mapped then: nothing is dequantised.
    assert start() == ["False", "[]", "True"]
