"""Index maps and plans of the engine, over many radix lists, with every thread's registers as NumPy rows."""

import dataclasses
import math

import numpy as np
import pytest

from devkernels.engine import emit, index, networks
from devkernels.engine.plan_search import bank_passes, make_plan
from devkernels.errors import SpecError


def cases():
    """Radix lists of one to four stages with every allowed number of elements per thread up to 32."""
    rng = np.random.default_rng(5)
    chosen = [
        (8, 8),
        (16, 8),
        (8, 16),
        (16, 16, 16),
        (32, 16, 16),
        (4, 4, 4, 4),
        (24, 8, 8),
        (12, 4, 4),
        (10, 5),
        (31, 2),
    ]
    chosen += [(r,) for r in (2, 3, 5, 7, 11, 13, 16, 17, 32)]
    while len(chosen) < 420:
        radices = tuple(int(r) for r in rng.integers(2, 33, size=rng.integers(2, 5)))
        if math.prod(radices) <= 8192 and math.lcm(*radices) <= 32:
            chosen.append(radices)
    for radices in dict.fromkeys(chosen):
        least = math.lcm(*radices)
        for elements in range(least, 33, least):
            if math.prod(radices) % elements == 0:
                yield radices, elements


def groups(radices, elements):
    found = [index.groups(radices, elements, s) for s in range(1, len(radices) + 1)]
    return None if not all(found) else found


def dft_stage(data, radix, elements, sign, base):
    """The butterflies of one stage on data (T, E); `base` (T, c) holds each butterfly's twiddle base."""
    out = np.empty_like(data)
    for i, slots in enumerate(index.slots(radix, elements)):
        w = base[:, i]

        def power(p, rest, w=w):
            return None if rest else ((w**p).real, (w**p).imag)

        pairs = [(data[:, s].real, data[:, s].imag) for s in slots]
        for slot, (re, im) in zip(
            slots, networks.Network(networks.FloatArithmetic(), sign, power).dft(pairs), strict=True
        ):
            out[:, slot] = re + 1j * im
    return out


def stage_numbers(radices, elements, stage, group):
    """(K, t) of each thread's butterflies, (T, c)."""
    place = index.positions(radices, elements, stage, group)
    span = math.prod(radices[stage:])
    first = place[:, [slots[0] for slots in index.slots(radices[stage - 1], elements)]]
    return first // (span * radices[stage - 1]), first % span


def move(data, before, after):
    """Through memory: positions `before` to positions `after`."""
    memory = np.full(data.size, np.nan, dtype=data.dtype)
    memory[before] = data
    return memory[after]


def run_forward(x, radices, elements, chosen, offset=0.0):
    data = x[index.positions(radices, elements, 1, chosen[0])]
    for stage in range(1, len(radices) + 1):
        upper, _ = stage_numbers(radices, elements, stage, chosen[stage - 1])
        kappa = index.scrambled(radices, stage - 1)[upper]
        base = np.exp(-2j * np.pi * (kappa + offset) / math.prod(radices[:stage]))
        if stage > 1:
            args = ((stage - 1, chosen[stage - 2]), (stage, chosen[stage - 1]))
            data = move(data, *(index.positions(radices, elements, *a) for a in args))
        data = dft_stage(data, radices[stage - 1], elements, -1, base)
    return data


def run_inverse(data, radices, elements, chosen):
    for stage in range(len(radices), 0, -1):
        _, lower = stage_numbers(radices, elements, stage, chosen[stage - 1])
        base = np.exp(2j * np.pi * lower / math.prod(radices[stage - 1 :]))
        if stage < len(radices):
            args = ((stage + 1, chosen[stage]), (stage, chosen[stage - 1]))
            data = move(data, *(index.positions(radices, elements, *a) for a in args))
        data = dft_stage(data, radices[stage - 1], elements, 1, base)
    out = np.empty(data.size, dtype=data.dtype)
    out[index.positions(radices, elements, 1, chosen[0])] = data
    return out


