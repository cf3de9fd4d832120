"""How early measures of a training run are halfway to their last values."""

import numpy as np
import pandas as pd
import pytest
from naming import naming

import interp
from interp.analyses.encoding.training import COLUMNS, halfway


def run_of(**measures):
    return pd.DataFrame({"step": [0, 1, 10, 100]} | {name: [4.0, 3.0, 1.0, 0.0] for name in COLUMNS[1:]} | measures)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([0.0, 0.9, 1.0, 1.0], 1),
        ([np.nan, 0.4, 0.6, 1.0], 10),
        ([0.0, 1.4, 1.2, 1.0], 1),  # beyond the last value, by less than half the change
        ([0.0, 0.9, 0.1, 1.0], 100),  # halfway once, and back again
        ([0.5, 0.5, 0.5, 0.5], 0),
    ],
)
def test_a_measure_is_halfway_when_it_stays_near_its_last_value(values, step):
    table = halfway(run_of(spearman=values)).set_index("measure")
    assert table["step"]["spearman"] == step
    assert table["loss_share"]["spearman"] == {0: 0, 1: 0.25, 10: 0.75, 100: 1}[step]
    assert (table.loc["loss", ["first", "last", "step", "loss_share"]] == [4, 0, 10, 0.75]).all()


def test_the_order_of_checkpoints_does_not_matter():
    table = run_of(spearman=[np.nan, 0.2, 0.7, 0.9])
    pd.testing.assert_frame_equal(halfway(table), halfway(table[::-1]))


def test_two_checkpoints_are_too_few():
    with pytest.raises(ValueError, match=naming(2, 3)):
        halfway(run_of().iloc[:2])


def test_the_page_of_a_model_with_a_table_of_its_training_says_so():
    model = interp.load("tiny-bert")
    options = {"orders": ["random"], "bases": ["axis"], "ratios": [2], "limit": 3, "progress": False}
    [note] = [note for note in interp.encoding.study(model, "bundled", **options).section.notes if "halfway" in note]
    assert "from step 56 on, when the loss has fallen by 14% " in note
