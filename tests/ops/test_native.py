"""The native op set alone: instruction sets, threads, and its distance from the reference."""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any

import numpy as np
import pytest

from tests.contract.test_ops import CASES, EVERY, TRAITS, same_bits, tokens
from tests.ops.sets import NATIVE, make, usable_sets
from tests.ops.stack import build, config_of, pack, play
from wager.errors import ConfigError, UnsupportedModel
from wager.ops.base import F32, RaggedBatch
from wager.ops.reference import ReferenceOps
from wager.ops.reference_matrix import quantise
from wager.types import KvKind, WeightKind

pytestmark = pytest.mark.skipif(not NATIVE, reason="the extension was not built")

STEPS = [[5, 60], [9, 1], [80, 3], [17, 17]]


@pytest.mark.parametrize(
    ("shape", "kind", "kv"),
    [
        case
        for case in CASES
        if case[0] in ("dim 64, group 3", "dim 96, group 4", "dim 8")
        or (case[0] in TRAITS and case[1] == "f32")
    ],
)
def test_instruction_sets_and_threads_give_the_same_bits(
    shape: str, kind: WeightKind, kv: KvKind
) -> None:
    config = EVERY[shape]
    rng = np.random.default_rng(21)
    prompts = [tokens(rng, config, n) for n in (140, 90)]
    expected: list[F32] | None = None
    for isa in usable_sets():
        for threads in (1, 2, 3, 7):
            ops = make(f"native-{isa}-{threads}")
            found = play(build(ops, config, kind), kv, prompts, STEPS)
            ops.close()
            expected = expected or found
            assert all(same_bits(e, f) for e, f in zip(expected, found, strict=True)), isa


@pytest.mark.parametrize(("shape", "kind", "kv"), CASES)
def test_close_to_the_reference(shape: str, kind: WeightKind, kv: KvKind) -> None:
    config = EVERY[shape]
    prompt = tokens(np.random.default_rng(22), config, 150)
    results = [
        play(build(ops, config, kind), kv, [prompt], [[150]])[0]
        for ops in (ReferenceOps(), make(f"native-{usable_sets()[0]}-2"))
    ]
    # Where activations or keys are rounded, a difference in the last bit can tip one over.
    atol = 1e-4 if (kind, kv) == ("f32", "f32") else 5e-3 if kind == "f32" else 0.1
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=atol)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_products_are_those_of_the_reference(kind: WeightKind) -> None:
    config = config_of(hidden=96, intermediate=64, heads=6)
    rng = np.random.default_rng(23)
    attended = (rng.standard_normal((40, 96)) * 3).astype(np.float32)
    attended[3] = 0.0
    attended[4, 32:64] = 1e-38
    results = []
    for ops in (ReferenceOps(), *(make(f"native-{isa}-2") for isa in usable_sets())):
        x = np.zeros((40, 96), np.float32)
        ops.attn_out(build(ops, config, kind).layers[0], attended, x)
        results.append(x)
    for found in results[1:]:
        np.testing.assert_allclose(found, results[0], rtol=1e-5, atol=1e-5)
    assert not results[0][3].any()


def test_extreme_int8_values_do_not_saturate() -> None:
    """Weights and activations of +-127 in every place: the largest sums there are."""
    for isa in usable_sets():
        ops = make(f"native-{isa}-1")
        signs = np.ones((16, 64), np.float32)
        signs[1], signs[2, ::2] = -1.0, -1.0
        x = np.ones((2, 64), np.float32)
        x[1] = -1.0
        head = pack(ops, signs, "int8")
        found = ops.logits(np.ones(64, np.float32), 0.0, head, x, np.arange(2, dtype=np.int32))
        exact = signs @ x.T
        np.testing.assert_allclose(found.T, exact, rtol=2e-3, atol=1e-3)
        assert found[0, 0] == -found[1, 0] == found[1, 1] == -found[0, 1]


def test_extreme_int4_values_do_not_saturate() -> None:
    """Activations of +-127 beside weights at the top level in every place but one."""
    weight = np.ones((16, 64), np.float32)
    weight[1], weight[2, 1::2] = -1.0, 0.0
    weight[:, ::32] = 0.0
    for isa in usable_sets():
        ops = make(f"native-{isa}-1")
        x = np.ones((3, 64), np.float32)
        x[1], x[2, ::2] = -1.0, -1.0
        head = pack(ops, weight, "int4")
        rows = ops.embed(head, np.arange(16, dtype=np.int32))
        np.testing.assert_allclose(rows, weight, atol=3e-4)
        found = ops.logits(np.ones(64, np.float32), 0.0, head, x, np.arange(3, dtype=np.int32))
        np.testing.assert_allclose(found.T, rows @ x.T, rtol=1e-5, atol=1e-4)


def test_quantised_activations_stay_in_range() -> None:
    quantised, scales = quantise(np.array([[3.0] * 31 + [-3.0]], np.float32).reshape(-1))
    assert quantised.tolist() == [127] * 31 + [-127]
    assert scales.tolist() == [np.float32(3.0) / np.float32(127)]