CASES = list(cases())


def test_there_are_hundreds_of_cases():
    assert len(CASES) > 300


@pytest.mark.parametrize("part", range(8))
def test_forward_leaves_the_spectrum_where_the_index_says(part):
    rng = np.random.default_rng(part)
    tried = 0
    for radices, elements in CASES[part::8]:
        options = groups(radices, elements)
        if options is None:
            continue
        tried += 1
        chosen = [found[rng.integers(len(found))] for found in options]
        size = math.prod(radices)
        x = rng.standard_normal(size) + 1j * rng.standard_normal(size)
        want = np.fft.fft(x)
        got = run_forward(x, radices, elements, chosen)
        at = index.spectrum_index(radices, elements, chosen[-1])
        assert sorted(at.ravel()) == list(range(size))
        error = np.linalg.norm(got - want[at]) / np.linalg.norm(want)
        assert error < 1e-14 * (2 + math.log2(size)), (radices, elements, chosen, error)
        back = run_inverse(got, radices, elements, chosen)
        error = np.linalg.norm(back - size * x) / np.linalg.norm(size * x)
        assert error < 1e-14 * (4 + 2 * math.log2(size)), (radices, elements, chosen, error)
        offset = float(rng.uniform(-1, 1))
        shifted = run_forward(x, radices, elements, chosen, offset)
        want = np.fft.fft(x * np.exp(-2j * np.pi * offset * np.arange(size) / size))
        error = np.linalg.norm(shifted - want[at]) / np.linalg.norm(want)
        assert error < 1e-14 * (2 + math.log2(size)), (radices, elements, chosen, offset, error)
    assert tried > 20


