"""Every kind of model by every analysis: a cell works, or is refused in a message that names the values given here.

A new analysis, kind of result or kind of model without its row or column makes a test fail.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest
import torch
from families import ENCODERS, FAMILIES, JAPANESE, family, why_not
from naming import naming
from toys import every_table, toy

import interp
from interp import attention, controls, directions, encoding, frequency, generation, hooks, probing, sinks, units
from interp.analyses.registry import load, names
from interp.corpora import pairs
from interp.corpora.unigrams import Unigrams
from interp.instruments.prompts import Prompts
from interp.models.running import active_hooks
from interp.results.columns import column
from interp.results.result import Result
from interp.testing import WORDS

pytestmark = pytest.mark.e2e

quiet: Any = {"progress": False}


class Subject:
    """A model, and what its analyses start from, made once."""

    def __init__(self, model: Any, texts: list[str]) -> None:
        self.model, self.texts, self._made = model, texts, dict[str, Any]()
        self.sentence, self.token, self.bos, self.few = "w1 w2 w3", "w3", True, 8
        self.counts = Unigrams(np.arange(1, model.W_U.shape[1] + 1), "counts")
        self.small: Any = SMALL | {"unigram": self.counts}

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @property
    def fit(self) -> encoding.regression.Fit:
        return self.once("fit", lambda: encoding.fit(self.model, self.texts, **quiet))

    @property
    def pairs(self) -> pd.DataFrame:
        rng = np.random.default_rng(1)
        rows = [" ".join(rng.choice(WORDS[5:], 5)) for _ in range(40)]
        table = {"sentence_good": [f"{row} w1" for row in rows], "sentence_bad": [f"{row} w2" for row in rows]}
        return pairs.load(pd.DataFrame(table | {"UID": ["a", "b"] * 20}))

    @property
    def probe(self) -> probing.probes.Probe:
        """A fitted probe with only its three largest weights."""

        def fitted() -> probing.probes.Probe:
            states = probing.collect(self.model, self.pairs, states=[1], **quiet)
            found = probing.probe(probing.sweep(states, methods=["l0"], l0_strengths=[0.5], steps=30, **quiet), "a", 1)
            largest = np.argsort(-np.abs(found.direction))[:3]
            return replace(found, direction=np.where(np.isin(np.arange(16), largest), found.direction, 0.0))

        return self.once("probe", fitted)

    @property
    def prompts(self) -> Prompts:
        return generation.prompts(self.model, self.texts, n=3, prompt_tokens=3, new_tokens=4)

    def forward(self, recipe: Any) -> Any:
        """The logits with a recipe active, which must change them and leave no hook."""
        tokens = torch.arange(7, 17, device=self.model.W_U.device)[None]
        with torch.no_grad():
            edited = self.model.run_with_hooks(tokens, fwd_hooks=recipe)
            assert not torch.equal(edited, self.model(tokens))
        return edited


FOLDED_SCORES = ("layer norms", "interp.load")
FOLDED_HEAD = ("norm", "W_U", "interp.load")
NO_LN = ("b_LN", "RMSNorm")
CAUSAL = ("BERT", "causal")
TOKENS = torch.tensor([2, 9, 10, 11, 12, 13, 3])
SMALL: Any = {"orders": ["spearman"], "bases": ["axis"], "shifts": ["constant"], "ratios": [2.0]}

Analysis = Callable[[Subject], Any]
ANALYSES: dict[str, Analysis] = {
    "attention.attention_by_class": lambda s: attention.attention_by_class(s.model, s.texts, **quiet),
    "attention.attention_in_text": lambda s: attention.attention_in_text(s.model, s.sentence, 1, 3).contribution,
    "attention.scores.check_decomposition": lambda s: attention.scores.check_decomposition(s.model, TOKENS),
    "attention.score_contributions": lambda s: attention.score_contributions(s.model, s.texts, **quiet),
    "attention.scores.score_contributions_at": lambda s: attention.scores.score_contributions_at(
        s.model, TOKENS, 1, 2, 4, 3
    ),
    "encoding.dynamics": lambda s: encoding.dynamics([(1, s.model)], s.texts, unigram=s.counts, **quiet),
    "encoding.few_shot": lambda s: encoding.few_shot(s.model, s.fit, tokens=[50, 100]),
    "encoding.fit": lambda s: s.fit,
    "encoding.frequency_neurons": lambda s: encoding.frequency_neurons(s.model, s.texts[:6], unigram=s.counts, **quiet),
    "encoding.pruning_curve": lambda s: encoding.pruning_curve(s.model, s.texts, fit=s.fit, **quiet),
    "encoding.steer": lambda s: s.forward(encoding.steer(s.model, s.token, 2.0, s.fit, **quiet)),
    "encoding.steering_report": lambda s: encoding.steering_report(s.model, s.fit, tokens=[s.token], **quiet),
    "encoding.study": lambda s: encoding.study(s.model, s.texts[: s.few], **s.small, **quiet),
    "directions.study": lambda s: directions.study(s.model, s.texts[: s.few], unigram=s.counts, **quiet),
    "frequency.study": lambda s: frequency.study(s.model, s.texts, unigram=s.counts, **quiet),
    "controls.study": lambda s: controls.study(s.model, s.texts, unigram=s.counts, **quiet),
    "generation.generate": lambda s: generation.generate(s.model, [s.sentence], max_new_tokens=4, **quiet),
    "generation.prompts": lambda s: s.prompts.ids,
    "generation.study": lambda s: generation.study(
        s.model, s.prompts, unigram=s.counts, scales=[0, 1], decoders=["greedy"], **quiet
    ),
    "generation.metrics.text_features": lambda s: generation.metrics.text_features(s.model, s.texts[:3]),
    "hooks.ablate_dims": lambda s: s.forward(hooks.ablate_dims(s.model, 1, [3], where="keys")),
    "hooks.adjust_logits": lambda s: s.forward(hooks.adjust_logits(s.model, s.counts.log_prior(), 1.0)),
    "hooks.capture": lambda s: hooks.capture(s.model, "resid_post", {}, layer=1),
    "hooks.firing": lambda s: _fired(s),
    "hooks.shift_head_input": lambda s: s.forward(hooks.shift_head_input(s.model, np.ones(16))),
    "hooks.prune_output_dims": lambda s: s.forward(hooks.prune_output_dims(s.model, [3])),
    "hooks.scale_bias": lambda s: s.forward(hooks.scale_bias(s.model, "ln", 0.5)),
    "attention.ablation_effect": lambda s: attention.ablation_effect(s.model, s.texts, OUTLIER, **quiet),
    "attention.dimension_profile": lambda s: attention.dimension_profile(s.model, s.texts, **quiet),
    "attention.study": lambda s: attention.study(s.model, s.texts, unigram=s.counts, k=1.0, **quiet),
    "sinks.study": lambda s: sinks.study(s.model, s.texts, **quiet),
    "hooks.permute_keys": lambda s: s.forward(hooks.permute_keys(s.model, range(9, -1, -1))),
    "probing.ablation_effect": lambda s: probing.ablation_effect(s.model, s.pairs, [s.probe], draws=1, **quiet),
    "probing.collect": lambda s: probing.collect(s.model, s.pairs, **quiet).load(1),
    "units.study": lambda s: units.study(s.model, s.pairs, **quiet),
    "probing.minimal_pair_accuracy": lambda s: probing.minimal_pair_accuracy(s.model, s.pairs, **quiet),
    "probing.probes.pair_scores": lambda s: probing.probes.pair_scores(s.model, s.pairs, [s.probe]),
    "probing.sentence_scores": lambda s: probing.sentence_scores(s.model, [s.sentence], **quiet),
    "probing.steer": lambda s: s.forward(probing.steer(s.model, s.probe, 1.0)),
    "probing.study": lambda s: probing.study(
        s.model, s.pairs, states=[1], methods=["dense", "l0"], l0_strengths=[0.2], controls=["none"], steps=30, **quiet
    ),
    "probing.token_scores": lambda s: probing.token_scores(s.model, s.probe, s.sentence)[1],
    "probing.scores.word_surprisal": lambda s: probing.scores.word_surprisal(s.model, [s.sentence], bos=s.bos, **quiet),
    "report.report": lambda s: None,  # the same analyses side by side: tests/e2e/test_survey.py, with its own models
}
OUTLIER = pd.DataFrame({"dim": [3], "state": [0], "mean": [9.0], "z": [9.0], "rank": [1]})

KINDS: dict[str, Callable[[Any], Any]] = {
    "gpt2": lambda load: load("gpt2"),
    "gpt2, folded": lambda load: folded(load("gpt2")),
    "pythia": lambda load: load("gpt_neox"),
    "pythia, folded": lambda load: folded(load("gpt_neox")),
    "llama": lambda load: load("llama"),
    "llama, folded": lambda load: folded(load("llama")),
    "bert": lambda load: load("bert"),
    "gpt2, bfloat16": lambda load: load("gpt2", dtype=torch.bfloat16),
    "bert, bfloat16": lambda load: load("bert", dtype=torch.bfloat16),
    "toy": lambda load: toy(load("gpt2").tokenizer),
    "toy encoder": lambda load: toy(load("bert").tokenizer, encoder=True),
}

_SCORES = ["attention_in_text", "scores.check_decomposition", "score_contributions", "scores.score_contributions_at"]
_FOLDED = dict.fromkeys([f"attention.{name}" for name in _SCORES], FOLDED_SCORES)
_FOLDED |= dict.fromkeys(
    ["hooks.ablate_dims", "attention.ablation_effect", "attention.study", "sinks.study"], FOLDED_SCORES
)
_OF_HEAD = ("controls.", "directions.", "encoding.")
_FOLDED |= dict.fromkeys([name for name in ANALYSES if name.startswith(_OF_HEAD)], FOLDED_HEAD)
_RMS = {"hooks.scale_bias": NO_LN}
_ENCODER = {
    "generation.generate": CAUSAL,
    "generation.study": CAUSAL,
    "encoding.frequency_neurons": ("causal", "BERT"),
}
REFUSED: dict[str, dict[str, tuple[str, ...]]] = {
    "gpt2, folded": _FOLDED,
    "pythia, folded": _FOLDED,
    "llama": _RMS,
    "llama, folded": _FOLDED | _RMS | dict.fromkeys(["frequency.study", "generation.study"], FOLDED_HEAD),
    "bert": _ENCODER,
    "bert, bfloat16": _ENCODER,
    "toy encoder": _ENCODER,
}
"""What is refused for each kind, and what its message names; everything else works."""

UNKNOWN = {
    "bias_last", "projection_ln", "scale", "perplexity", "perplexity_low", "perplexity_high", "mauve_mean",
    "mauve_sd", "scale_low", "scale_high", "gain", "gain_low", "gain_high", "through_unigram", "spearman",
    "pearson", "slope", "auroc", "spearman_max", "ratio", "low", "high", "diversity_se",
    "difference", "difference_low", "difference_high", "log_odds_low", "log_odds_high",
    "log_unigram", "attention_received", "l0_strength", "k", "cosine", "share", "abs_share", "sd",
    "topk", "topk_rotated", "topk_untrained", "l0_rotated", "dense_flipped",
    "projection_mean", "projection_slope", "null_high", "value", "surprisal", "kl_low", "kl_high",
    "top1_agreement_low", "top1_agreement_high",
    "cosine_low", "cosine_high", "overlap_low", "overlap_high", "p", "p_adjusted",
    "seed", "r2_corrected", "r2_low", "r2_high", "beyond", "beyond_corrected", "beyond_low", "beyond_high",
    "nll", "nll_low", "nll_high", "delta_nll", "delta_nll_low", "delta_nll_high", "excess_nll", "excess_nll_low",
    "excess_nll_high", "balanced_nll", "balanced_nll_low", "balanced_nll_high",
}  # fmt: skip
"""Columns that may hold NaN because there may be nothing to measure: a bias, a MAUVE, a correlation of constants, a
type that occurs five times."""


def folded(model: Any) -> Any:
    model.process_weights_()
    return model


def _fired(subject: Subject) -> dict[str, torch.Tensor]:
    seen: dict[str, torch.Tensor] = {}
    with hooks.firing(subject.model, hooks.capture(subject.model, "logits", seen)):
        subject.model(TOKENS[None].to(subject.model.W_U.device))
    return seen


@pytest.fixture(scope="module")
def subjects() -> dict[str, Subject]:
    return {}


def tables_of(found: Any) -> dict[str, pd.DataFrame]:
    if isinstance(found, pd.DataFrame):
        return {"": found}
    return every_table(found) if isinstance(found, Result) else {}


def check_cell(subject: Subject, analysis: str, values: tuple[str, ...] | None) -> None:
    """An analysis works (finite numbers, the documented columns, no hook left) or its refusal names these values."""
    if values is not None:
        with pytest.raises(ValueError, match=naming(*values)):
            ANALYSES[analysis](subject)
        assert not active_hooks(subject.model)
        return
    found = ANALYSES[analysis](subject)
    assert not active_hooks(subject.model)
    if isinstance(found, torch.Tensor | np.ndarray):
        assert torch.isfinite(torch.as_tensor(found)).all()
    for name, table in tables_of(found).items():
        numbers = table.select_dtypes("number").drop(columns=UNKNOWN, errors="ignore")
        wrong = [column for column in numbers if not np.isfinite(numbers[column].to_numpy(float)).all()]
        assert not wrong, f"{name or analysis}: {wrong} are not finite"
    if isinstance(found, Result):
        for name, table in tables_of(found).items():
            assert sorted(table.columns) == sorted(found.table_columns[name]), name
        main = next(iter(found.tables.values()))
        assert len(main), "the first table is empty"


@pytest.mark.quick("[bert-", "[gpt2-", "[bridge of llama-")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("analysis", ANALYSES)
@pytest.mark.parametrize("kind", KINDS)
def test_cell(kind: str, analysis: str, load_toy: Any, texts: list[str], subjects: dict[str, Subject]) -> None:
    if kind not in subjects:
        subjects[kind] = Subject(KINDS[kind](load_toy), texts)
    check_cell(subjects[kind], analysis, REFUSED.get(kind, {}).get(analysis))


SHORT = [text for text in JAPANESE if len(text) <= 24]


class Japanese(Subject):
    """A toy with a tokenizer of some family, and Japanese text for it to read."""

    def __init__(self, name: str) -> None:
        tokenizer = family(name)
        sizes = {"d_vocab": len(tokenizer), "n_ctx": 80 if name == "byt5" else 32}
        sizes |= {} if tokenizer.bos_token_id or name in ENCODERS else {"default_prepend_bos": False}
        super().__init__(toy(tokenizer, encoder=name in ENCODERS, **sizes), SHORT)
        self.sentence, self.bos, self.few = SHORT[0], tokenizer.bos_token_id is not None, len(SHORT)
        ids = [i for ids in interp.corpora.sentences.encode(tokenizer, SHORT) for i in ids]
        self.token = int(np.bincount([i for i in ids if i != tokenizer.unk_token_id]).argmax())

    @property
    def pairs(self) -> pd.DataFrame:
        good = SHORT[:40]
        bad = [text.replace("は", "を").replace("が", "は").replace("。", "よ。") for text in good]
        return pairs.load(pd.DataFrame({"sentence_good": good, "sentence_bad": bad, "UID": ["a", "b"] * 20}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("analysis", ANALYSES)
@pytest.mark.parametrize("name", FAMILIES)
def test_cell_in_japanese(name: str, analysis: str, subjects: dict[str, Subject]) -> None:
    if reason := why_not(name):
        pytest.skip(reason)
    if name not in subjects:
        subjects[name] = Japanese(name)
    refused = _ENCODER if name in ENCODERS else {}
    check_cell(subjects[name], analysis, refused.get(analysis))


def _takes_a_model(function: Any) -> bool:
    hints = get_type_hints(function)
    hints.pop("return", None)
    return any("HookedTransformer" in str(hint) for hint in hints.values())


def test_every_analysis_has_a_row() -> None:
    questions = (
        "attention", "controls", "directions", "encoding", "frequency", "generation", "probing", "sinks", "units",
    )  # fmt: skip
    places = {name: f"interp.analyses.{name}" for name in (*questions, "report")} | {"hooks": "interp.hooks"}
    public = {
        f"{name}.{each}"
        for name, place in places.items()
        for module in [import_module(place)]
        for each in getattr(module, "__all__", vars(module))
        if inspect.isfunction(getattr(module, each))
        and getattr(module, each).__module__.startswith((place, "interp.instruments", "interp.models.running"))
        and not each.startswith("_")
        and not each.endswith("_passes")  # the same analysis, for interp.passes.execution
        and each != "word_frequencies"  # what analyses of frequency start from
        and _takes_a_model(getattr(module, each))
    }
    assert public <= set(ANALYSES)
    known = {"analyses", "corpora", "hooks", "load", "load_result", "models", "observe", "pages", "passes", "plots"}
    known |= {"findings", "instruments", "report", "results", "support", "testing"}
    assert set(interp.__all__) == known | set(questions), "is the new module one of analyses?"


@pytest.mark.parametrize("name", names())
def test_docstring_lists_every_table_and_what_its_columns_mean(name: str) -> None:
    kind = load(name).kind
    assert set(kind.table_columns) == {*kind.table_names(), *kind.dense_names()}
    for table, columns in kind.table_columns.items():
        assert [each for each in columns if not column(each, kind.columns).meaning] == [], table
        assert any(f"- `{table}`: " in (each.__doc__ or "") for each in kind.__mro__)


def test_every_refusal_is_of_a_cell() -> None:
    assert set(REFUSED) <= set(KINDS)
    assert {name for cells in REFUSED.values() for name in cells} <= set(ANALYSES)
    assert {"toy", "gpt2", "pythia", "llama", "bert"} <= set(KINDS)
