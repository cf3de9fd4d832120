"""The whole of question 3, for one model and text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np
import pandas as pd
import torch

from interp.analyses.encoding.columns import IN_PAPER, MEANINGS
from interp.analyses.encoding.findings import (
    answer,
    as_untrained,
    better_than_random,
    beyond_theory,
    removable,
    steered,
)
from interp.analyses.encoding.options import Basis, EncodingOptions, Order
from interp.analyses.encoding.pruning import (
    FRACTIONS,
    ORDER_COLUMNS,
    PRUNED,
    Agreements,
    PrunedPredictions,
    curve_positions,
    random_orders,
)
from interp.analyses.encoding.regression import Fit, few_shot, fit
from interp.analyses.encoding.steering import LogOdds, SteeredMeans, check_steering, steering_errors, steering_report
from interp.analyses.encoding.theory import LogProbabilities
from interp.analyses.encoding.training import COLUMNS, checkpoints, dynamics
from interp.analyses.encoding.twins import MOST_PASSES, SEEDS, ScaledPredictions, twin_rows, why_no_twin
from interp.analyses.encoding.writing import COLUMNS as PRUNED_TEXTS, pruned_text
from interp.corpora import Batches
from interp.corpora.batching import MASK_RATE, Text, predicted_batches, sample_positions
from interp.corpora.counts import unigrams_of
from interp.corpora.sources import roughly_tokens
from interp.corpora.unigrams import Unigrams
from interp.instruments.decoders import NEW_TOKENS, PROMPT_TOKENS, batch_rows
from interp.instruments.decoding import check_decodes, continued
from interp.instruments.logits import SiteMean, at_head
from interp.instruments.neurons import NEURONS, SCANNED, frequency_neurons, neurons_cost, why_no_neurons
from interp.instruments.predictions import MeanPredictions
from interp.instruments.prompts import Prompts, check_prompts, prompts
from interp.instruments.regression import raw_head
from interp.models.identity import origin
from interp.models.shapes import shape_with
from interp.models.sites import Model, hook_name, is_encoder, view
from interp.models.spelling import token_names
from interp.passes.budget import Cost, Pass
from interp.passes.contexts import CONTEXTS, LargestTokens
from interp.passes.execution import Passes, Reading, asks, side_by_side
from interp.passes.groups import MOST
from interp.results.findings import Answer, Finding, over_texts
from interp.results.result import Result, provenance
from interp.support.checks import check_choices, check_mask_rate, check_seed
from interp.support.choices import listed

__all__ = ["EncodingStudy", "check_asked", "dry_run", "frequency_neurons", "study"]

_FRACTIONS = (0.0, 0.01, 0.02, 0.03, 0.04, *FRACTIONS[1:])  # the first few per cent matter most
_WRITTEN = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5)  # fractions of the dimensions without which text is continued
_STEERED = 15  # tokens that are steered
_BLOCK = 2**22  # numbers of W_U that are read together


@dataclass(frozen=True, eq=False)
class EncodingStudy(Result):
    """The result of `study`.

    - `regression` (target, r2, adj_r2, cv_r2±, n_types, n_dims, rank, n_not_tokens, n_never_predicted, spread,
      logit_scale, seed): one row per target; see `interp.encoding.fit`. With `untrained`, there are also the fits of
      three untrained models, whose logits are scaled until −log α has the same spread; see
      `interp.analyses.encoding.twins`.
    - `theory` (predictor, r2, r2_corrected±, corr2, slope, beyond, beyond_corrected±, median_variance): one row per
      predictor of −log α.
    - `types` (token_id, token, alpha, predicted, pc1, pc2): one row per token of the vocabulary.
    - `dims` (basis, dim, slope, standardised_slope, spearman, spearman_shuffled, explained_variance): one row per basis
      and dimension.
    - `few_shot` (n_tokens, adj_r2, cosine, r2_of_whole): one row per size of a smaller text; see
      `interp.encoding.few_shot`.
    - `pruning` (basis, order, fraction, n_dims, kl±, js, top1_agreement±, perplexity±): one row per basis, order and
      fraction of dimensions removed; see `pruning_curve`.
    - `random_orders` (order, draw, fraction, n_dims, top1_agreement±, n_positions): one row per order: what stays the
      same without 30 % of the dimensions of W_U, by |Spearman| and in 39 random orders, all at the same positions. It
      is empty if the bases have no `axis`.
    - `pruned_texts` (basis, order, fraction, n_dims, agreement±, diversity±, repetition±, same_texts, perplexity±,
      n_texts, n_tokens): one row per basis, order and fraction: text continued greedily, for `prompts`; see
      `interp.encoding.writing.pruned_text`. It is empty unless asked for.
    - `steering` (token, token_id, group, text, shift, weights, alpha, requested, achieved, kl_others): one row per
      token, text, shift and ratio; see `steering_report`.
    - `neurons` (layer, neuron, w_out_norm, logit_var, mean_activation, delta_loss, delta_entropy, delta_kl_unigram,
      delta_loss_frozen, delta_entropy_frozen, through_unigram, exact): one row per neuron of the last MLP; see
      `frequency_neurons`. It is empty for encoders.
    - `contexts` (neuron, layer, rank, activation, before, token, after, text, position): one row per neuron with exact
      effects and token: the 20 at which its magnitude is largest. It is empty for encoders and for batches made by
      hand.
    - `dynamics` (step, adj_r2, spearman, kl_unigram_model, loss): one row per checkpoint, for `steps`, or as shipped
      with a model; see `interp.encoding.dynamics`.
    """

    analysis: ClassVar[str] = "encoding"
    page: ClassVar[str | None] = "interp.analyses.encoding.page"
    columns: ClassVar = MEANINGS
    in_paper: ClassVar = IN_PAPER

    regression: pd.DataFrame
    theory: pd.DataFrame
    types: pd.DataFrame
    dims: pd.DataFrame
    few_shot: pd.DataFrame
    pruning: pd.DataFrame
    random_orders: pd.DataFrame
    pruned_texts: pd.DataFrame
    steering: pd.DataFrame
    neurons: pd.DataFrame
    contexts: pd.DataFrame
    dynamics: pd.DataFrame

    @property
    def answer(self) -> Answer | None:
        return answer(self.regression, self.removable, self.steering_error)

    @property
    def findings(self) -> tuple[Finding, ...]:
        findings = [beyond_theory(self.theory), *as_untrained(self.regression, self.theory), *removable(self.pruning)]
        findings += [*better_than_random(self.random_orders), *steered(self.steering)]
        return over_texts(findings, self.provenance.get("intervals", {}).get("fitted", {}))

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        tables = {
            "regression": (f"−log α on the output embeddings: {self.where}", self.regression),
            "theory": ("−log α by the fit, and without it", self.theory),
            "removable": ("fraction of dimensions removed before top-1 agreement falls", self.removable),
            "steering": ("steering, ratios 1/5 to 5: median |log(achieved/requested)|", self.steering_error),
        }
        if len(rows := self.pruned_texts.query("fraction == @PRUNED")):
            tables["pruned_texts"] = (
                f"text continued without {PRUNED:.0%} of the dimensions",
                rows.drop(columns="n_dims"),
            )
        return tables

    @property
    def steering_error(self) -> pd.DataFrame:
        """The median |log(achieved/requested)| for ratios from 1/5 to 5, over the tokens of a group and over `all`
        tokens (text, shift, weights, group, error)."""
        return steering_errors(self.steering)

    @property
    def removable(self) -> pd.DataFrame:
        """The largest fractions up to which top-1 agreement stays at 99 % and at 95 %, by basis and order, or 0."""
        curves = self.pruning.groupby(["basis", "order"], sort=False)
        rows = [(*names, *(_removable(curve, level) for level in (0.99, 0.95))) for names, curve in curves]
        return pd.DataFrame(rows, columns=["basis", "order", "99%", "95%"])


def _removable(curve: pd.DataFrame, level: float) -> float:
    """The largest fraction up to which top-1 agreement stays at a level, or 0."""
    curve = curve.sort_values("fraction")
    stays = (curve["top1_agreement"] >= level).cummin()
    return float(curve.loc[stays, "fraction"].max()) if stays.any() else 0.0


def why_impossible(model: Model) -> str | None:
    """Why a model's output embeddings cannot be studied, or None if they can."""
    try:
        raw_head(model).refuse_cap("predictions without some dimensions, or steered, have no closed form")
    except ValueError as error:
        return str(error)
    return None