@pytest.mark.parametrize("radix", range(2, 33))
@pytest.mark.parametrize("sign", [-1, 1])
def test_networks_compute_weighted_dfts(radix, sign):
    rng = np.random.default_rng(radix)
    x = rng.standard_normal((radix, 7)) + 1j * rng.standard_normal((radix, 7))
    h = rng.standard_normal((radix, 7)) + 1j * rng.standard_normal((radix, 7))
    w = np.exp(1j * rng.uniform(0, 2 * np.pi, 7))
    matrix = np.exp(sign * 2j * np.pi * np.outer(np.arange(radix), np.arange(radix)) / radix)

    def power(p, rest):
        return None if rest else ((w**p).real, (w**p).imag)

    def pairs(values):
        return [(v.real, v.imag) for v in values]

    def run(inputs, power=None):
        out = networks.Network(networks.FloatArithmetic(), sign, power).dft(inputs)
        return np.array([(0 if a is None else a) + 1j * (0 if b is None else b) for a, b in out])

    turned = x * w ** np.arange(radix)[:, None]
    bound = 1e-14 * radix
    np.testing.assert_allclose(run(pairs(x)), matrix @ x, atol=bound)
    np.testing.assert_allclose(run(pairs(x), power), matrix @ turned, atol=bound)
    products = [networks.Product(a, b) for a, b in zip(pairs(h), pairs(x), strict=True)]
    np.testing.assert_allclose(run(products), matrix @ (h * x), atol=4 * bound)
    np.testing.assert_allclose(run(products, power), matrix @ (h * turned), atol=4 * bound)
    np.testing.assert_allclose(
        run([(v.real, None) for v in x], power),
        matrix @ (turned * 0 + x.real * w ** np.arange(radix)[:, None]),
        atol=bound,
    )
    half = [(v.real, v.imag) if i < radix // 2 else (None, None) for i, v in enumerate(x)]
    masked = turned.copy()
    masked[radix // 2 :] = 0
    np.testing.assert_allclose(run(half, power), matrix @ masked, atol=bound)


def test_networks_take_few_operations():
    # A radix-2 butterfly with a twiddle is six fused operations; half as much would be a wrong count.
    assert networks.operations(2, True) == 6
    assert networks.operations(4, False) == 16
    assert networks.operations(16, False) == 148
    assert networks.operations(16, True, rotated=True) == 192
    assert networks.operations(16, True) <= 192 + 4 * 4


@pytest.mark.parametrize("word", [8, 16])
@pytest.mark.parametrize(
    ("radices", "elements", "rows"),
    [((8, 8), 8, 16), ((16, 8), 16, 8), ((16, 16), 16, 8), ((8, 8, 8), 8, 2), ((16, 8, 8), 16, 2), ((32, 32), 32, 4),
     ((16, 16, 8), 16, 1), ((16, 16, 16), 16, 1), ((24, 8, 8), 24, 1), ((12, 4, 4), 12, 8), ((20, 4, 4), 20, 8)],
)  # fmt: skip
def test_exchanges_have_no_bank_conflicts_and_one_block_barrier_at_most(radices, elements, rows, word):
    plan = make_plan(radices, elements, rows, word)
    assert [e.conflicts for e in plan.exchanges] == [1.0] * len(plan.exchanges), plan.describe()
    blocks = [e.barrier for e in plan.exchanges].count("block")
    assert blocks == (1 if plan.threads > 32 else 0), plan.describe()
    assert all(e.reuse_barrier in (None, "warp") for e in plan.exchanges), plan.describe()


@pytest.mark.parametrize("pairs", [False, True])
def test_layouts_keep_every_position_apart_and_inside(pairs):
    for radices, elements, rows in [((8, 8), 8, 4), ((16, 8, 8), 16, 2), ((24, 8, 4), 24, 4), ((16, 16, 4), 16, 2)]:
        plan = make_plan(radices, elements, rows, pairs=pairs)
        for exchange in plan.exchanges:
            words = index.address(radices, exchange.strides, np.arange(plan.size))
            assert len(set(words.tolist())) == plan.size
            assert words.max() < plan.row_words


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    ("radices", "elements", "rows", "sides"),
    [((16, 16, 16), 32, 1, 3), ((16, 8, 16), 32, 1, 3), ((16, 8, 16), 16, 1, 3), ((16, 32, 32), 32, 1, 1),
     ((32, 32), 32, 4, 1), ((16, 16), 16, 8, 1), ((8, 8), 8, 32, 1), ((16, 8, 8), 16, 8, 1), ((12, 12, 8), 24, 8, 1)],
)  # fmt: skip
def test_pairs_move_without_bank_conflicts_from_even_words(radices, elements, rows, sides, columns):
    rows = min(rows, 8) if columns else rows  # sixteen columns: no width suits both kinds of access
    plan = make_plan(radices, elements, rows, columns=columns, pairs=True)
    assert [e.conflicts for e in plan.exchanges] == [1.0] * len(plan.exchanges), plan.describe()
    assert sum(sum(e.pairs) for e in plan.exchanges) >= sides, plan.describe()
    assert plan.row_words % 2 == 0
    for exchange in plan.exchanges:
        for stage, pairs in zip((exchange.stage, exchange.stage + 1), exchange.pairs, strict=True):
            place = index.positions(radices, elements, stage, plan.groups[stage - 1])
            words = index.address(radices, exchange.strides, place)
            if pairs:
                assert not (words[:, 0] % 2).any()
                ordered = np.sort(words, axis=1).reshape(len(words), -1, 2)
                assert (ordered[..., 0] % 2 == 0).all()
                assert (ordered[..., 1] == ordered[..., 0] + 1).all()


@pytest.mark.parametrize(("radices", "elements"), [((16, 16, 16), 32), ((16, 8, 16), 32), ((16, 32), 32), ((4, 8), 8)])
def test_neighbours_come_in_pairs_from_memory_on(radices, elements):
    plan = make_plan(radices, elements, pairs=True, neighbours=True)
    assert plan.exchanges[0].pairs[0]
    assert [e.conflicts for e in plan.exchanges] == [1.0] * len(plan.exchanges), plan.describe()
    place = index.positions(radices, elements, 1, plan.groups[0])
    assert (place[:, 0] == 2 * np.arange(plan.threads)).all()
    assert (place[:, 1::2] == place[:, ::2] + 1).all()
    with pytest.raises(SpecError, match="twice the first radix"):
        make_plan(radices[::-1], elements, pairs=True, neighbours=True) if radices[0] != radices[-1] else make_plan(
            radices, elements, neighbours=True
        )


def test_plans_without_neighbours_have_no_pairs():
    for radices, elements, word in [((8, 9), 72, 8), ((16, 16), 16, 16)]:
        assert make_plan(radices, elements, 4, word, pairs=True) == make_plan(radices, elements, 4, word)


def test_moves_of_pairs_cover_every_slot_once():
    move = emit.Move((0, 16, 1, 17, 5, 8), "complex64", pairs=True)
    assert move.accesses() == ((0, 2), (1, 3), (4,), (5,))
    assert dataclasses.replace(move, pairs=False).accesses() == tuple((slot,) for slot in range(6))
    assert dataclasses.replace(move, masked=True).accesses() == tuple((slot,) for slot in range(6))


def test_bank_passes():
    assert bank_passes(np.arange(32), 8) == 1.0
    assert bank_passes(np.arange(32) * 2, 8) == 2.0
    assert bank_passes(np.arange(32) * 16, 8) == 16.0
    assert bank_passes(np.zeros(32, dtype=int), 8) == 1.0  # one word for all lanes is broadcast
    assert bank_passes(np.arange(32) * 8, 16) == 8.0


@pytest.mark.parametrize(("radices", "elements"), [((65, 2), 130), ((8, 8), 12), ((), 1), ((4, 4), 32)])
def test_impossible_plans_are_refused(radices, elements):
    with pytest.raises(SpecError):
        make_plan(radices, elements)


@pytest.mark.parametrize(("size", "word"), [(64, 8), (512, 8), (768, 8), (4096, 16)])
def test_candidates_of_tuning_are_plans_of_that_length(size, word):
    from devkernels.engine import choose, tune

    found = tune.candidates(size, word)
    assert found[0] == choose.choose(size, word)
    assert len(found) == len(set(found)) > 4
    for choice in found:
        plan = make_plan(
            choice.radices, choice.elements, choice.rows, word, pairs=choice.pairs, neighbours=choice.neighbours
        )
        assert plan.size == size
        assert plan.threads * plan.rows <= 1024


@pytest.mark.parametrize(("size", "word"), [(480, 8), (1000, 8), (1920, 8), (12288, 8), (384, 16), (512, 8)])
def test_candidates_of_tuning_with_uneven_stages(size, word):
    from devkernels.engine import choose, tune

    found, even = tune.candidates(size, word, uneven=True), tune.candidates(size, word)
    assert found[0] == (choose.uneven(size, word) or found[0])
    assert len(found) == len(set(found)) <= len(even) + 4 * tune._UNEVEN + 1
    assert set(even) < set(found)
    for choice in set(found) - set(even):
        plan = make_plan(choice.radices, choice.elements, choice.rows, word, pairs=choice.pairs)
        assert plan.uneven
        assert plan.size == size
        assert plan.block_dim[0] <= 1024
        assert plan.shared_bytes <= choose.MAX_SHARED


def test_each_architecture_may_have_its_own_table(monkeypatch):
    from devkernels.engine import choose

    usual, own = choose.TUNED[choose.DEFAULT][1024, 8], choose.Choice((16, 8, 8), 16, 1)
    monkeypatch.setitem(choose.TUNED, "sm_100", {(1024, 8): own})
    for name, expected in (("sm_100", own), ("sm_90", usual), ("sm_80", usual)):
        monkeypatch.setattr(choose, "current_target", lambda name=name: name)
        assert choose.choose(1024, 8) == expected
    assert choose.measured(2000, 8) is None
    assert choose.choose(2000, 8) is not None


def test_plans_of_the_table_fit_a_block_of_their_architecture():
    from devkernels.engine import choose
    from devkernels.target import Target

    for architecture, table in choose.TUNED.items():
        for (size, word), choice in table.items():
            plan = make_plan(
                choice.radices, choice.elements, choice.rows, word, pairs=choice.pairs, neighbours=choice.neighbours
            )
            assert plan.size == size
            assert plan.shared_bytes <= choose.MAX_SHARED, (architecture, size)
            threads = plan.threads * plan.rows
            assert threads <= 1024
            assert threads * (choice.max_registers or 32) <= Target.max_registers_per_block
            assert all(exchange.conflicts <= 1.5 for exchange in plan.exchanges), (size, plan.describe())


@pytest.mark.parametrize("word", [8, 16])
def test_every_power_of_two_and_thrice_one_has_a_plan(word):
    from devkernels.engine import choose

    for base in (1, 3):
        for k in range(1, 15):
            if base << k <= choose.largest(word):
                plan, _ = choose.plan_for(base << k, word)
                assert plan.size == base << k
                assert plan.shared_bytes <= choose.MAX_SHARED


def test_lengths_without_a_plan_name_the_next():
    from devkernels.engine import choose
    from devkernels.errors import UnsupportedSizeError

    with pytest.raises(UnsupportedSizeError, match="the next length that has one is 98"):
        choose.choose(97, 8)
    with pytest.raises(UnsupportedSizeError, match="the longest is 16384"):
        choose.choose(20000, 8)


@pytest.mark.parametrize(
    ("radices", "elements", "rows"),
    [((8, 8), 8, 4), ((16, 8, 8), 16, 2), ((24, 8, 4), 24, 4), ((16, 16, 16), 16, 1), ((16, 8, 16), 32, 1)],
)
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_barriers_separate_every_word_that_changes_hands(radices, elements, rows, columns, pairs):
    """Forward, inverse, forward: each write must follow a barrier of the readers' scope since the word was read."""
    plan = make_plan(radices, elements, rows, 8, columns, pairs)
    threads = np.arange(plan.threads)
    warp = {None: None, "warp": 1, "block": 2}

    def owners(stage, exchange):
        """(rows * row_words) thread that touches each word, -1 for none."""
        place = index.positions(radices, elements, stage, plan.groups[stage - 1])
        words = index.address(radices, exchange.strides, place)
        who = np.full(plan.rows * plan.row_words, -1)
        for row in range(plan.rows):
            number = threads * plan.rows + row if columns else threads + row * plan.threads
            who[row * plan.row_words + words] = number[:, None]
        return who

    # The accesses of a forward, an inverse and another forward, in program order, with the barrier before each.
    moments = []
    for direction in ("forward", "inverse", "forward"):
        order = plan.exchanges if direction == "forward" else plan.exchanges[::-1]
        for exchange in order:
            first, second = (exchange.stage, exchange.stage + 1)[:: 1 if direction == "forward" else -1]
            if direction == "forward":
                reuse = exchange.reuse_barrier
            else:
                after = [e for e in plan.exchanges if e.stage == exchange.stage + 1]
                reuse = after[0].reuse_barrier if after else None
            moments.append(("write", owners(first, exchange), reuse))
            moments.append(("read", owners(second, exchange), exchange.barrier))
    for later, (kind, who, _) in enumerate(moments):
        strongest = None
        for earlier in range(later - 1, -1, -1):
            strongest = max((strongest, moments[earlier + 1][2]), key=lambda scope: warp[scope] or 0)
            before_kind, before, _ = moments[earlier]
            if kind == before_kind == "read":
                continue
            both = (who >= 0) & (before >= 0)
            other = before[both] != who[both]
            apart = before[both] // 32 != who[both] // 32
            if strongest is None:
                assert not other.any(), (earlier, later)
            elif strongest == "warp":
                assert not apart.any(), (earlier, later)
