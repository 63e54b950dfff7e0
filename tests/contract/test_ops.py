"""What every op set promises, native (on each instruction set) and reference through one test."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.ops.sets import make, usable_sets
from tests.ops.stack import EPS, build, config_of, pack, play, ragged
from wager.errors import ModelError
from wager.ops.base import F32, LayerWeights, OpSet
from wager.shape import Experts, LayerKind, ModelConfig, Rope, piece_shapes
from wager.types import KvKind, WeightKind

SETS = ["reference", *(f"native-{isa}-2" for isa in usable_sets())]
KINDS: list[tuple[WeightKind, KvKind]] = [
    ("f32", "f32"),
    ("f32", "f16"),
    ("int8", "f32"),
    ("int4", "f32"),
    ("bf16", "f32"),
]
# Groups of 1, 3 and 4 query heads, and every size of head that models in the wild have.
SHAPES = {
    "dim 16, group 2": config_of(),
    "dim 32, group 1": config_of(heads=2, kv_heads=2, dim=32),
    "dim 64, group 3": config_of(heads=3, kv_heads=1, dim=64, hidden=192, intermediate=160),
    "dim 96, group 4": config_of(heads=4, kv_heads=1, dim=96, intermediate=288, vocab=33),
    "dim 128, group 2": config_of(heads=2, kv_heads=1, dim=128, layers=1),
    "dim 8": config_of(heads=4, kv_heads=2, dim=8, hidden=32, intermediate=32, vocab=7),
}
# What other families compute. Windows are smaller than a step, than a chunk, and larger than one.
TRAITS = {
    "norms after, of all heads together": config_of(norms="after", qk_norm="width"),
    "norms both, of each head, gelu, caps": config_of(
        norms="both", qk_norm="head", activation="gelu_tanh", attention_cap=2.0, logit_cap=1.5,
        embed_scale=8.0, attention_scale=0.3,
    ),
    "one head": config_of(heads=1, kv_heads=1, dim=64, qk_norm="head", qkv_bias=True),
    "biases and scales": config_of(
        qkv_bias=True, out_bias=True, embed_scale=3.0, residual_scale=0.4, logit_scale=0.25
    ),
    "a window of 3, and none": config_of(kinds=(LayerKind(3), LayerKind(0, None))),
    "windows of 24 and 129": config_of(
        heads=6, kv_heads=2, dim=16, hidden=96, attention_cap=5.0,
        kinds=(LayerKind(24, 1), LayerKind(129, 0)), ropes=(Rope(), Rope(1e2, scale=1.2)),
    ),
    "experts": config_of(experts=Experts(5, 2, normalised=True), residual_scale=0.7),
    "many experts": config_of(
        hidden=96, heads=6, intermediate=32, experts=Experts(40, 8, normalised=False)
    ),
    "partly turned": config_of(dim=32, hidden=128, ropes=(Rope(dims=16, factors=(1.5,) * 8),)),
}  # fmt: skip
EVERY = SHAPES | TRAITS
CASES = [
    *((shape, *kinds) for shape in SHAPES for kinds in KINDS),
    *((trait, *kinds) for trait in TRAITS for kinds in (KINDS[0], ("int8", "f16"))),
]


@pytest.fixture(params=SETS)
def ops(request: pytest.FixtureRequest) -> Iterator[OpSet]:
    made = make(request.param)
    yield made
    made.close()


def tokens(rng: np.random.Generator, config: ModelConfig, count: int) -> NDArray[np.int32]:
    return rng.integers(0, config.vocab_size, count).astype(np.int32)


def same_bits(left: F32, right: F32) -> bool:
    return left.shape == right.shape and np.array_equal(left, right) and not np.isnan(left).any()


@pytest.mark.parametrize(("shape", "kind", "kv"), CASES)
def test_rows_do_not_depend_on_their_company(
    ops: OpSet, shape: str, kind: WeightKind, kv: KvKind
) -> None:
    config = EVERY[shape]
    rng = np.random.default_rng(11)
    stack = build(ops, config, kind)
    prompts = [tokens(rng, config, n) for n in (150, 40, 17)]
    alone = [play(stack, kv, [p], [], blocks_seed=9)[0] for p in prompts]
    schedules = [
        [[200, 200, 200]],
        [[1, 7, 0], [9, 3, 5], [0, 0, 2], [33, 16, 9]],
        [rng.integers(0, 30, 3).tolist() for _ in range(4)],
    ]
    for steps in schedules:
        for expected, found in zip(alone, play(stack, kv, prompts, steps), strict=True):
            assert same_bits(expected, found)


@pytest.mark.parametrize("shape", ["dim 16, group 2", *TRAITS])
def test_blocks_one_by_one_equal_all_layers_in_one_call(ops: OpSet, shape: str) -> None:
    config = EVERY[shape]
    stack = build(ops, config, "f32")
    rng = np.random.default_rng(1)
    batch = ragged([(tokens(rng, config, 20), 0, np.array([3, 1], np.int32))])
    whole, pieces = stack.pool("f32"), stack.pool("f32")
    expected = stack.step(whole, batch)
    x = ops.embed(stack.table, batch.tokens, config.embed_scale)
    for index, layer in enumerate(stack.layers):
        q = ops.attn_in(layer, x, batch, stack.ropes, pieces, index)
        ops.attn_out(layer, ops.attention(layer, q, batch, pieces, index), x)
        ops.mlp(layer, x)
    assert same_bits(expected, stack.logits(x, batch.logit_rows))
    assert np.array_equal(whole.keys, pieces.keys, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_product_and_attention_against_double_precision(ops: OpSet, shape: str) -> None:
    config = SHAPES[shape]
    rng = np.random.default_rng(3)
    stack = build(ops, config, "f32")
    heads, group = config.num_heads, config.num_heads // config.num_kv_heads
    weight = rng.standard_normal((77, config.hidden_size)).astype(np.float32)
    x = rng.standard_normal((5, config.hidden_size)).astype(np.float32)
    ones = np.ones(config.hidden_size, np.float32)
    rows = np.array([4, 0, 2], np.int32)
    found = ops.logits(ones, EPS, pack(ops, weight, "f32"), x, rows)
    exact = x[rows].astype(np.float64)
    exact /= np.sqrt((exact**2).mean(axis=1, keepdims=True) + EPS)
    np.testing.assert_allclose(found, exact @ weight.T.astype(np.float64), rtol=1e-4, atol=1e-4)

    seen = 145
    blocks = rng.permutation(80)[: seen // 16 + 1].astype(np.int32)
    pool = stack.pool("f32")
    everything = rng.standard_normal((seen, config.hidden_size)).astype(np.float32)
    batch = ragged([(np.zeros(seen, np.int32), 0, blocks)])
    ops.attn_in(stack.layers[0], everything, batch, stack.ropes, pool, 0)
    keys, values = written(ops, pool.keys[blocks, 0], pool.values[blocks, 0], seen)
    queries = rng.standard_normal((seen, heads * config.head_dim)).astype(np.float32)
    attended = ops.attention(stack.layers[0], queries, batch, pool, 0)
    for row in (0, 1, 15, 16, 127, 128, 144):
        for head in range(heads):
            q = queries[row].reshape(heads, -1)[head].astype(np.float64)
            k, v = keys[head // group, : row + 1], values[head // group, : row + 1]
            scores = k @ q / np.sqrt(config.head_dim)
            weights = np.exp(scores - scores.max())
            oracle = weights @ v / weights.sum()
            np.testing.assert_allclose(
                attended[row].reshape(heads, -1)[head], oracle, rtol=1e-4, atol=2e-5
            )


def test_what_lies_before_a_window_is_not_read(ops: OpSet) -> None:
    config = config_of(layers=1, kinds=(LayerKind(24),))
    stack, rng = build(ops, config, "f32"), np.random.default_rng(5)
    ids = tokens(rng, config, 200)
    blocks = rng.permutation(80)[:13].astype(np.int32)
    found = []
    for spoilt in (0, 10):
        pool = stack.pool("f32")
        stack.step(pool, ragged([(ids[:190], 0, blocks)]))
        # Position 190 sees 167 to 190: the tenth block ends at 159.
        pool.keys[blocks[:spoilt]] = np.nan
        pool.values[blocks[:spoilt]] = np.nan
        found.append(stack.step(pool, ragged([(ids[190:], 190, blocks)])))
    assert same_bits(*found)
    pool.values[blocks[10]] = np.nan
    assert np.isnan(stack.step(pool, ragged([(ids[190:191], 190, blocks)]))).all()


def test_a_layer_is_checked_against_its_config(ops: OpSet) -> None:
    config = config_of(qk_norm="head", layers=1)
    build(ops, config, "f32")
    shapes = piece_shapes(config)
    assert shapes["q_norm"] == shapes["k_norm"] == (16,)

    def weights(**other: F32 | None) -> LayerWeights:
        made = {
            name: pack(ops, np.ones(shape, np.float32), "f32")
            for name, shape in {"qkv": (128, 64), "out": (64, 64), "gate_up": (192, 64),
                                "down": (64, 96)}.items()
        }  # fmt: skip
        norms = {"attn_norm": 64, "mlp_norm": 64, "q_norm": 16, "k_norm": 16}
        vectors = {name: np.ones(size, np.float32) for name, size in norms.items()}
        return LayerWeights(**{**made, **vectors, **other})

    ops.layer(config, weights(), config.kind(0))
    for name, value in {
        "q_norm": np.ones(64, np.float32),
        "k_norm": None,
        "mlp_norm": None,
        "qkv_bias": np.ones(128, np.float32),
        "attn_post_norm": np.ones(64, np.float32),
    }.items():
        with pytest.raises(ValueError, match=f"layer: {name} is"):
            ops.layer(config, weights(**{name: value}), config.kind(0))


def written(
    ops: OpSet, keys: NDArray[np.float32], values: NDArray[np.float32], seen: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Keys and values of a request as float64 [kv_heads, seen, D], out of either layout."""
    if ops.name == "native":
        keys = keys.swapaxes(2, 3)

    def joined(blocks: NDArray[np.float32]) -> NDArray[np.float64]:
        count, kv_heads, size, dim = blocks.shape
        rows = blocks.transpose(1, 0, 2, 3).reshape(kv_heads, count * size, dim)
        return rows[:, :seen].astype(np.float64)

    return joined(keys), joined(values)


