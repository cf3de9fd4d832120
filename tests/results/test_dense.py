"""Tables kept as labelled arrays: the same rows as a tidy table, whole, in slices, and from a mapped file."""

import json
import tracemalloc
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import psutil
import pytest
from naming import naming

from interp.analyses.attention import AttentionStudy, gaps
from interp.analyses.attention.shares import largest_gaps
from interp.instruments.scores import SCORES
from interp.results import dense as module
from interp.results.dense import Dense
from interp.results.result import Result

LABELS = {"layer": [4, 0], "head": range(3), "key_class": ["comma", "cls", "other"], "dim": range(5)}
KEY = tuple(LABELS)


def arrays(rng: np.random.Generator) -> dict[str, Any]:
    """One column that varies along all axes, one along some, and one that is constant."""
    shape = tuple(map(len, LABELS.values()))
    n_pairs = ("layer", "key_class"), rng.integers(99, size=(2, 3))
    return {"mean": rng.normal(size=shape), "zero": np.broadcast_to(0.0, shape), "n_pairs": n_pairs}


@pytest.fixture
def made() -> dict[str, Any]:
    return arrays(np.random.default_rng(0))


@pytest.fixture
def dense(made: dict[str, Any]) -> Dense:
    return Dense.of(LABELS | made, KEY)


@pytest.fixture
def tidy(made: dict[str, Any]) -> pd.DataFrame:
    """The rows, made one by one."""
    rows = []
    for i, j, k, m in product(*(range(len(of_dim)) for of_dim in LABELS.values())):
        labels = [list(of_dim)[place] for of_dim, place in zip(LABELS.values(), (i, j, k, m), strict=True)]
        rows.append((*labels, made["mean"][i, j, k, m], 0.0, made["n_pairs"][1][i, k]))
    return pd.DataFrame(rows, columns=[*KEY, "mean", "zero", "n_pairs"])


