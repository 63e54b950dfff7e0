"""What is asked of speculation, read and written back."""

from __future__ import annotations

from typing import Any

import pytest

from wager.errors import ConfigError
from wager.speculation import SpeculationConfig

JOINT: dict[str, Any] = {
    "method": ["suffix", "ngram", "draft_model"], "num_speculative_tokens": 8, "model": "D",
    "prompt_lookup_min": 2, "prompt_lookup_max": 5, "suffix_decoding_max_cached_requests": 0,
}  # fmt: skip
CONFIGS: list[dict[str, Any]] = [
    JOINT,
    {"method": "ngram", "num_speculative_tokens": 4},
    {"method": "ngram"},
    {"method": "ngram", "loss_budget": 0.02, "objective": "latency"},
    {"method": "ngram", "num_speculative_tokens": 4, "controller": "off"},
    {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "cyclic": False},
    {"method": "suffix", "num_speculative_tokens": 24, "suffix_decoding_max_spec_factor": 2.5},
    {
        "method": "draft_model", "num_speculative_tokens": 4, "model": "self",
        "quantization": "int8", "verify": "rejection", "block_verification": True,
    },
    {
        "method": ["tests.recipes:Garbage", "suffix"], "num_speculative_tokens": 3,
        "options": {"constant": 5},
    },
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config["method"]))
def test_the_values_in_effect_make_the_same_config(config: dict[str, Any]) -> None:
    read = SpeculationConfig.parse(config)
    assert read is not None
    values = read.values()
    assert SpeculationConfig.parse(values) == read
    # What was given is among them, as it was given.
    assert {key: values[key] for key in config} == config
    assert {"verify", "block_verification"} <= set(values)


def test_each_method_takes_its_own_keys() -> None:
    read = SpeculationConfig.parse(JOINT)
    assert read is not None
    suffix, ngram, model = (one.options for one in read.methods)
    assert suffix.suffix_decoding_max_cached_requests == 0
    assert ngram.bounds == (2, 5)
    assert model.model == "D"
    assert [one.num_speculative_tokens for one in read.methods] == [8, 8, 8]
    said = read.describe()
    assert said.index("suffix (") < said.index("ngram (") < said.index("draft_model (")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": []}, "the list is empty"),
        ({"method": ["ngram", "ngram"]}, "named twice"),
        ({"method": ["ngram", 3]}, "a list of them"),
        ({"method": ["ngram", "nothing"]}, "'nothing' is not a drafting method"),
        ({"method": ["ngram", "suffix"], "model": "D"}, "unknown key 'model' for ngram and suffix"),
        ({"prompt_lookup_max": 0}, "^prompt_lookup_max: must be"),
        ({"prompt_lookup_max": 10**9}, "^prompt_lookup_max: must be"),
        ({"prompt_lookup_min": -1}, "^prompt_lookup_min: must be"),
        ({"prompt_lookup_min": 3, "prompt_lookup_max": -1}, "^prompt_lookup_max: must be"),
        ({"verify": "typical"}, "verify: must be one of match, rejection"),
        ({"block_verification": True}, "block_verification: is a form of"),
        ({"block_verification": 1, "verify": "rejection"}, "must be true or false"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SpeculationConfig.parse({"method": "ngram", "num_speculative_tokens": 4, **change})


def test_auto_is_what_needs_no_model() -> None:
    read = SpeculationConfig.parse({"method": "auto"})
    assert read is not None
    assert [one.method for one in read.methods] == ["suffix", "ngram"]
    assert read.methods[1].options.bounds == (2, 5)
    assert (read.controller, read.num_speculative_tokens) == ("on", 16)
    assert "only where it pays (0.5 % may be lost)" in read.describe()
    other = SpeculationConfig.parse({"method": "auto", "prompt_lookup_min": 3})
    assert other is not None
    assert other.methods[1].options.bounds == (3, 5)


@pytest.mark.parametrize(("given", "mode"), [(True, "on"), (False, "off"), ("off", "off")])
def test_the_controller_is_switched_by_words_or_truth(given: object, mode: str) -> None:
    read = SpeculationConfig.parse(
        {"method": "ngram", "num_speculative_tokens": 2, "controller": given}
    )
    assert read is not None
    assert read.controller == mode
