"""The λ of the highest MAUVE, against brute force and on features whose likeness is known."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from interp.analyses.generation import study
from interp.analyses.generation.findings import answer, more_human
from interp.analyses.generation.highest import highest_mauve, mauve_of_halves
from interp.analyses.generation.metrics import mauve_scores

MAUVE = "interp.analyses.generation.highest.mauve_scores"
SCALES = (0.0, 0.5, 1.0)


def tables(scores, of_all, scales=SCALES):
    """The arguments of `highest_mauve`, from values [scales, halves] and of all prompts."""
    where = pd.DataFrame({"decoder": "sample", "scale": scales})
    return where.assign(mauve_mean=of_all), where.join(pd.DataFrame(scores).add_prefix("half_"))


def test_every_half_has_its_counterpart_and_its_human_text(monkeypatch):
    """The texts of a prompt stay together, and all λ have the same halves."""
    read = []
    monkeypatch.setattr(MAUVE, lambda features, human: read.append((features, human)) or [0.25, 0.75])
    prompts = np.arange(21.0)
    features = np.repeat(prompts, 2)[:, None] + [[0.0], [100.0]] * 21
    assert mauve_of_halves(features, prompts[:, None], seed=3) == [0.5] * 40
    for (one, human), (other, other_human) in zip(read[::2], read[1::2], strict=True):
        assert one.shape == other.shape == (20, 1)
        assert sorted(one.ravel() % 100) == sorted([*human.ravel()] * 2)
        assert not set(human.ravel()) & set(other_human.ravel())
    assert len({tuple(sorted(human.ravel())) for _, human in read}) == 40
    first = [human.tolist() for _, human in read]
    read.clear()
    mauve_of_halves(prompts[:, None] + 5, prompts[:, None], seed=3)
    assert [human.tolist() for _, human in read] == first
    assert mauve_of_halves(prompts[:19, None], prompts[:19, None], seed=3) == []


@pytest.mark.parametrize("seed", range(4))
def test_the_gain_is_that_of_a_choice_on_the_other_half(seed):
    rng = np.random.default_rng(seed)
    scores = rng.choice(np.linspace(0, 1, 6), (3, 40))  # with equal ones
    (row,) = highest_mauve(*tables(scores, [0.3, 0.8, 0.8])).to_dict("records")
    best, gains = [], []
    for half in range(40):
        number = max((2, 1, 0), key=lambda i, half=half: scores[i, half])  # the first of equal values
        best.append(number)
        other = half + 1 if half % 2 == 0 else half - 1
        gains.append(scores[number, other] - scores[2, other])
    assert row["scale"] == 1.0, "of equal values that nearest to 1"
    assert row["scale_low"] == min(SCALES[number] for number in best)
    assert row["scale_high"] == 1
    assert row["gain"] == pytest.approx(np.mean(gains))
    weights = [best.count(i) / 40 for i in range(3)]
    weighted = [sum(weights[i] * (scores[i, half] - scores[2, half]) for i in range(3)) for half in range(40)]
    assert row["gain_high"] - row["gain"] == pytest.approx(stats.t.ppf(0.975, 19) * np.std(weighted))


def test_what_cannot_be_compared(monkeypatch, load_toy):
    without_one = highest_mauve(*tables(np.ones((2, 40)), [0.7, 0.9], (0.0, 0.5)))
    assert without_one[["scale", "scale_low", "scale_high"]].to_numpy().tolist() == [[0.5, 0.5, 0.5]]
    assert without_one["gain"].isna().all()
    assert not [*more_human(without_one, 40)]
    assert highest_mauve(*tables(np.ones((1, 40)), [0.7], (1.0,))).empty
    monkeypatch.setattr(MAUVE, lambda features, human: pytest.fail("too few prompts"))
    text = [f"w{i % 7} w{i % 31} w{i % 5} w{i % 11} w{i % 3} w1" for i in range(60)]
    options = {"prompt_tokens": 2, "new_tokens": 4, "scales": [0, 1], "decoders": ["greedy"], "unigram": np.arange(67)}
    found = study(load_toy("gpt2"), text, n=19, features=load_toy("gpt2"), progress=False, **options)
    assert found.highest["scale_low"].isna().all()
    assert found.findings[-1].verdict == "cannot tell"
    assert "19 different texts" in found.findings[-1].because


def test_a_study_chooses_by_the_mauve_of_its_table(monkeypatch, load_toy):
    """Where MAUVE is highest is marked in its figure, and said in the answer."""
    from interp import plots

    text = [f"w{i % 7} w{i % 31} w{i % 5} w{i % 11} w{i % 3} w1" for i in range(60)]
    options = {"prompt_tokens": 2, "new_tokens": 4, "scales": [0, 1], "decoders": ["greedy"], "unigram": np.arange(67)}
    monkeypatch.setattr(MAUVE, lambda features, human: [1 - np.abs(features - human).mean() / 9])
    found = study(load_toy("gpt2"), text, n=20, features=load_toy("gpt2"), progress=False, **options)
    (row,) = found.highest.to_dict("records")
    written = found.metrics.query("decoder == 'greedy'").set_index("scale")["mauve_mean"]
    assert written[row["scale"]] == row["mauve_mean"] == written.max()
    assert [finding.question for finding in found.findings][-1].startswith("Is text from greedy decoding more like")
    assert f"is highest at λ = {row['scale']:g} [" in str(found.answer)
    mark = plots.text_measure(found, "mauve").data[1]
    assert (mark.x[0], mark.y[0]) == (row["scale"], row["mauve_mean"])
    assert mark.customdata[0].tolist() == [row["scale_low"], row["scale_high"]]
    assert "λ of the highest MAUVE" in found.section.tables


@pytest.mark.slow
def test_text_that_is_like_human_text_at_one_scale_alone():
    def highest(shifts):
        rng = np.random.default_rng(0)
        of_prompt = rng.normal(size=(60, 4))
        human = of_prompt + rng.normal(size=(60, 4))
        texts = [of_prompt + rng.normal(size=(60, 4)) + [shift, 0, 0, 0] for shift in shifts]
        scores = [mauve_of_halves(features, human, seed=0) for features in texts]
        return highest_mauve(*tables(scores, [np.mean(mauve_scores(features, human)) for features in texts]))

    at_half = highest([3, 0, 3])
    assert at_half[["scale", "scale_low", "scale_high"]].to_numpy().tolist() == [[0.5, 0.5, 0.5]]
    assert [finding.verdict for finding in more_human(at_half, 60)] == ["yes"]
    assert str(answer(_diversity(), at_half)).endswith("is highest at λ = 0.5 [0.5, 0.5] with sampling.")
    alike = highest([0, 0, 0])
    assert (alike["scale_low"].item(), alike["scale_high"].item()) == (0, 1)
    assert [finding.verdict for finding in more_human(alike, 60)] != ["yes"]
    assert [finding.verdict for finding in more_human(highest([3, 3, 0]), 60)] == ["no"]


def _diversity():
    rows = [("human", np.nan, 0.7, np.nan), ("sample", 0.0, 0.3, 0.1), ("sample", 1.0, 0.2, np.nan)]
    return pd.DataFrame(rows, columns=["decoder", "scale", "value", "difference"]).assign(measure="diversity")