@pytest.mark.parametrize("kind", ["f32", "bf16", "int8", "int4"])
def test_a_packed_matrix_gives_its_rows_back(ops: OpSet, kind: WeightKind) -> None:
    rng = np.random.default_rng(4)
    weight = rng.standard_normal((130, 96)).astype(np.float32)
    weight[7] = 0.0
    weight[8, :32] *= 1e-7
    rows = ops.embed(pack(ops, weight, kind), np.arange(130, dtype=np.int32))
    if kind == "f32":
        assert same_bits(rows, weight)
    else:
        # Half a quantisation step of the group, and what half precision does to tiny scales.
        groups = weight.reshape(130, 3, 32)
        steps = np.abs(groups).max(axis=2) / 127 if kind == "int8" else np.ptp(groups, axis=2) / 15
        bound = np.repeat(steps * 0.501 + 1e-6, 32, axis=1)
        if kind == "bf16":
            bound = np.abs(weight) * np.float32(2.0**-8)
        assert (np.abs(rows - weight) <= bound).all()
    in_one_piece = ops.embed(pack(ops, weight, kind, 144), np.arange(130, dtype=np.int32))
    assert same_bits(rows, in_one_piece)


def test_bf16_is_rounded_to_the_nearest_and_computed_as_f32(ops: OpSet) -> None:
    rng = np.random.default_rng(7)
    weight = (rng.standard_normal((50, 96)) * 10.0 ** rng.integers(-30, 30, (50, 1))).astype(
        np.float32
    )
    # One above, at and below the middle between two, of which the even one is taken.
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF], np.uint32)
    weight[0, :4] = bits.view(np.float32)
    rounded = pack(ops, weight, "bf16")
    rows = ops.embed(rounded, np.arange(50, dtype=np.int32))
    assert rows[0, :4].view(np.uint32).tolist() == [0x3F800000, 0x3F820000, 0x3F810000, 0x3F810000]
    assert not (rows.view(np.uint32) & 0xFFFF).any()
    assert (np.abs(rows - weight) <= np.abs(weight) * 2.0**-8).all()
    x = rng.standard_normal((5, 96)).astype(np.float32)
    every, ones = np.arange(5, dtype=np.int32), np.ones(96, np.float32)
    found = ops.logits(ones, EPS, rounded, x, every)
    assert same_bits(found, ops.logits(ones, EPS, pack(ops, rows, "f32"), x, every))
    with pytest.raises(ModelError, match="too large for bf16"):
        pack(ops, np.full((1, 96), np.finfo(np.float32).max, np.float32), "bf16")