def lacks(model: Model, untrained: bool = False) -> dict[str, str]:
    """What the study of a model leaves out, and why. Encoders have no frequency neurons to look for."""
    absent = {"frequency neurons": None if is_encoder(model) else why_no_neurons(model)}
    absent["untrained models"] = why_no_twin(model) if untrained else None
    return {part: reason for part, reason in absent.items() if reason is not None}


@asks(EncodingOptions)
def study(model: Model, text: Text, options: EncodingOptions) -> Passes[EncodingStudy]:
    """Study the regression, pruning, steering and neurons of one model.

    `text` is anything `interp.corpora.batches` takes, or its batches. Pruning curves are averaged over about 5,000
    random positions, or fewer with a large vocabulary (1,365 with 49,152 types), neurons and random orders over about
    500, and everything else over all positions. `steps` are steps of the model's own training, which
    `interp.encoding.training.checkpoints` finds in `checkpoints/step-N` of its directory, or by its name on the hub
    (Pythia). Each checkpoint is loaded and reads the text once, only in this process.

    `prompts` are what `interp.generation.prompts` returns, or how many to take from the text: their first 10 tokens,
    continued by 50. All prompts are continued once for each order and basis without 1, 5, 10, 20, 30 and 50 % of the
    dimensions.

    With `untrained`, each of three untrained models reads the text up to six times, only in this process.

    Raises the errors of the functions it uses. Orders, bases, shifts, weights, ratios, a seed, counts or another text
    that they refuse are refused before the first pass.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> text = ["w0 w1 w2 w3 w4 w5"] * 20
        >>> found = study(toy_decoder(), text, orders=["random"], bases=["axis"], ratios=[2], progress=False)
        >>> list(found.tables)
        ['regression', 'theory', 'types', 'dims', 'few_shot', 'pruning', 'random_orders', 'pruned_texts', 'steering',
         'neurons', 'contexts', 'dynamics']
    """
    if reason := why_impossible(model):
        raise ValueError(reason)
    check_asked(options)
    orders, bases = listed(options.orders), listed(options.bases)
    steering: dict[str, Any] = {name: listed(getattr(options, name)) for name in ("shifts", "weights", "ratios")}
    seed = options.seed

    def batches(source: Text) -> Batches:
        drawn = {} if isinstance(source, Batches) else {"seed": seed}
        return predicted_batches(model, source, **options.text, mask_rate=options.mask_rate, **drawn)

    prepared = batches(text)
    other = None if options.other is None else batches(options.other)
    unigram = unigrams_of(model, prepared, options.unigram, column=options.column)
    snapshots = _checkpoints(model, prepared, options)
    sample = _prompts(model, prepared, options)
    fitted = yield from fit.passes(model, prepared, seed=seed)
    pruned, achieved, (of_neurons, contexts) = yield from side_by_side(
        _pruning(model, fitted, options),
        steering_report.passes(model, fitted, other=other, **steering, seed=seed),
        _neurons(model, fitted, unigram, seed),
    )
    tables = {
        "regression": fitted.regression,
        "theory": fitted.theory,
        "types": _types(model, fitted),
        "dims": fitted.dims,
        "few_shot": few_shot(model, fitted),
        "steering": achieved,
        "neurons": of_neurons,
        "contexts": contexts,
    }
    tables["pruning"], tables["random_orders"], intervals = pruned
    tables["pruned_texts"] = _pruned_texts(model, fitted, sample, tables["pruning"], options)
    tables["dynamics"] = _dynamics(model, prepared, unigram, snapshots)
    if options.untrained and why_no_twin(model) is None:
        twins = twin_rows(model, fitted, progress=options.progress)
        tables["regression"] = pd.concat([fitted.regression, twins], ignore_index=True)
    settings = {"orders": orders, "bases": bases, **steering, "ratios": list(map(float, steering["ratios"]))}
    settings["intervals"] = {"fitted": fitted.intervals, "pruning": intervals}
    if sample:
        settings["prompts"] = sample.settings
    record = provenance(model, prepared.about, **settings, n_tokens=fitted.n_tokens)
    return EncodingStudy(provenance=record, **tables)


