"""The largest values and their places against sorting all values, however the sample is divided."""

import math
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from interp.passes import largest


def nothing(d, k):
    return torch.full((2, d, k), -torch.inf, dtype=torch.float64)


def brute(values, k):
    """[(value, place)] of each column by the definition: magnitudes cut off after 13 binary digits, then places."""
    found = []
    for column in values.T.tolist():
        order = []
        for place, value in enumerate(column):
            mantissa, exponent = math.frexp(abs(value))
            order.append((-math.ldexp(math.floor(mantissa * 2**14), exponent), place))
        found.append([(column[place], place) for _, place in sorted(order)[:k]])
    return found


def listed(state):
    return [[(v, int(p)) for v, p in zip(*one.tolist(), strict=True) if p >= 0] for one in state.unbind(1)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 60), k=st.integers(1, 8), ties=st.booleans(), data=st.data())
def test_parts_merge_to_the_sort_of_all(seed, n, k, ties, data):
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, size=(n, 4)) / 4 if ties else rng.normal(size=(n, 4)) * 10.0 ** rng.integers(-6, 6, 4)
    values = torch.from_numpy(values.astype(np.float32))
    part = torch.from_numpy(rng.integers(0, 4, n))
    states = []
    for number in range(4):
        held = nothing(4, k)
        for some in np.array_split(rng.permutation((part == number).nonzero()[:, 0].numpy()), 3):
            places = torch.from_numpy(some)
            held = largest.merged(held, largest.of_values(values[places], places, held))
        states.append(held)
    order = data.draw(st.permutations(range(4)))
    found = reduce(largest.merged, [states[number] for number in order])
    assert listed(found) == brute(values, k)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_keep_their_values(dtype):
    values = torch.randn(300, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    held = nothing(5, 6)
    for places in torch.arange(300).split(40):
        held = largest.merged(held, largest.of_values(values[places], places, held))
    assert listed(held) == brute(values.double(), 6)


def test_the_last_digits_decide_nothing():
    """Of a thousand values that are equal up to rounding, the first ones are kept, whatever the rounding."""
    places = torch.arange(1000)
    found = []
    for seed in range(3):
        noise = torch.randn(1000, 1, generator=torch.Generator().manual_seed(seed))
        found.append(largest.of_values(-5.03 * (1 + 1e-7 * noise), places, nothing(1, 4))[1, 0].tolist())
    assert found == [[0.0, 1.0, 2.0, 3.0]] * 3
