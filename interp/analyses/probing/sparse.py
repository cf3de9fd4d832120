"""A single sparse probe with scikit-learn's interface."""

from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from interp.analyses.probing.fitting import fit_dense, fit_sparse, welch
from interp.analyses.probing.options import STEPS, Scaling
from interp.support.checks import check_choice, whole_number

__all__ = ["SparseProbe"]
__dir__ = __all__.copy


class SparseProbe(ClassifierMixin, BaseEstimator):
    """A linear probe without intercept that reads few dimensions: `p = σ(w ⊙ m · x)`.

    `"l0"` learns the gates m (`interp.probing.fitting.fit_sparse`). `"topk"` opens the k dimensions with the largest
    Welch t, and fits an L2 logistic regression (C = 1) to them (Gurnee et al. 2023). `"dense"` opens all dimensions.

    Learned attributes are `coef_` (w ⊙ m, `[d]`, for scaled inputs), `gate_` (m, `[d]`), `mean_`, `scale_`,
    `classes_`, `n_open_` and `n_features_in_`.

    Args:
        method: how dimensions are chosen.
        l0_strength: λ of `"l0"`, in (0, 1]. A small value opens few gates.
        k: the number of dimensions of `"topk"`.
        scaling: `"standard"` subtracts the training mean and divides by the training SD. `"rms"` only divides, by the
            root mean square of the inputs over samples and dimensions, so that λ and C do not depend on their unit.
            `"none"` leaves inputs as they are. Without a mean of 0, a probe without intercept uses a dimension with a
            large mean as an intercept.
        steps: the number of optimiser steps of `"l0"`.
        seed: the seed for its weights, gates and noise.
    """

    def __init__(
        self,
        method: Literal["l0", "topk", "dense"] = "l0",
        *,
        l0_strength: float | int = 0.2,
        k: int = 40,
        scaling: Scaling = "standard",
        steps: int = STEPS,
        seed: int = 0,
    ) -> None:
        self.method = method
        self.l0_strength = l0_strength
        self.k = k
        self.scaling = scaling
        self.steps = steps
        self.seed = seed

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> "SparseProbe":
        """Fit to samples `[n, d]` and two classes.

        Raises ValueError for NaN, for any number of classes other than two, an unknown method or scaling, λ outside (0,
        1], fewer steps than one, a seed outside 0 … 2**63 − 1, and k > d.
        """
        check_choice("scaling", self.scaling, get_args(Scaling))
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32))
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            n = "1 class" if len(self.classes_) == 1 else f"{len(self.classes_)} classes"
            raise ValueError(f"Only binary classification is supported. The number of classes must be two, found {n}")
        d = X.shape[1]
        self.mean_ = X.mean(0, dtype=np.float64)
        spread = X.std(0, dtype=np.float64)
        if self.scaling != "standard":
            self.mean_ = np.zeros(d)
            rms = float(np.sqrt(np.mean(X**2, dtype=np.float64)))
            spread = np.full(d, rms if self.scaling == "rms" and rms > 0 else 1.0)
        self.scale_ = np.where(spread > 1e-9 * np.abs(self.mean_), spread, np.inf)
        target = torch.from_numpy(labels.astype(X.dtype))[None, :, None]
        if self.method == "l0":
            Z = self._standardised(X)
            fitted = fit_sparse(Z, target, l0_strengths=[self.l0_strength], seeds=[self.seed], steps=self.steps)
            self.gate_ = fitted.gate[0, 0].double().numpy()
            self.coef_ = fitted.coefficients[0, 0].double().numpy()
        elif self.method in ("topk", "dense"):
            chosen = np.ones(d, dtype=bool)
            if self.method == "topk":
                if not 1 <= whole_number(self.k, "k") <= d:
                    raise ValueError(f"k must be 1 … {d} dimensions, found {self.k}")
                strengths = np.abs(welch(X[labels == 1], X[labels == 0])[0])
                chosen[np.argsort(-strengths, kind="stable")[self.k :]] = False
            self.gate_ = chosen.astype(np.float64)
            self.coef_ = np.zeros(d)
            self.coef_[chosen] = fit_dense(self._standardised(X, chosen), target)[0, 0].numpy()
        else:
            raise ValueError(f"unknown method {self.method!r}; expected 'l0', 'topk' or 'dense'")
        self.n_open_ = int((self.gate_ > 0).sum())
        return self

    def _standardised(
        self, X: Float[np.ndarray, "n d"], chosen: Bool[np.ndarray, " d"] | slice = slice(None)
    ) -> Float[Tensor, "1 n chosen"]:
        Z = (X[:, chosen] - self.mean_[chosen]) / self.scale_[chosen]
        return torch.from_numpy(Z.astype(X.dtype))[None]

    def decision_function(self, X: Any) -> Float[np.ndarray, " n"]:
        """`(w ⊙ m) · x` for each sample. A value above 0 means the second class."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        return ((X - self.mean_) / self.scale_) @ self.coef_

    def predict(self, X: Any) -> Shaped[np.ndarray, " n"]:
        """The class of each sample."""
        above = self.decision_function(X) > 0
        return self.classes_[above.astype(int)]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n 2"]:
        """Probabilities of both classes, `[n, 2]`."""
        p = expit(self.decision_function(X))
        return np.stack([1 - p, p], 1)