def check_asked(options: EncodingOptions) -> None:
    """Raise ValueError or TypeError for options that are impossible for every model."""
    check_mask_rate(options.mask_rate)
    check_choices("orders", listed(options.orders), get_args(Order))
    check_choices("bases", listed(options.bases), get_args(Basis))
    check_steering(listed(options.ratios), listed(options.shifts), listed(options.weights))
    check_seed(options.seed)


def _pruning(
    model: Model, fitted: Fit, options: EncodingOptions
) -> Passes[tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]]:
    """The curves, the random orders, and what a result records about the intervals of the curves."""
    orders, bases = listed(options.orders), listed(options.bases)
    seed = options.seed
    curves = [PrunedPredictions(model, fitted, orders, basis, _FRACTIONS, seed) for basis in bases]
    yield [Reading("pruning", _some(fitted, curve_positions(model.cfg.d_vocab), seed), curves)]
    agreements, drawn = random_orders(model, fitted, seed=seed)
    if "axis" in bases:
        yield [Reading("random orders", _some(fitted, SCANNED, seed), [agreements])]
        drawn = drawn.join(agreements.table)
    else:
        drawn = drawn.iloc[:0].reindex(columns=ORDER_COLUMNS)
    return pd.concat([curve.table for curve in curves], ignore_index=True), drawn, curves[0].intervals