@pytest.mark.parametrize("levels", [(0, 16), (3, 12), (5, 6)])
@pytest.mark.parametrize("sign", [1, -1])
def test_weights_in_4_bits_stay_as_they_are(ops: OpSet, levels: tuple[int, int], sign: int) -> None:
    """Also where a group uses a part of the levels, or counts them downwards."""
    rng = np.random.default_rng(6)
    scales = sign * rng.uniform(1e-6, 0.1, (99, 3, 1)).astype(np.float16).astype(np.float32)
    minima = (-scales * rng.uniform(0, 15, (99, 3, 1))).astype(np.float16).astype(np.float32)
    weight = minima + scales * rng.integers(*levels, (99, 3, 32)).astype(np.float32)
    weight = weight.reshape(99, 96)
    rows = ops.embed(pack(ops, weight, "int4"), np.arange(99, dtype=np.int32))
    assert same_bits(rows, weight)


def test_weights_that_cannot_be_packed_are_refused(ops: OpSet) -> None:
    good = np.ones((16, 64), np.float32)
    for value in (np.nan, np.inf, -np.inf):
        bad = good.copy()
        bad[3, 5] = value
        for kind in ("f32", "int8", "int4"):
            with pytest.raises(ModelError, match="not finite"):
                pack(ops, bad, kind)
    rounded: tuple[WeightKind, ...] = ("int8", "int4")
    for small in rounded:
        with pytest.raises(ModelError, match=rf"{small}.*\[16, 40\].*multiple of 32"):
            ops.packed_bytes(16, 40, small)
        with pytest.raises(ModelError, match=f"too large for {small}"):
            pack(ops, good * 1e8, small)
    with pytest.raises(ValueError, match=r"size|bytes"):
        ops.matrix(np.zeros(7, np.uint8), 16, 64, "f32")


