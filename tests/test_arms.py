"""Arms as people write them."""

from __future__ import annotations

import json

import pytest

from wager.arms import Arm, Speculation, arm_of, label, parse_arms, speculation_of
from wager.errors import ConfigError


def test_options_belong_to_the_method_before_them() -> None:
    arms = parse_arms("plain, ngram:k=4,min=2,max=5,draft_model:model=org/name:Q4,k=3")
    assert arms == [
        Arm("plain"),
        Arm(
            "ngram:k=4,min=2,max=5",
            Speculation(
                "ngram",
                {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
            ),
        ),
        Arm(
            "draft_model:model=org/name:Q4,k=3",
            Speculation("draft_model", {"model": "org/name:Q4", "num_speculative_tokens": 3}),
        ),
    ]


LIST = "suffix+ngram:k=8,min=2,max=5"


@pytest.mark.parametrize(
    "text",
    [
        "ngram",
        "ngram:k=4",
        "ngram-mod:k=8,spec-x=true",
        "a:p=0.5",
        LIST,
        "a+b+c",
        "ngram:k=8/0@3,min=5,max=10",
        "draft_model:model=D,k=8/4/0@3/9",
    ],
)
def test_a_label_reads_back(text: str) -> None:
    (arm,) = parse_arms(text)
    assert arm.speculation is not None
    assert label(arm.speculation) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one"),
        ("k=4", "without a method"),
        ("plain:k=4", "takes no options"),
        ("ngram,ngram", "twice"),
        ("ngram:k", "not an option"),
        ("ngram:=4", "not an option"),
        ("4:k=4", "not the name"),
        ("suffix+:k=4", "not the name"),
        ("suffix++ngram:k=4", "not the name"),
        ("suffix+plain:k=4", "no method"),
        ("ngram:k=8/0@1", "no schedule"),
        ("ngram:k=8/4@3/9", "no schedule"),
        ("ngram:k=8/4/2@9/3", "no schedule"),
        ("ngram:k=0/0@3", "no schedule"),
        ("ngram:k=8/0@2000", "no schedule"),
    ],
)
def test_nonsense_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_arms(text)


def test_a_config_in_vllm_form() -> None:
    arm = arm_of({"method": "ngram", "num-speculative-tokens": 8})
    assert arm.name == "ngram:k=8"
    assert arm.speculation is not None
    assert arm.speculation.config() == {"method": "ngram", "num_speculative_tokens": 8}
    with pytest.raises(ConfigError, match="method"):
        arm_of({"num_speculative_tokens": 8})


def test_a_list_of_methods_is_one_arm() -> None:
    arms = parse_arms(f"plain,{LIST},draft_model:model=self,quantization=int8,k=4,verify=rejection")
    assert [arm.name for arm in arms][1:] == [
        LIST, "draft_model:model=self,quantization=int8,k=4,verify=rejection",
    ]  # fmt: skip
    asked = arms[1].speculation
    assert asked is not None
    assert asked.methods == ("suffix", "ngram")
    config = {
        "method": ["suffix", "ngram"], "num_speculative_tokens": 8, "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }  # fmt: skip
    assert asked.config() == config
    assert arm_of(config) == arms[1]
    assert speculation_of({**config, "method": ["ngram"]}).config()["method"] == "ngram"
    for method in ([], ["suffix", 4], [""], None):
        with pytest.raises(ConfigError, match="method"):
            arm_of({**config, "method": method})


def test_a_schedule_is_vllm_s_list_of_ranges() -> None:
    (arm,) = parse_arms("ngram:k=8/4/0@3/9,min=2")
    assert arm.speculation is not None
    assert arm.speculation.config() == {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "num_speculative_tokens_per_batch_size": [[1, 2, 8], [3, 8, 4], [9, 1024, 0]],
        "prompt_lookup_min": 2,
    }


@pytest.mark.parametrize("ranges", [[[1, 2, 8], [4, 9, 0]], [[1, 8], [9, 0]], [], 5, [3]], ids=str)
def test_a_schedule_that_has_no_short_form_is_spelled_in_full(ranges: object) -> None:
    arm = arm_of({"method": "ngram", "num_speculative_tokens_per_batch_size": ranges})
    assert arm.name == f"ngram:num_speculative_tokens_per_batch_size={json.dumps(ranges)}"