def test_two_op_sets_work_at_once() -> None:
    config = EVERY["dim 64, group 3"]
    prompts = [tokens(np.random.default_rng(24), config, 120)]
    expected = play(build(make(f"native-{usable_sets()[0]}-1"), config, "f32"), "f32", prompts, [])
    wrong: list[Any] = []

    def work() -> None:
        ops = make(f"native-{usable_sets()[0]}-4")
        stack = build(ops, config, "f32")
        for _ in range(3):
            found = play(stack, "f32", prompts, [[50]])
            if not same_bits(found[0], expected[0]):
                wrong.append(found)
        ops.close()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
        assert not worker.is_alive()
    assert not wrong


def test_one_op_set_may_be_shared_between_threads() -> None:
    config = config_of()
    stack = build(make(f"native-{usable_sets()[0]}-2"), config, "int8")
    prompts = [[tokens(np.random.default_rng(i), config, 60)] for i in range(3)]
    expected = [play(stack, "f32", p, []) for p in prompts]
    found: dict[int, list[F32]] = {}

    def work(i: int) -> None:
        found[i] = play(stack, "f32", prompts[i], [[20]])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    assert all(same_bits(found[i][0], expected[i][0]) for i in range(3))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_goes_on_alone() -> None:
    config = config_of()
    stack = build(make(f"native-{usable_sets()[0]}-3"), config, "f32")
    prompts = [tokens(np.random.default_rng(25), config, 40)]
    expected = play(stack, "f32", prompts, [])
    with warnings.catch_warnings():
        # Python warns of forks in a process with threads: that is what is tried here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        same = same_bits(play(stack, "f32", prompts, [[7]])[0], expected[0])
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert same_bits(play(stack, "f32", prompts, [[9]])[0], expected[0])


def test_instruction_set_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from wager.ops.native import ISA_VARIABLE, NativeOps, choose_instruction_set

    monkeypatch.setenv(ISA_VARIABLE, "scalar")
    assert NativeOps(1).instruction_set == "scalar"
    monkeypatch.setenv(ISA_VARIABLE, "sse9")
    with pytest.raises(ConfigError, match=r"WAGER_ISA.*scalar, neon, avx2, avx512.*sse9"):
        NativeOps(1)
    monkeypatch.delenv(ISA_VARIABLE)
    assert choose_instruction_set() == usable_sets()[0]


def test_wrong_kernels_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    import wager._native as _native

    from wager.ops.native import choose_instruction_set

    answers = [("avx512", False), ("avx2", True), ("scalar", True)]
    monkeypatch.setattr(_native, "instruction_sets", lambda: answers)
    with pytest.warns(RuntimeWarning, match="avx512 kernels give wrong answers"):
        assert choose_instruction_set() == "avx2"
    with pytest.raises(ConfigError, match="avx512 does not work on this machine; these do: avx2"):
        choose_instruction_set("avx512")


def test_arrays_of_the_wrong_shape_or_type_are_refused() -> None:
    config = config_of()
    ops = make(f"native-{usable_sets()[0]}-1")
    stack = build(ops, config, "f32")
    layer = stack.layers[0]
    with pytest.raises(ValueError, match="shape"):
        ops.mlp(layer, np.zeros((2, 63), np.float32))
    with pytest.raises(ValueError, match="shape"):
        ops.attn_out(layer, np.zeros((3, 64), np.float32), np.zeros((2, 64), np.float32))
    with pytest.raises(TypeError):
        ops.mlp(layer, np.zeros((2, 64), np.float64))
    with pytest.raises(TypeError):
        ops.mlp(layer, np.zeros((64, 2), np.float32).T)
    read_only = np.zeros((2, 64), np.float32)
    read_only.setflags(write=False)
    with pytest.raises(TypeError):
        ops.mlp(layer, read_only)
    one = np.zeros(1, np.int32)
    for starts in ([0], [0, 2], [1, 1], [0, 1, 0]):
        batch = RaggedBatch(one, one, np.array(starts, np.int32), one[None], one)
        with pytest.raises(ValueError, match="row_starts"):
            ops.attn_in(layer, np.zeros((1, 64), np.float32), batch, stack.ropes,
                        stack.pool("f32"), 0)  # fmt: skip
    wrong = np.array([3, 5], np.int32)
    batch = RaggedBatch(wrong, wrong, np.array([0, 2], np.int32), one[None], one)
    with pytest.raises(ValueError, match="consecutive"):
        ops.attn_in(layer, np.zeros((2, 64), np.float32), batch, stack.ropes, stack.pool("f32"), 0)


def test_shapes_without_kernels_are_refused_by_name() -> None:
    ops = make(f"native-{usable_sets()[0]}-1")
    with pytest.raises(UnsupportedModel, match=r"intermediate_size 40.*multiple of 16"):
        build(ops, config_of(intermediate=40), "f32")
    with pytest.raises(UnsupportedModel, match=r"head_dim 520.*even.*512"):
        build(ops, config_of(heads=1, kv_heads=1, dim=520), "f32")


def test_pool_memory_is_not_touched_before_it_is_used() -> None:
    ops = make(f"native-{usable_sets()[0]}-1")
    before = resident()
    pool = ops.kv_pool(config_of(dim=64, layers=8), 8192, "f32")
    assert pool.blocks * pool.bytes_per_block == pool.keys.nbytes + pool.values.nbytes > 500 << 20
    assert resident() - before < 50 << 20


def resident() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