def test_indices_outside_are_refused(ops: OpSet) -> None:
    config = config_of()
    stack = build(ops, config, "f32")
    pool = stack.pool("f32", blocks=4)
    for bad in (-1, config.vocab_size):
        with pytest.raises(ValueError, match="token id"):
            ops.embed(stack.table, np.array([0, bad], np.int32))
    some = np.zeros(3, np.int32)
    for first, blocks in ((0, [4]), (0, [-1]), (15, [0]), (20, [0, -1]), (-1, [0])):
        with pytest.raises(ValueError, match=r"block|position"):
            stack.step(pool, ragged([(some, first, np.array(blocks, np.int32))]))
    short = [stack.ropes[0][:2]]
    batch = ragged([(some, 0, np.array([0], np.int32))])
    x = ops.embed(stack.table, batch.tokens)
    with pytest.raises(ValueError, match="position"):
        ops.attn_in(stack.layers[0], x, batch, short, pool, 0)
    with pytest.raises(ValueError, match="row"):
        ops.logits(stack.norm, EPS, stack.table, x, np.array([3], np.int32))


def test_no_rows_of_logits(ops: OpSet) -> None:
    stack = build(ops, config_of(), "f32")
    x = np.ones((2, 64), np.float32)
    assert ops.logits(stack.norm, EPS, stack.table, x, np.array([], np.int32)).shape == (0, 130)