def _some(fitted: Fit, positions: int, seed: int) -> Batches:
    """The text of a fit, at about so many random positions."""
    return sample_positions(fitted.batches, min(1.0, positions / fitted.n_tokens), seed=seed)


def _prompts(model: Model, prepared: Batches, options: EncodingOptions) -> Prompts | None:
    """The prompts to continue, if any were asked for. Raises the errors of decoding and of `prompts`."""
    if options.prompts is None:
        return None
    check_decodes(model)
    if isinstance(options.prompts, Prompts):
        check_prompts(model, options.prompts)
        return options.prompts
    if prepared.corpus is None:
        raise ValueError("prompts are cut from the text, found token ids; give the text, or leave prompts out")
    return prompts(model, prepared.corpus, n=options.prompts, bos=prepared.settings["bos"], seed=options.seed)


def _pruned_texts(
    model: Model, fitted: Fit, sample: Prompts | None, pruning: pd.DataFrame, options: EncodingOptions
) -> pd.DataFrame:
    """The table `pruned_texts`; without prompts, an empty one."""
    if sample is None:
        return pd.DataFrame(columns=PRUNED_TEXTS)
    curve = pruning[pruning["fraction"].isin(_WRITTEN)]
    return pruned_text(model, sample, fit=fitted, curve=curve, seed=options.seed, progress=options.progress)


def _neurons(model: Model, fitted: Fit, unigram: Unigrams, seed: int) -> Passes[tuple[pd.DataFrame, pd.DataFrame]]:
    """The effects of neurons, and the tokens at which those are largest whose effects are exact."""
    if why_no_neurons(model):
        return pd.DataFrame(columns=NEURONS), _named(pd.DataFrame(columns=CONTEXTS))
    share = min(1.0, SCANNED / fitted.n_tokens)
    scan = frequency_neurons.passes(model, fitted.batches, unigram=unigram, share=share, seed=seed)
    effects, tokens = yield from side_by_side(scan, _tokens(model, fitted.batches))
    exact = effects.loc[effects["exact"], ["neuron", "layer"]]
    return effects, _named(tokens.table(fitted.batches, exact.itertuples(index=False, name=None)))


def _tokens(model: Model, read: Batches) -> Passes[LargestTokens]:
    """The tokens at which the neurons of the last MLP are largest."""
    layer = model.cfg.n_layers - 1
    tokens = LargestTokens(model, {layer: hook_name(model, "mlp_post", layer)}, view(model).d_mlp)
    yield [Reading("largest tokens", read, [tokens])]
    return tokens


def _named(contexts: pd.DataFrame) -> pd.DataFrame:
    return contexts.rename(columns={"dim": "neuron", "state": "layer"})


def _types(model: Model, fitted: Fit) -> pd.DataFrame:
    ids = np.flatnonzero(fitted.used)
    directions = torch.from_numpy(np.vstack([fitted.slope, fitted.components[:2]]))
    along, *axes = raw_head(model).embeddings.of(fitted.used).dot(directions).numpy()
    table = pd.DataFrame({"token_id": ids, "token": token_names(model, ids), "alpha": fitted.alpha[ids]})
    table["predicted"] = np.exp(-(along + fitted.intercept))
    return table.assign(**{f"pc{number}": axis - axis.mean() for number, axis in enumerate(axes, 1)})


