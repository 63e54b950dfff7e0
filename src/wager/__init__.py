"""wager: speculative decoding that is exact, fast on a CPU, and honest about when it does not pay.

from wager import LLM, SamplingParams

llm = LLM("smollm2-135m", speculation={"method": "ngram", "num_speculative_tokens": 8})
for answer in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
    print(answer.outputs[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wager.config import EngineConfig, SamplingParams, StructuredOutput
from wager.errors import WagerError
from wager.speculation import SpeculationConfig

if TYPE_CHECKING:
    from wager.engine.llm import LLM
    from wager.engine.service import AsyncLLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "EngineConfig",
    "SamplingParams",
    "SpeculationConfig",
    "StructuredOutput",
    "WagerError",
]


def __getattr__(name: str) -> Any:
    # Importing the engine loads numpy and the extension; `import wager` alone must not.
    if name == "LLM":
        from wager.engine.llm import LLM

        return LLM
    if name == "AsyncLLM":
        from wager.engine.service import AsyncLLM

        return AsyncLLM
    raise AttributeError(f"module 'wager' has no attribute {name!r}")
