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
from interp.corpora import pairs
from interp.corpora.unigrams import Unigrams
from interp.instruments.prompts import Prompts
from interp.models.running import active_hooks
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
    "frequency.bias_effect": lambda s: frequency.bias_effect(s.model, s.texts, unigram=s.counts, **quiet),
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
    "llama, folded": _FOLDED | _RMS | dict.fromkeys(["frequency.bias_effect", "generation.study"], FOLDED_HEAD),
    "bert": _ENCODER,
    "bert, bfloat16": _ENCODER,
    "toy encoder": _ENCODER,
}
"""What is refused for each kind, and what its message names; everything else works."""

CONTRACT: dict[type[Result], dict[str, str]] = {
    frequency.BiasEffect: {
        "kl": "bias scale kl_unigram_model kl_corrected kl_low kl_high delta_kl delta_kl_corrected delta_kl_low "
        "delta_kl_high kl_model_unigram dropped_mass js js_corrected js_low js_high perplexity perplexity_low "
        "perplexity_high delta_perplexity balanced_nll n_balanced n_absent n_tokens n_scored",
        "types": "token_id token count unigram projection_ln bias_last projection_mean projection_slope",
        "probabilities": "token_id bias scale probability",
        "curve": "bias scale bin unigram_low unigram_high geometric_mean geometric_sd n_types",
        "projection": "bias pearson spearman slope n_types",
        "adjustment": "tau kl_unigram_model",
        "projection_draws": "kind draw spearman",
    },
    controls.ControlStudy: {
        "controls": "bias scale kind draw norm effect_sd kl_unigram_model delta_kl perplexity delta_nll excess_nll",
        "kl": "bias scale kl_unigram_model delta_kl delta_kl_corrected delta_kl_low delta_kl_high perplexity",
        "bands": "bias scale band unigram_low unigram_high n_types n_scored share predicted nll nll_low nll_high "
        "delta_nll excess_nll excess_nll_low calibration_error calibration_floor delta_calibration_error",
        "outlier_dims": "dim share mean",
        "outliers": "part of draw n_dims kl_unigram_model js surprisal entropy entropy_low n_predicted n_tokens",
    },
    generation.GenerationStudy: {
        "texts": "decoder scale prompt_id prompt text n_tokens",
        "metrics": "decoder scale distinct_1 distinct_2 distinct_3 distinct_4 diversity mauve_mean mauve_sd "
        "perplexity n_texts n_tokens",
        "intervals": "decoder scale measure value low high difference difference_low difference_high",
        "highest": "decoder scale scale_low scale_high mauve_mean gain gain_low gain_high",
    },
    attention.AttentionStudy: {
        "scores": "layer head key_class dim mean centred_mean n_pairs",
        "gaps": "layer head key_class dim gap share rank",
        "totals": "layer head key_class contributions key_bias score score_low score_high",
        "largest_gaps": "layer key_class dim gap abs_share n_dims_90_abs gap_low gap_high",
        "attention": "layer head key_class sum sum_low sum_high mean n_queries",
        "by_layer": "layer key_class sum sum_low sum_high mean uniform",
        "dims": "state dim key_class mean sd max_abs n_tokens",
        "outliers": "dim state mean z robust_z rank",
        "contexts": "dim state rank activation before token after text position",
        "massive": "state dim first_position last_position n_activations n_tokens max_abs max_ratio",
        "ablation": "layer dim magnitude removed mode key_class attention_before attention_after "
        "change_low change_high",
        "ablated": "layer key_class set attention_before mean_change mean_change_low mean_change_high largest_fall "
        "largest_rise",
        "frames": "dims kind draw layer key_class attention_before attention_after log_odds log_odds_low log_odds_high",
        "outlier_share": "layer key_class n_dims gap outlier_share control_share share_beyond share_beyond_low "
        "share_beyond_high",
        "correlations": "layer dim log_unigram attention_received n_tokens",
    },
    sinks.SinkStudy: {
        "heads": "layer head first_position last_position attention rate uniform score cosine query_norm key_norm "
        "value_norm gap by_direction by_norm n_keys",
        "rates": "layer first_position last_position rate rate_low rate_high attention uniform n_keys",
        "measures": "measure value low high n_heads",
        "draws": "draw rate",
        "dims": "layer head key_class dim gap share abs_share rank outlier massive",
        "writers": "dim first_position last_position component layer added share share_low share_high n_activations",
    },
    encoding.EncodingStudy: {
        "regression": "target r2 adj_r2 n_types n_dims spread logit_scale seed",
        "theory": "predictor r2 r2_corrected r2_low r2_high corr2 slope beyond beyond_corrected beyond_low beyond_high "
        "median_variance",
        "types": "token_id token alpha predicted",
        "dims": "basis dim slope spearman explained_variance",
        "few_shot": "n_tokens",
        "pruning": "order fraction n_dims kl js top1_agreement perplexity",
        "random_orders": "order draw fraction n_dims top1_agreement top1_agreement_low top1_agreement_high n_positions",
        "pruned_texts": "basis order fraction n_dims agreement diversity repetition same_texts perplexity n_texts "
        "n_tokens",
        "steering": "token text requested achieved kl_others",
        "neurons": "layer neuron w_out_norm logit_var delta_loss delta_entropy delta_kl_unigram delta_loss_frozen "
        "delta_entropy_frozen through_unigram",
        "contexts": "neuron layer rank activation before token after text position",
        "dynamics": "step adj_r2 spearman kl_unigram_model loss",
    },
    directions.DirectionStudy: {
        "cosines": "name_a name_b of_a of_b cosine cosine_low cosine_high null_95 by_construction p p_adjusted",
        "overlaps": "name_a name_b n_dims_a n_dims_b overlap overlap_low overlap_high null_mean null_high "
        "by_construction p p_adjusted",
        "rotations": "name_a name_b draw value",
    },
    probing.ProbingStudy: {
        "tasks": "task n_pairs",
        "judgements": "task score accuracy low high n_pairs difference difference_low difference_high p p_adjusted",
        "judgement_means": "score accuracy low high difference difference_low difference_high above below n_tasks",
        "probes": "task state method l0_strength k seed control accuracy pair_accuracy bag_of_words n_open "
        "open_fraction n_test",
        "neurons": "task state dim t p_adjusted gate weight",
        "random_k": "task state k draw accuracy",
        "equivalence": "task state ratio low high",
        "agreement": "task state l0_strength spearman spearman_max auroc",
        "hits": "task state pair dense l0 topk dense_flipped dense_untrained l0_untrained topk_untrained l0_rotated "
        "topk_rotated bag_of_words",
        "means": "state probe accuracy low high sd",
        "differences": "state probe against difference low high above below n_tasks",
        "untrained": "task state probe control draw accuracy",
        "rotations": "task state control draw k accuracy",
        "comparisons": "task state probe against difference low high p p_adjusted",
        "overlap": "task_a task_b state jaccard expected cosine",
        "transfer": "train_task test_task state l0_strength accuracy pair_accuracy",
        "general": "task state",
        "ablation": "task state mode set n_neurons accuracy_before accuracy_after",
        "views": "task",
        "contexts": "dim state rank activation before token after task pair sentence position",
    },
    units.UnitStudy: {
        "consistency": "task control of overlap expected null null_high p p_adjusted n_units n_top n_pairs",
        "units": "task control of at unit t auc auc_error parts",
        "shared_units": "of task_a control_a task_b control_b overlap expected null null_high p",
        "phenomena": "of by within between difference low high p n_tasks n_groups",
        "separability": "task control of at unit auc low high error pair_share pair_low pair_high n_pairs",
        "similarity": "at task_a control_a task_b control_b cosine null_high",
        "tasks": "task field linguistics_term n_pairs",
    },
}  # fmt: skip
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
        for name, columns in CONTRACT[type(found)].items():
            table = tables_of(found)[name]
            assert table.empty or set(columns.split()) <= set(table.columns), name
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


def test_every_kind_of_result_has_its_contract() -> None:
    def below(kind: type) -> set[type]:
        return {kind for one in kind.__subclasses__() for kind in (one, *below(one))}

    ours = {kind for kind in below(Result) if kind.__module__.startswith("interp.")}
    assert ours - {probing.sweeps.Sweep} == set(CONTRACT), "a Sweep is part of a ProbingStudy"
    for kind, tables in CONTRACT.items():
        assert set(tables) == {*kind.table_names(), *kind.dense_names()}, kind


def test_every_refusal_is_of_a_cell() -> None:
    assert set(REFUSED) <= set(KINDS)
    assert {name for cells in REFUSED.values() for name in cells} <= set(ANALYSES)
    assert {"toy", "gpt2", "pythia", "llama", "bert"} <= set(KINDS)