def test_the_table_is_tidy(dense: Dense, tidy: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(dense.table, tidy, check_exact=True)
    assert len(dense) == len(tidy) == 90
    assert repr(dense) == "Dense(layer 2 × head 3 × key_class 3 × dim 5: mean, zero, n_pairs)"
    assert dense.arrays["n_pairs"].dims == ("layer", "key_class")


def test_columns_keep_their_order(made: dict[str, Any]) -> None:
    """The order of the columns need not be that of the rows."""
    columns = {"b": [3, 4], "value": np.arange(6).reshape(3, 2), "a": ["z", "y", "x"]}
    table = Dense.of(columns, ("a", "b")).table
    expected = {"b": [3, 4] * 3, "value": np.arange(6), "a": ["z", "z", "y", "y", "x", "x"]}
    pd.testing.assert_frame_equal(table, pd.DataFrame(expected))


@pytest.mark.parametrize(
    ("labels", "query"),
    [
        ({"layer": 0, "head": 2}, "layer == 0 and head == 2"),
        ({"key_class": "cls", "dim": np.int64(3)}, "key_class == 'cls' and dim == 3"),
        ({"head": [0, 2], "key_class": ["comma", "other"]}, "head != 1 and key_class != 'cls'"),
        ({"dim": range(2, 4)}, "dim in (2, 3)"),
        ({"layer": pd.Series([0])}, "layer == 0"),
        ({}, "dim >= 0"),
        ({"dim": []}, "dim < 0"),
    ],
)
def test_slices(labels: dict[str, Any], query: str, dense: Dense, tidy: pd.DataFrame) -> None:
    expected = tidy.query(query).reset_index(drop=True)
    pd.testing.assert_frame_equal(dense(**labels), expected, check_exact=True)


def test_labels_that_are_not_there(dense: Dense) -> None:
    for labels, values in (
        ({"lay": 1}, ("'lay'", "layer, head, key_class, dim")),
        ({"layer": 1}, ("layer 1", "4, 0")),
        ({"layer": [0, "0"]}, ("layer '0'",)),
        ({"key_class": ["cls", "verb"]}, ("key_class 'verb'", "comma, cls, other")),
        ({"dim": -1}, ("dim -1", "0, 1, 2, 3, 4")),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            dense(**labels)
    many = Dense.of({"dim": range(99), "mean": np.zeros(99)}, ["dim"])
    with pytest.raises(ValueError, match=naming("dim 99", "0, 1, …, 98")):
        many(dim=99)


def test_of_a_table_in_any_order(dense: Dense, tidy: pd.DataFrame) -> None:
    again = Dense.of_table(tidy, KEY, {"n_pairs": ("layer", "key_class")})
    assert again.arrays.identical(dense.arrays)
    mixed = Dense.of_table(tidy.sample(frac=1, random_state=0), KEY)
    pd.testing.assert_frame_equal(
        mixed.table.sort_values([*KEY], ignore_index=True), tidy.sort_values([*KEY], ignore_index=True)
    )
    none = Dense.of_table(tidy.iloc[:0], KEY, {"n_pairs": ("layer", "key_class")})
    assert len(none) == 0
    pd.testing.assert_frame_equal(none.table, tidy.iloc[:0], check_index_type=False)
    assert none.mean("head", ["mean"]).empty


def test_what_is_not_a_whole_table_is_refused(made: dict[str, Any], tidy: pd.DataFrame) -> None:
    whole = "2 layer × 3 head × 3 key_class × 5 dim"
    twice = pd.concat([tidy.iloc[1:], tidy.iloc[1:2]])
    fewer = {"mean": ("layer", "head")}
    for call, values in (
        (lambda: Dense.of_table(tidy.iloc[1:], KEY), (89, whole)),
        (lambda: Dense.of_table(twice, KEY), (90, whole)),
        (lambda: Dense.of_table(tidy.drop(columns="dim"), KEY), ("columns", "dim", "layer")),
        (
            lambda: Dense.of_table(tidy, KEY, fewer),
            ("mean", "layer, head"),
        ),
        (lambda: Dense.of({"a": [1]}, ("a", "b")), ("labels", "b", "a")),
        (lambda: Dense.of({"a": [1, 1], "x": np.zeros(2)}, "a"), ("labels", "a")),
        (lambda: Dense.of({"a": [1, 2], "x": np.zeros(3)}, "a"), ("dimension", "'a'")),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            call()


def test_means_and_parts(dense: Dense, tidy: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    holes = dense.arrays["mean"].where(dense.arrays["head"] != 1)
    gone = Dense(dense.arrays.assign(mean=holes), dense.dims, dense.columns)
    expected = tidy[tidy["head"] != 1].groupby(["layer", "key_class", "dim"], sort=False)[["mean"]].mean().reset_index()
    for at_once in (1, 45, 1_000):
        monkeypatch.setattr(module, "_AT_ONCE", at_once)
        assert [len(part) for part in gone.parts()] == ([90] if at_once == 1_000 else [45, 45])
        pd.testing.assert_frame_equal(gone.mean("head", ["mean"]), expected)
    for over in ("layer", "verbs"):
        with pytest.raises(ValueError, match=naming(over, "head, key_class, dim")):
            dense.mean(over, ["mean"])


def test_a_file_holds_all_of_it(dense: Dense, tidy: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "scores.safetensors"
    dense.save(path)
    again = Dense.load(path)
    pd.testing.assert_frame_equal(again.table, tidy, check_exact=True)
    assert again.arrays.identical(dense.arrays)
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    some = Dense.of({"a": [1], "x": np.zeros(1)}, "a")
    some.save(path)
    pd.testing.assert_frame_equal(again.table, tidy, check_exact=True)


@dataclass(frozen=True, eq=False)
class Kept(Result):
    analysis: ClassVar[str] = "kept"

    few: pd.DataFrame
    many: Dense = field(metadata={"dims": KEY, "fewer": {"n_pairs": ("layer", "key_class")}})


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("most", [89, 90])
def test_a_result_is_saved_as_a_table_or_as_arrays(
    most: int, dense: Dense, tidy: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept({"model": "m"}, pd.DataFrame({"a": [1]}), dense)
    monkeypatch.setattr(module, "MOST_ROWS", most)
    folder = kept.save(tmp_path)
    files = {89: "many.safetensors", 90: "many.parquet"}
    assert names(folder) == {"few.parquet", "result.json", files[most]}
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "all files have the same permissions"
    again = Kept.load(tmp_path)
    pd.testing.assert_frame_equal(again.many.table, tidy, check_exact=True)
    assert again.many.arrays.identical(dense.arrays)
    monkeypatch.setattr(module, "MOST_ROWS", 179 - most)
    again.save(tmp_path, overwrite=True)
    assert names(folder) == {"few.parquet", "result.json", files[179 - most]}
    assert Kept.load(tmp_path).many.arrays.identical(dense.arrays)


def test_runs_of_earlier_versions_are_read_and_replaced(dense: Dense, tidy: pd.DataFrame, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    for name, table in {"few": pd.DataFrame({"a": [1]}), "many": tidy}.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    about = {"analysis": "kept", "tables": ["few", "many"], "provenance": {}}
    (folder / "result.json").write_text(json.dumps(about))
    kept = Kept.load(tmp_path)
    assert kept.many.arrays.identical(dense.arrays)
    kept.save(tmp_path, overwrite=True)
    (folder / "many.safetensors").write_text("mine")
    with pytest.raises(FileExistsError, match=naming("many.safetensors", "interp")):
        kept.save(tmp_path, overwrite=True)


def test_damaged_arrays_are_refused(dense: Dense, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 0)
    path = Kept({}, pd.DataFrame({"a": [1]}), dense).save(tmp_path) / "many.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-8], whole[:20], b"", b"PAR1xx", whole.replace(b'"head\\"', b'"haed\\"', 1)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=naming(path)):
            Kept.load(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=naming("many")):
        Kept.load(tmp_path)


def gaps_by_pandas(scores: pd.DataFrame) -> pd.DataFrame:
    """The gaps of a table, one group at a time."""
    table = scores[scores["key_class"] != "other"]
    beside = ["layer", "head", "dim"]
    other = scores[scores["key_class"] == "other"].set_index(beside)["mean"].rename("other")
    table = table.join(other, on=beside)
    table["gap"] = table["mean"] - table["other"]
    groups = ["layer", "head", "key_class"]

    def least(shares: pd.Series) -> int:
        return 0 if shares.isna().any() else 1 + int((shares.sort_values(ascending=False).cumsum() < 0.9 - 1e-12).sum())

    for share, n_dims, part in (
        ("share", "n_dims_90", table["gap"]),
        ("abs_share", "n_dims_90_abs", table["gap"].abs()),
    ):
        by = [table[name] for name in groups]
        table[share] = part / part.groupby(by, sort=False).transform("sum").replace(0, np.nan)
        table[n_dims] = table[share].groupby(by, sort=False).transform(least).astype(int)
    shares = table.groupby(groups, sort=False)["share"]
    table["rank"] = shares.rank(ascending=False, method="first", na_option="bottom").astype(int)
    columns = [*KEY, "gap", "share", "rank", "n_dims_90", "abs_share", "n_dims_90_abs"]
    return table[columns].reset_index(drop=True)


@pytest.mark.parametrize("centred", [True, False])
def test_gaps_of_arrays_are_those_of_the_table(centred: bool) -> None:
    """One head makes no difference, and one has two identical dimensions."""
    rng = np.random.default_rng(1)
    labels = LABELS | {"dim": range(40)}
    mean = rng.normal(size=(2, 3, 3, 40)) ** 3
    mean[1, 2] = 1.0
    mean[0, 0, :, 7] = mean[0, 0, :, 9]
    noise = rng.normal(size=mean.shape)
    columns = {"mean": noise, "centred_mean": mean} if centred else {"mean": mean, "centred_mean": mean * np.nan}
    scores = Dense.of(labels | columns, KEY)
    found = gaps(scores)
    assert found.arrays["n_dims_90"].dims == KEY[:3]
    pd.testing.assert_frame_equal(found.table, gaps(scores.table), check_exact=True)
    expected = gaps_by_pandas(Dense.of(labels | {"mean": mean}, KEY).table)
    pd.testing.assert_frame_equal(found.table, expected, rtol=1e-12)
    assert (found(layer=0, head=2)["n_dims_90_abs"] == 0).all()
    assert found(layer=0, head=2)["share"].isna().all()


def test_gaps_of_arrays_that_lack_something() -> None:
    mean = np.ones((2, 3, 3, 5))
    mean[1, 2, 1, 3] = np.nan
    row = "{'layer': 0, 'head': 2, 'key_class': 'cls', 'dim': 3}"
    with pytest.raises(ValueError, match=naming("scores", "mean", row, "'other'")):
        gaps(Dense.of(LABELS | {"mean": mean}, KEY))
    none = gaps(Dense.of(LABELS | {"key_class": ["a", "b", "c"], "mean": np.ones((2, 3, 3, 5))}, KEY))
    assert len(none) == 0
    assert [*none.table] == [*KEY, "gap", "share", "rank", "n_dims_90", "abs_share", "n_dims_90_abs"]
    assert none.mean("head", ["gap"]).empty
    for dims, columns in ((KEY[::-1], {"mean": np.ones((5, 3, 3, 2))}), (KEY, {"means": np.ones((2, 3, 3, 5))})):
        with pytest.raises(ValueError, match=naming("mean", "layer, head, key_class, dim")):
            gaps(Dense.of(LABELS | columns, dims))


def study_of(scores: Dense, apart: Dense) -> AttentionStudy:
    empty = {name: pd.DataFrame() for name in AttentionStudy.table_names()}
    return AttentionStudy(provenance={}, scores=scores, gaps=apart, **empty)


@pytest.mark.slow
def test_a_large_array_never_becomes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps, what a page says about them, and the file are made in parts; the tidy table would take eighteen times as
    much memory as the scores."""
    monkeypatch.setattr(module, "MOST_ROWS", 100_000)
    monkeypatch.setattr(module, "_AT_ONCE", 50_000)
    labels = {"layer": range(30), "head": range(8), "key_class": ["cls", "sep", "other"], "dim": range(2_000)}
    shape = tuple(map(len, labels.values()))
    mean = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    scores = Dense.of(labels | {"mean": mean}, KEY)
    scores.mean("head", ["mean"])  # late imports are not counted
    tracemalloc.start()
    study = study_of(scores, gaps(scores))
    assert {str(array.dtype) for array in study.gaps.arrays.data_vars.values()} == {"float32", "int32"}
    assert len(largest_gaps(study.gaps)) == 60
    largest = study.largest_gap
    study.save(tmp_path)
    loaded = AttentionStudy.load(tmp_path)
    assert loaded.largest_gap == largest
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    made = sum(array.nbytes for array in study.gaps.arrays.data_vars.values())
    assert peak < made + 25e6, "a tidy table of the gaps takes 80 MB"
    difference = mean[:, :, :2].astype(float) - mean[:, :, 2:]
    np.testing.assert_array_equal(study.gaps.arrays["gap"], difference.astype(np.float32))
    place = np.unravel_index(np.abs(difference).argmax(), difference.shape)
    assert tuple(largest.values()) == (*place[:2], labels["key_class"][place[2]], place[3])
    assert names(tmp_path / "attention") >= {"scores.safetensors", "gaps.safetensors", "totals.parquet"}


def sparse_file(
    path: Path, labels: dict[str, Any], columns: list[str], start: tuple[int, ...], row: np.ndarray
) -> None:
    """Columns of zeros that take no space on disk, except for one row of the last column."""
    shape = [len(of_dim) for of_dim in labels.values()]
    size = 4 * int(np.prod(shape))
    described = {"dims": [*labels], "labels": {name: [*of_dim] for name, of_dim in labels.items()}}
    described["columns"] = {name: [name] for name in labels} | {name: [*labels] for name in columns}
    header: dict[str, Any] = {"__metadata__": {"arrays": json.dumps(described)}}
    for number, name in enumerate(columns):
        offsets = [number * size, (number + 1) * size]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + len(columns) * size)
        place = int(np.ravel_multi_index((*start, 0), shape))
        file.seek(8 + len(text) + (len(columns) - 1) * size + 4 * place)
        file.write(row.astype(np.float32).tobytes())


def test_a_70B_model_opens_without_being_read(tmp_path: Path) -> None:
    labels = {"layer": range(80), "head": range(64), "key_class": ["a", "b", "c", "d", "other"], "dim": range(8_192)}
    row = np.arange(8_192)
    folder = tmp_path / "attention"
    small = Dense.of(
        LABELS | {"mean": np.ones((2, 3, 3, 5)), "n_pairs": (SCORES["fewer"]["n_pairs"], np.ones((2, 3)))}, KEY
    )
    study_of(small, gaps(small)).save(tmp_path)
    AttentionStudy.load(tmp_path).scores(layer=0)
    (folder / "scores.parquet").unlink()
    sparse_file(folder / "scores.safetensors", labels, ["mean", "centred_mean"], (3, 2, 1), row)
    before = psutil.Process().memory_info().rss
    study = AttentionStudy.load(tmp_path)
    table = study.scores(layer=3, head=2)
    assert psutil.Process().memory_info().rss - before < 50e6
    assert len(study.scores) == 209_715_200
    assert len(table) == 5 * 8_192
    pd.testing.assert_series_equal(
        table.loc[table["key_class"] == "b", "centred_mean"].reset_index(drop=True),
        pd.Series(row, name="centred_mean", dtype=np.float32),
    )
    assert table["mean"].eq(0).all()