def _checkpoints(model: Model, prepared: Batches, options: EncodingOptions) -> Iterator[tuple[int, Model]] | None:
    """The checkpoints of the steps that were asked for, or None."""
    if options.steps is None:
        return None
    if prepared.corpus is None:
        raise ValueError("other checkpoints read the text too, found token ids; give the text, or leave steps out")
    source = origin(model)
    if source.adapter is not None:
        raise ValueError("steps of training are those of the model without its adapter; leave steps out")
    return checkpoints(source.directory or source.name, listed(options.steps))


def _dynamics(
    model: Model, prepared: Batches, unigram: Unigrams, snapshots: Iterator[tuple[int, Model]] | None
) -> pd.DataFrame:
    """The dynamics of these checkpoints on the same text; or else the table that ships with a model (`dynamics.csv` in
    its directory), or an empty table."""
    if snapshots is not None:
        settings = {name: prepared.settings[name] for name in ("layout", "context", "bos", "eos", "mask_rate", "seed")}
        return dynamics(snapshots, prepared.corpus, unigram=unigram, settings=settings)
    directory = origin(model).directory
    if directory is not None and (path := directory / "dynamics.csv").is_file():
        return pd.read_csv(path)
    return pd.DataFrame(columns=COLUMNS, dtype=float)


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `study` with these options, without a model: a pass for the fit; passes for everything that
    needs the fit; those of untrained models and other checkpoints; and the steps in which prompts are continued.

    Pruning and neurons read some positions, whose share of the text is estimated at four characters per token. A text
    that is not a local file is taken to be long.

    Raises the errors of `interp.models.shapes.shape`.
    """
    size = shape_with(name, options)
    if size.why_no_head:
        return Cost(lines=[f"token probability: {size.why_no_head}"])
    chosen = EncodingOptions.of(options)
    orders, bases, shifts = listed(chosen.orders), listed(chosen.bases), listed(chosen.shifts)
    n_tokens = min(_STEERED, size.d_vocab)
    ways = len(shifts) + ("regression" in shifts) * (len(listed(chosen.weights)) - 1)
    n = n_tokens * len(listed(chosen.ratios)) * ways
    tokens = roughly_tokens(data, limit=chosen.limit, column=chosen.column)
    whole = MASK_RATE if size.encoder else 1.0
    positions = curve_positions(size.d_vocab), SCANNED
    share, few = (0.0 if tokens is None else min(whole, read / tokens) for read in positions)
    passes = [
        LogProbabilities.cost(size, 1, grouped=True, what="token probability"),
        at_head(size, what="token probability", sums=SiteMean.n_bytes(size, width=size.d_model)),
        *(PrunedPredictions.cost(size, orders, len(_FRACTIONS), share) for _ in bases),
        LogOdds.cost(size, n_tokens),
        SteeredMeans.cost(size, n),
    ]
    if "axis" in bases:
        passes.append(Agreements.cost(size, few))
    if not size.encoder:
        largest = LargestTokens.n_bytes(size, [size.n_layers - 1], width=size.d_mlp)
        passes += [*neurons_cost(size, few), Pass(what="largest tokens", step=1, sums=largest)]
    for number in range(0 if chosen.steps is None else len(listed(chosen.steps))):  # each is a second model
        fields: Any = {"what": "dynamics", "text": "text, by checkpoints", "copies": 4 * size.parameters}
        passes.append(MeanPredictions.cost(size, 1, step=30 + number, **fields))
    if chosen.untrained:
        passes += [ScaledPredictions.cost(size, 5 + number) for number in range(len(SEEDS) * MOST_PASSES)]
    fit_bytes = 8 * (5 * _BLOCK + (6 + 8 * MOST) * size.d_vocab + 4 * size.d_model**2)
    numbers = {"steered": n}
    lines = []
    if isinstance(chosen.prompts, int) and not size.encoder:
        rows = min(chosen.prompts, batch_rows(PROMPT_TOKENS + NEW_TOKENS))
        passes.append(continued(size, rows, PROMPT_TOKENS, NEW_TOKENS, step=4))
        settings = 1 + len(orders) * len(bases) * (len(_WRITTEN) - 1)
        numbers["new_tokens"] = settings * chosen.prompts * NEW_TOKENS
        lines.append(f"text without some dimensions: {settings} settings, {numbers['new_tokens']:,} new tokens")
    between = max(fit_bytes, 16 * n * size.d_vocab)
    return Cost(passes=tuple(passes), between=between, numbers=numbers, lines=lines)
