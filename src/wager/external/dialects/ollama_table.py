"""Ollama's speculation options: two lines of a Modelfile and the tags of its library.

Source: Ollama fb30760 (August 2026), read, not run here.
"""

from __future__ import annotations

from typing import Final

from wager.external.dialects.base import Option

DEFAULT_LENGTH: Final = 4

LINES: Final[tuple[Option, ...]] = (
    Option(("FROM",), "the target", "target"),
    Option(("DRAFT",), "the drafter: an MTP or DFlash drafter, as GGUF or for MLX", "model"),
    Option(
        ("draft_num_predict",),
        f"draft tokens per step ({DEFAULT_LENGTH} if absent, 0 switches drafting off)",
        "num_speculative_tokens",
        "whole",
    ),
)
"""Words that begin a line of a Modelfile, and the parameter (PARAMETER draft_num_predict 4)."""

TAGS: Final = {
    "dflash": "a tag of the library whose model comes with a DFlash drafter: nothing to set",
    "mtp": "a tag whose model holds MTP layers; they draft only where the Modelfile sets "
    "draft_num_predict (see: ollama show MODEL)",
}
"""Word in a tag: what it says."""
