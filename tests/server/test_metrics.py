"""The metrics page: names, labels, what counts, and that what is not known is not shown."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.recipes import ngram, prompts
from tests.server.metrics_fakes import ask, engine, output, service, stepped
from wager import LLM, SamplingParams
from wager.engine.snapshot import Snapshot
from wager.engine.stats import MAX_SOURCES, EngineStats
from wager.external.metrics import Reader
from wager.server import metrics
from wager.server.service import Service
from wager.server.truth import RequestRecord

COMMON = {
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
    "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total",
    "prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total",
    "request_success_total", "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count", "e2e_request_latency_seconds_count",
    "request_queue_time_seconds_count", "request_prefill_time_seconds_count",
    "request_decode_time_seconds_count", "request_inference_time_seconds_count",
    "request_time_per_output_token_seconds_count", "request_prompt_tokens_count",
    "request_generation_tokens_count", "request_max_num_generation_tokens_count",
    "request_params_n_count", "request_params_max_tokens_count",
}  # fmt: skip
DRAFTS = {
    "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total",
}  # fmt: skip
OWN = {
    "step_time_seconds_count", "draft_time_seconds_count", "num_request_steps_total",
    "requests_received_total", "requests_refused_total", "drafter_failures_total",
    "estimated_plain_seconds_total", "compared_seconds_total", "controller_decisions_total",
    "controller_draft_lengths_total",
}  # fmt: skip


def samples(of: Service) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The page's samples: by name, then by labels."""
    reply = ask(metrics.page, of)
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(bytes(reply.body).decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.get(sample.name, {}), f"{sample.name} {labels} twice"
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def drafted() -> EngineStats:
    """Three steps: 2 requests with drafts, 1 with a shared one, 1 without any."""
    stats = EngineStats()
    stepped(stats, 15.0, ("ngram", 4, 4, 5), ("suffix", 3, 1, 2))
    stepped(stats, 12.0, ("suffix (past answers)", 2, 0, 1))
    stepped(stats, 10.0, ("", 0, 0, 1))
    return stats


def controller() -> SimpleNamespace:
    decisions = SimpleNamespace(reasons={"bet": 2, "no gain expected": 1}, lengths={4: 1, 3: 1})
    return SimpleNamespace(decisions=decisions)


def speculating(**options: str) -> Service:
    methods = ("suffix", "ngram")
    of = service(Snapshot.of(engine(drafted(), methods, controller=controller())), **options)
    of.metrics.refused(429)
    return of


def test_names_and_labels_of_both_families() -> None:
    found = samples(speculating(metrics_alias="vllm"))
    for prefix, labels in (("wager", {"model"}), ("vllm", {"model_name", "engine"})):
        for name in COMMON | DRAFTS:
            more = set()
            if name.startswith("spec_decode") and prefix == "wager":
                more.add("method")
            if name.endswith("per_pos_total"):
                more.add("position")
            if name == "request_success_total":
                more.add("finished_reason")
            series = found[f"{prefix}:{name}"]
            assert all({key for key, _ in own} == labels | more for own in series), name
    assert {f"wager:{name}" for name in OWN} <= set(found)
    # Under another engine's name there is nothing that it does not have itself.
    assert not {f"vllm:{name}" for name in OWN} & set(found)
    assert found["vllm:num_requests_running"] == {(("engine", "0"), ("model_name", "tiny")): 2.0}
    assert found["process_start_time_seconds"]


def test_the_other_family_is_served_on_demand_alone() -> None:
    assert not [name for name in samples(speculating()) if name.startswith("vllm")]


def test_counts_by_method_and_position() -> None:
    found = samples(speculating(metrics_alias="vllm"))
    by_method = {
        dict(labels)["method"]: value
        for labels, value in found["wager:spec_decode_num_draft_tokens_total"].items()
    }
    assert by_method == {"ngram": 4.0, "suffix": 5.0}
    plain = (("engine", "0"), ("model_name", "tiny"))
    assert found["vllm:spec_decode_num_drafts_total"] == {plain: 3.0}
    assert found["vllm:spec_decode_num_draft_tokens_total"] == {plain: 9.0}
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == {plain: 5.0}
    at = found["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert {dict(labels)["position"]: value for labels, value in at.items()} == {
        "0": 2.0, "1": 1.0, "2": 1.0, "3": 1.0,
    }  # fmt: skip
    for name in DRAFTS:
        sums = [sum(found[f"{prefix}:{name}"].values()) for prefix in ("wager", "vllm")]
        assert sums[0] == sums[1]
    assert sum(found["wager:generation_tokens_total"].values()) == 9.0


def test_a_method_that_never_drafted_is_shown_with_zero() -> None:
    found = samples(service(Snapshot.of(engine())))
    assert found["wager:spec_decode_num_drafts_total"] == {
        (("method", "ngram"), ("model", "tiny")): 0.0
    }


def test_without_a_method_nothing_is_said_of_drafts() -> None:
    found = samples(service(Snapshot.of(engine(methods=())), metrics_alias="vllm"))
    assert not [name for name in found if "spec_decode" in name or "draft" in name]
    assert not [name for name in found if "estimated" in name or "controller" in name]
    assert found["wager:kv_cache_usage_perc"] == {(("model", "tiny"),): 0.25}


def test_what_is_not_known_is_not_shown() -> None:
    still = engine(plain_ms=None, decoding=[40])
    still.pool.prefix_cache = False
    found = samples(service(Snapshot.of(still)))
    for name in ("estimated_speedup", "estimated_plain_step_seconds", "prefix_cache_hits_total",
                 "controller_balance_steps"):  # fmt: skip
        assert f"wager:{name}" not in found


def test_the_speed_up_is_estimated_between_two_looks() -> None:
    stats = EngineStats()
    running = engine(stats, decoding=[40])
    first = Snapshot.of(running)
    of = service(first)
    now = 100.0
    of.metrics.window._clock = lambda: now
    assert "wager:estimated_speedup" not in samples(of)
    stepped(stats, 15.0, ("ngram", 4, 2, 3))
    of.llm.snapshot = Snapshot.of(running, first)  # type: ignore[misc]
    now = 110.0
    found = samples(of)
    # Three plain steps of 10 ms against one of 15.
    assert found["wager:estimated_speedup"] == {(("model", "tiny"),): pytest.approx(2.0)}
    assert sum(found["wager:estimated_plain_seconds_total"].values()) == pytest.approx(0.03)
    assert sum(found["wager:compared_seconds_total"].values()) == pytest.approx(0.015)


def test_requests_are_counted_and_the_unknown_is_not() -> None:
    of = service(Snapshot.of(engine()))
    of.metrics.started()
    of.metrics.started()
    of.metrics.first_token(0.3)
    whole = RequestRecord.of(
        output(), route="/v1/completions", model="tiny", inter_token_s=(0.15, 0.05), max_tokens=5
    )
    of.metrics.finished(whole)
    unknown = output(tokens=0, drafts=(), first_token_s=None, total_s=None, queue_s=None)
    of.metrics.finished(RequestRecord.of(unknown, route="/v1/completions", model="tiny"))
    found = samples(of)

    def value(name: str) -> float:
        return sum(found[f"wager:{name}"].values())

    assert value("requests_received_total") == 2.0
    assert value("prompt_tokens_total") == 8.0
    assert value("prompt_tokens_cached_total") == 2.0
    for name, count, total in (
        ("time_to_first_token_seconds", 1, 0.3),
        ("inter_token_latency_seconds", 2, 0.2),
        ("request_queue_time_seconds", 1, 0.1),
        ("request_prefill_time_seconds", 1, 0.2),
        ("request_decode_time_seconds", 1, 0.2),
        ("request_inference_time_seconds", 1, 0.4),
        ("e2e_request_latency_seconds", 1, 0.5),
        ("request_time_per_output_token_seconds", 1, 0.05),
        ("request_params_max_tokens", 1, 5.0),
        ("request_generation_tokens", 2, 5.0),
        ("request_max_num_generation_tokens", 2, 5.0),
    ):
        assert value(f"{name}_count") == count, name
        assert value(f"{name}_sum") == pytest.approx(total), name


@pytest.mark.parametrize(
    ("given", "counted"),
    [("stop", "stop"), ("length", "length"), ("abort", "abort"), ("tool_calls", "stop"),
     ("something new", "error")],
)  # fmt: skip
def test_reasons_are_a_fixed_set(given: str, counted: str) -> None:
    of = service(Snapshot.of(engine()))
    record = RequestRecord.of(output(), route="/v1/completions", model="tiny")
    changed = {name: getattr(record, name) for name in record.__dataclass_fields__}
    of.metrics.finished(RequestRecord(**(changed | {"finish_reason": given})))
    ended = {
        dict(labels)["finished_reason"]: value
        for labels, value in samples(of)["wager:request_success_total"].items()
    }
    assert ended == {reason: float(reason == counted) for reason in metrics.REASONS}


def test_buckets_add_up() -> None:
    of = service(Snapshot.of(engine(drafted())))
    for seconds in (0.0, 0.001, 0.0011, 3.0, 1e6):
        of.metrics.first_token(seconds)
    found = samples(of)
    series = found["wager:time_to_first_token_seconds_bucket"]
    by_bound = {float(dict(labels)["le"]): value for labels, value in series.items()}
    assert by_bound[0.001] == 2.0  # a bound belongs to its class
    assert by_bound[0.005] == 3.0
    assert by_bound[float("inf")] == 5.0
    values = [by_bound[bound] for bound in sorted(by_bound)]
    assert values == sorted(values)
    sums = found["wager:step_time_seconds_sum"]
    kinds = {dict(labels)["kind"]: value for labels, value in sums.items()}
    assert kinds == {"plain": pytest.approx(0.01), "verify": pytest.approx(0.027), "prefill": 0.0}


def test_counters_never_fall() -> None:
    rng = random.Random(5)
    stats = EngineStats()
    running = engine(stats, methods=("ngram", "suffix"), decoding=[40])
    snapshot = Snapshot.of(running)
    of = service(snapshot, metrics_alias="vllm")
    before = samples(of)
    for _ in range(25):
        for _ in range(rng.randint(0, 4)):
            length = rng.randint(0, 6)
            accepted = rng.randint(0, length)
            source = rng.choice(["ngram", "suffix", "suffix (past answers)"])
            stepped(stats, rng.uniform(1.0, 30.0), (source, length, accepted, accepted + 1))
        record = RequestRecord.of(output(), route="/v1/completions", model="tiny")
        of.metrics.finished(record)
        snapshot = Snapshot.of(running, snapshot)
        of.llm.snapshot = snapshot  # type: ignore[misc]
        after = samples(of)
        for name, series in before.items():
            if not name.endswith(("_total", "_bucket", "_count", "_sum")) or "process" in name:
                continue
            for labels, value in series.items():
                assert after[name][labels] >= value, (name, labels)
        before = after


def test_sources_are_bounded() -> None:
    stats = EngineStats()
    for index in range(3 * MAX_SOURCES):
        stepped(stats, 1.0, (f"source{index}", 2, 1, 2))
    assert len(stats.by_source) == MAX_SOURCES + 1
    assert sum(c.drafted for c in stats.by_source.values()) == stats.counts.drafted
    stepped(stats, 1.0, ("", 2, 1, 2))
    assert sum(c.drafted for c in stats.by_source.values()) == stats.counts.drafted


def test_the_benchmark_reads_the_page() -> None:
    reader = Reader()
    of = speculating()
    text = of.metrics.text().decode()
    counters = reader.read(text)
    assert (counters.drafts, counters.drafted, counters.accepted) == (3, 9, 5)
    assert counters.accepted_at == (2, 1, 1, 1)
    assert counters.generated == 9
    assert reader.read(of.metrics.text().decode()).resets == 0


def test_only_kept_tokens_count(make_llm: Callable[..., LLM]) -> None:
    """A block that crosses ``max_tokens`` is cut there, for the client and on the page."""
    llm = make_llm(speculation=ngram(4, low=1))
    snapshot = Snapshot.of(llm.engine)
    given = 0
    for prompt in prompts(6, llm.engine.vocab_size, seed=3):
        for most in (1, 2, 3, 5, 8, 24):
            params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True)
            whole = llm.generate([prompt], params)[0]
            assert len(whole.outputs[0].token_ids) == most
            given += most
            snapshot = Snapshot.of(llm.engine, snapshot)
    found = samples(service(snapshot))
    assert sum(found["wager:generation_tokens_total"].values()) == given
    accepted = sum(found["wager:spec_decode_num_accepted_tokens_total"].values())
    at = sum(found["wager:spec_decode_num_accepted_tokens_per_pos_total"].values())
    assert 0 < accepted == at < given
