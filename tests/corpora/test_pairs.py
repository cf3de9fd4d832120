"""Minimal pairs: what the generator guarantees, what the sources accept, and every refusal."""

import dataclasses
import hashlib
import json
import random
import re
import sys
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import pandas as pd
import pytest
from naming import naming
from toys import ROOT

from interp.corpora import controls, pairs, templates
from interp.support import paths
from interp.support.paths import HUB_PAIRS

LEXICON = json.loads((paths.BUNDLED / "lexicon.json").read_text(encoding="utf-8"))
BALANCED = [task for task, entry in LEXICON["tasks"].items() if entry["balanced"]]
SAME_WORDS = ("npi_question", "npi_scope", "left_branch")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pairs.generate(n_per_task=1000, seed=3)


def words(sentence: str) -> list[str]:
    return re.findall(r"[a-z']+", sentence.lower())


def digest(table: pd.DataFrame) -> str:
    return hashlib.sha256(table.to_csv(index=False, lineterminator="\n").encode()).hexdigest()


def write_jsonl(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# The generator


def test_columns_and_ids(table: pd.DataFrame) -> None:
    assert tuple(table.columns) == pairs.COLUMNS
    assert list(table["UID"].unique()) == list(pairs.TASKS)
    assert len(pairs.TASKS) >= 12
    for _, task in table.groupby("UID"):
        assert list(task["pairID"]) == [str(number) for number in range(1000)]
    assert set(table["field"]) <= {"morphology", "syntax", "semantics", "syntax_semantics"}
    assert (table["linguistics_term"] != "").all()


def test_seed_decides_everything() -> None:
    first, again, other = (pairs.generate(n_per_task=40, seed=seed) for seed in (0, 0, 1))
    assert digest(first) == digest(again)
    assert digest(first) != digest(other)
    expected = "d533bf3754cd44e345e736a60b9122ec93957cfb37cf2b54e455eb953b78d11e"
    assert digest(first) == expected, "the pairs have changed: the lexicon or the drawing is different"


def test_a_task_does_not_depend_on_the_others_or_on_the_number(table: pd.DataFrame) -> None:
    subset = pairs.generate(n_per_task=25, seed=3, tasks=["left_branch", "npi_ever"])
    assert list(subset["UID"].unique()) == ["left_branch", "npi_ever"]
    for task, part in subset.groupby("UID"):
        whole = table[table["UID"] == task].head(25).reset_index(drop=True)
        pd.testing.assert_frame_equal(part.reset_index(drop=True), whole)


def test_no_pair_occurs_twice(table: pd.DataFrame) -> None:
    assert not table.duplicated(["UID", "sentence_good", "sentence_bad"]).any()


def test_every_pair_of_a_template_is_made_once() -> None:
    template = templates.Template("The {person1.sg} and the {person2.pl} [is|are] {so} {easy}.")
    drawn = [template.pair(number) for number in range(template.n_pairs)]
    assert template.n_pairs == len(set(drawn)) == 40 * 39 * 3 * 5
    assert sorted(templates.shuffled(1000, random.Random(0))) == list(range(1000))


def test_asking_for_all_pairs_gives_all_and_one_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"field": "", "linguistics_term": "", "templates": ["[A|B] {easy}.", "{so} [C|D]."]}
    monkeypatch.setitem(templates.LEXICON["tasks"], "left_branch", entry)
    table = pairs.generate(n_per_task=8, tasks=["left_branch"])
    assert table["sentence_good"].nunique() == 8
    with pytest.raises(ValueError, match=naming("n_per_task", 9, "left_branch", 8)):
        pairs.generate(n_per_task=9, tasks=["left_branch"])


def test_enough_pairs_in_every_task() -> None:
    for task, entry in LEXICON["tasks"].items():
        assert sum(templates.Template(text).n_pairs for text in entry["templates"]) >= 1000, task


def test_sentences_are_whole_and_well_formed(table: pd.DataFrame) -> None:
    sentences = pd.concat([table["sentence_good"], table["sentence_bad"]])
    assert sentences.str.fullmatch(r"[A-Z][A-Za-z' ]+[.?]").all()
    assert not sentences.str.contains("  ").any()
    assert not sentences.str.contains(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]").any()
    text = (paths.BUNDLED / "lexicon.json").read_text(encoding="utf-8")
    assert not re.search(r"\b[Aa]n? [{[]", text), "before a slot, a/an must be chosen"


def test_pairs_differ_minimally(table: pd.DataFrame) -> None:
    for task, first, second in zip(table["UID"], table["sentence_good"], table["sentence_bad"], strict=True):
        good, bad = words(first), words(second)
        assert good != bad
        assert len(good) == len(bad)
        if task in SAME_WORDS:
            assert sorted(good) == sorted(bad)
        else:
            assert sum(g != b for g, b in zip(good, bad, strict=True)) == 1, (first, second)


@pytest.mark.parametrize("task", BALANCED)
def test_words_do_not_tell_good_from_bad(table: pd.DataFrame, task: str) -> None:
    rows = table[table["UID"] == task]
    in_good, in_bad = Counter[str](), Counter[str]()
    for good, bad in zip(rows["sentence_good"], rows["sentence_bad"], strict=True):
        in_good.update(words(good))
        in_bad.update(words(bad))
    for word in in_good | in_bad:
        if in_good[word] + in_bad[word] >= 60:
            assert 0.35 <= in_good[word] / (in_good[word] + in_bad[word]) <= 0.65, word


@pytest.mark.parametrize("task", BALANCED)
def test_a_bag_of_words_is_near_chance(table: pd.DataFrame, task: str) -> None:
    rows = table[table["UID"] == task]
    learned = Counter[str]()
    for good, bad in zip(rows["sentence_good"][:500], rows["sentence_bad"][:500], strict=True):
        learned.update(words(good))
        learned.subtract(words(bad))
    score = 0.0
    for good, bad in zip(rows["sentence_good"][500:], rows["sentence_bad"][500:], strict=True):
        margin = sum(learned[word] for word in words(good)) - sum(learned[word] for word in words(bad))
        score += 0.5 if margin == 0 else float(margin > 0)
    assert 0.4 <= score / 500 <= 0.6


def test_agreement_is_as_often_singular_as_plural(table: pd.DataFrame) -> None:
    rows = table[table["UID"] == "agreement_relative"]
    singular = sum(re.match(r"The \w+s wh", sentence) is None for sentence in rows["sentence_good"])
    assert singular == 500


def test_generate_refuses() -> None:
    with pytest.raises(ValueError, match=naming("n_per_task", 1, 0)):
        pairs.generate(n_per_task=0)
    with pytest.raises(ValueError, match=naming("npi_evr", "npi_ever")):
        pairs.generate(tasks=["npi_evr"])
    with pytest.raises(ValueError, match=naming("zzzz", "agreement_preposition")):
        pairs.generate(tasks=["zzzz"])
    assert set(pairs.generate(tasks="npi_ever", n_per_task=2)["UID"]) == {"npi_ever"}
    with pytest.raises(ValueError, match=naming("tasks", "None")):
        pairs.generate(tasks=[])


# The sources


GOOD = {"sentence_good": "She was here.", "sentence_bad": "She were here."}
OTHER = {"sentence_good": "They were here.", "sentence_bad": "They was here."}


def test_bundled_is_the_generator() -> None:
    pd.testing.assert_frame_equal(
        pairs.load("bundled", limit=7, tasks=["causative"]), pairs.generate(n_per_task=7, tasks=["causative"])
    )
    assert len(pairs.load("bundled", tasks=["causative"])) == 500


def test_defaults_of_a_users_table(tmp_path: Path) -> None:
    table = pairs.load(pd.DataFrame([GOOD, OTHER]).assign(extra=1).set_index("extra"))
    assert tuple(table.columns) == pairs.COLUMNS
    assert table.iloc[1].to_dict() == {
        **OTHER,
        "UID": "pairs",
        "pairID": "1",
        "field": "",
        "linguistics_term": "",
    }
    for name in ("was_were.csv", "was_were.csv.gz"):
        pd.DataFrame([GOOD, OTHER]).to_csv(tmp_path / name, index=False)
        assert set(pairs.load(str(tmp_path / name))["UID"]) == {"was_were"}


def test_every_format_gives_the_same_table(tmp_path: Path) -> None:
    made = pairs.generate(n_per_task=3, tasks=["npi_scope", "much_many"])
    made.to_csv(tmp_path / "t.csv", index=False)
    made.to_parquet(tmp_path / "t.parquet")
    made.astype({"pairID": int}).to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    made.to_json(tmp_path / "t.json", orient="records")
    made.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    made.to_csv(tmp_path / "t.csv.gz", index=False)
    made.to_csv(tmp_path / "T.CSV", index=False)
    for source in ("t.csv", "t.parquet", "t.jsonl", "t.json", "t.tsv", "t.csv.gz", "T.CSV"):
        pd.testing.assert_frame_equal(pairs.load(tmp_path / source), made)
    pd.testing.assert_frame_equal(pairs.load(tmp_path), made)
    pd.testing.assert_frame_equal(pairs.load(made.assign(pairID=made["pairID"].astype(float))), made)


def test_tasks_and_limit(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl", [GOOD, OTHER])
    write_jsonl(tmp_path / "a.jsonl", [GOOD, OTHER])
    assert list(pairs.load(tmp_path, limit=1)["UID"]) == ["a", "b"]
    assert list(pairs.load(tmp_path, tasks=["b"])["pairID"]) == ["0", "1"]
    with pytest.raises(ValueError, match=naming("bb", tmp_path, "b")):
        pairs.load(tmp_path, tasks=["bb"])
    with pytest.raises(ValueError, match=naming("limit", 1, 0)):
        pairs.load(tmp_path, limit=0)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=naming("nothing.csv", "bundled", "blimp", "jblimp", "multiblimp", ".jsonl")
    ):
        pairs.load(tmp_path / "nothing.csv")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match=naming(tmp_path, ".jsonl", ".txt")):
        pairs.load(tmp_path)
    with pytest.raises(ValueError, match=naming("notes.md", ".txt", ".jsonl")):
        pairs.load((tmp_path / "notes.txt").rename(tmp_path / "notes.md"))
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=naming("notes.txt", "columns")):
        pairs.load(tmp_path / "notes.txt")


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv"])
def test_a_file_that_is_not_utf8(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes("sentence_good,sentence_bad\ncaf\u00e9,cafe\n".encode("latin-1"))
    with pytest.raises(ValueError, match=naming(name, "UTF-8", "position 30")):
        pairs.load(tmp_path / name)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(GOOD) + "\n\n" + '{"sentence_good": \n', encoding="utf-8")
    with pytest.raises(ValueError, match=naming("t.jsonl", 3, "JSON")):
        pairs.load(path)
    path.write_text(json.dumps(GOOD) + "\n[1, 2]\n", encoding="utf-8")
    with pytest.raises(ValueError, match=naming("t.jsonl", 2, "list", "object")):
        pairs.load(path)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"not parquet")
    with pytest.raises(ValueError, match=naming("t.parquet")):
        pairs.load(tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(ValueError, match=naming("t.csv", "rows")):
        pairs.load(tmp_path / "t.csv")


def test_missing_columns(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=naming("DataFrame", "sentence_good", "good, bad", "good=", "bad=", "task=")):
        pairs.load(pd.DataFrame({"good": ["a"], "bad": ["b"]}))


@pytest.mark.parametrize(
    ("half", "missing"),
    [
        ("sentence_good", "sentence_bad"), ("sentence_bad", "sentence_good"), ("good_sentence", "bad_sentence"),
        ("bad_sentence", "good_sentence"), ("sen", "wrong_sen"), ("wrong_sen", "sen"),
    ],
)  # fmt: skip
def test_half_of_the_columns(tmp_path: Path, half: str, missing: str) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{half: "She was here.", "phenomenon": "x"}])
    with pytest.raises(ValueError, match=naming("t.jsonl", missing, half, "phenomenon")):
        pairs.load(path)


def test_jblimp_as_it_is_published(tmp_path: Path) -> None:
    rows = [
        {
            "ID": 4, "good_sentence": "猫に会う。", "bad_sentence": "猫を会う。", "type": "acceptability",
            "phenomenon": "argument structure", "phenomenon-2": None, "paradigm": "case",
        },
        {
            "ID": 9, "good_sentence": "猫しかいない。", "bad_sentence": "猫しかいる。", "type": "acceptability",
            "phenomenon": "npi", "phenomenon-2": None, "paradigm": "shika",
        },
    ]  # fmt: skip
    found = pairs.load(write_jsonl(tmp_path / "validated.jsonl", rows))
    assert tuple(found.columns) == pairs.COLUMNS
    assert found.iloc[0].tolist() == ["猫に会う。", "猫を会う。", "case", "4", "", "argument structure"]
    assert found["UID"].tolist() == ["case", "shika"]


def test_multiblimp_as_it_is_published(tmp_path: Path) -> None:
    rows = [
        {"sen": 'Er sagt "ja".', "wrong_sen": 'Er sagst "ja".', "phenomenon": "SV-P", "lang": "deu"},
        {"sen": "Wir gehen.", "wrong_sen": "Wir geht.", "phenomenon": "SV-#", "lang": "deu"},
        {"sen": "Sie gehen.", "wrong_sen": "Sie geht.", "phenomenon": "SV-#", "lang": "deu"},
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "data.tsv", sep="\t", index=False)
    found = pairs.load(tmp_path / "data.tsv")
    assert found["sentence_bad"].tolist() == [row["wrong_sen"] for row in rows]
    assert found[["UID", "pairID"]].to_numpy().tolist() == [["SV-P", "0"], ["SV-#", "0"], ["SV-#", "1"]]
    assert set(found["field"]) == set(found["linguistics_term"]) == {""}


def test_columns_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "hub_answers", lambda: True)
    own = pd.DataFrame({"right": ["She was here."], "wrong": ["She were here."], "rule": [3], "UID": ["not this"]})
    with pytest.warns(UserWarning, match="the DataFrame has columns that were not read: UID"):
        found = pairs.load(own, good="right", bad="wrong", task="rule")
    assert found.iloc[0].tolist() == ["She was here.", "She were here.", "3", "0", "", ""]
    assert pairs.read(own, good="right", bad="wrong").table["UID"].tolist() == ["not this"]
    published = pairs.generate(n_per_task=2, tasks=["causative"])
    by_field = pairs.read(published, task="field").table
    assert set(by_field["UID"]) == {"syntax"}
    pd.testing.assert_frame_equal(by_field.drop(columns="UID"), published.drop(columns="UID"))
    own.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ValueError, match=naming("t.csv", "sentence_bad", "right, wrong, rule, UID")):
        pairs.load(tmp_path / "t.csv", good="right")
    with pytest.raises(ValueError, match=naming("rul", "right, wrong, rule, UID")):
        pairs.load(own, good="right", bad="wrong", task="rul")
    with pytest.raises(ValueError, match=naming("row 1", "sentences", "She was here.")):
        pairs.load(own, good="right", bad="right")
    with pytest.raises(ValueError, match=naming("row 1", "rule", 3)):
        pairs.load(own, good="right", bad="rule")
    for source in ("bundled", "blimp", "jblimp", "multiblimp/deu"):
        with pytest.raises(ValueError, match=naming(source, "good=", "bad=", "task=")):
            pairs.load(source, good="right")


def test_the_index_that_pandas_writes_is_no_column(tmp_path: Path) -> None:
    pd.DataFrame([GOOD, OTHER]).to_csv(tmp_path / "own.csv")
    found = pairs.read(tmp_path / "own.csv")
    assert found.unused == found.caveats == ()


@pytest.mark.parametrize("separator", [", ", " ,"])
def test_white_space_that_tells_sentences_apart_is_told(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(f"sentence_good,sentence_bad\nShe is.{separator}She are.\nIt is. ,It are. \n")
    [caveat] = pairs.read(path).caveats
    assert caveat.startswith("in 1 of 2 pairs, the two sentences begin or end with different white space")
    path.write_text("sentence_good,sentence_bad\n She\tis., She are.\n")
    assert pairs.read(path).caveats == ()


def test_columns_that_are_not_read_are_told(tmp_path: Path) -> None:
    own = pd.DataFrame([GOOD, OTHER]).assign(phenomenon=["a", "b"], sentence_bad_2="They is here.", note=1)
    own.to_csv(tmp_path / "own.csv", index=False)
    found = pairs.read(tmp_path / "own.csv")
    assert (found.name, found.unused) == ("own.csv", ("phenomenon", "sentence_bad_2", "note"))
    assert set(found.table["UID"]) == {"own"}
    like_a_task, others = found.caveats
    assert "the column 'phenomenon' of" in like_a_task
    assert like_a_task.endswith("to tell these tasks apart, name it with task='phenomenon'")
    assert others.endswith("own.csv' has columns that were not read: sentence_bad_2, note")
    with pytest.warns(UserWarning, match="read") as warned:
        pairs.load(tmp_path / "own.csv")
    assert [str(one.message) for one in warned] == list(found.caveats)
    again = pairs.read(found, limit=1)
    assert (again.name, again.unused, again.caveats, len(again.table)) == (*dataclasses.astuple(found)[1:], 1)
    named = pairs.read(tmp_path / "own.csv", task="phenomenon")
    assert named.table["UID"].tolist() == ["a", "b"]
    assert [caveat.rpartition(": ")[2] for caveat in named.caveats] == ["sentence_bad_2, note"]
    published = pairs.generate(n_per_task=2, tasks=["causative"]).assign(simple_LM_method=True)
    assert (pairs.read(published).unused, pairs.read(published).caveats) == (("simple_LM_method",), ())


def test_errors_of_unknown_tasks_are_of_a_public_class() -> None:
    unknown = {"causal": lambda: pairs.load("bundled", tasks=["causal"]), "mine": lambda: controls.swapped(["mine"])}
    for task, attempt in unknown.items():
        with pytest.raises(ValueError, match=naming(task)) as error:
            attempt()
        assert error.type is ValueError


def test_the_japanese_pairs_differ_in_one_place() -> None:
    def alike(one: str, other: str) -> int:
        return next(i for i, (a, b) in enumerate(zip_longest(one, other)) if a != b)

    table = pairs.load(ROOT / "docs" / "japanese_pairs.csv")
    assert len(table) == 60
    assert table["linguistics_term"].nunique() == 6
    assert not table["sentence_good"].duplicated().any()
    for good, bad in zip(table["sentence_good"], table["sentence_bad"], strict=True):
        start = alike(good, bad)
        end = alike(good[start:][::-1], bad[start:][::-1])
        assert max(len(good), len(bad)) - start - end <= 4, (good, bad)
        assert good.endswith("。")
        assert bad.endswith("。")


@pytest.mark.parametrize("partner", [" ", None, float("nan"), 5])
def test_a_sentence_without_partner(partner: object) -> None:
    with pytest.raises(ValueError, match=naming("DataFrame", "row 2", "sentence_bad")):
        pairs.load(pd.DataFrame([GOOD, {**OTHER, "sentence_bad": partner}]))


def test_a_sentence_without_partner_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=naming("t.jsonl", 2, "sentence_bad", "None")):
        pairs.load(write_jsonl(tmp_path / "t.jsonl", [GOOD, {"sentence_good": "They were here."}]))
    (tmp_path / "t.csv").write_text("sentence_good,sentence_bad\nShe was here.,\n")
    with pytest.raises(ValueError, match=naming("t.csv", 2, "sentence_bad", "''")):
        pairs.load(tmp_path / "t.csv")


def test_two_sentences_that_are_the_same() -> None:
    with pytest.raises(ValueError, match=naming("row 1", "sentences", "It is so.")):
        pairs.load(pd.DataFrame([{"sentence_good": "It is so.", "sentence_bad": "It is so. "}]))


def test_repeated_pair_ids(tmp_path: Path) -> None:
    twice = [{**GOOD, "pairID": 4}, {**OTHER, "pairID": 4}]
    with pytest.raises(ValueError, match=naming("pairID", 4, "pairs", 2, "DataFrame", "row 1", "row 2")):
        pairs.load(pd.DataFrame(twice))
    write_jsonl(tmp_path / "a.jsonl", [{**GOOD, "UID": "u", "pairID": "0"}])
    write_jsonl(tmp_path / "b.jsonl", [{**OTHER, "UID": "u", "pairID": "0"}])
    with pytest.raises(ValueError, match=naming("pairID", 0, "u", 2, "a.jsonl", "b.jsonl", 1)):
        pairs.load(tmp_path)


def test_a_table_without_rows(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("\n")
    (tmp_path / "t.csv").write_text("sentence_good,sentence_bad\n")
    for source in (tmp_path / "t.jsonl", tmp_path / "t.csv", pd.DataFrame()):
        with pytest.raises(ValueError, match=naming("rows", "pair")):
            pairs.load(source)


class FakeHub(types.ModuleType):
    """Stands in for the package `datasets`, with two tasks in the hub's layout."""

    def __init__(self) -> None:
        super().__init__("datasets")

    def get_dataset_config_names(self, name: str) -> list[str]:
        assert name == "nyu-mll/blimp"
        return ["task_one", "task_two"]

    def load_dataset(self, name: str, config: str, *, split: str) -> object:
        assert (name, split) == ("nyu-mll/blimp", "train")
        table = pd.DataFrame([GOOD, OTHER]).assign(UID=config, pair_id=[0, 1], simple_LM_method=True)
        return types.SimpleNamespace(to_pandas=lambda: table)


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    monkeypatch.setattr(paths, "hub_answers", lambda: True)
    assert list(pairs.load("blimp")["UID"]) == ["task_one", "task_one", "task_two", "task_two"]
    assert list(pairs.load("blimp", tasks=["task_two"])["pairID"]) == ["0", "1"]
    with pytest.raises(ValueError, match=naming("task_too", "nyu-mll/blimp", "task_two")):
        pairs.load("blimp", tasks=["task_too"])

    def offline(name: str) -> list[str]:
        raise OSError("no route to host")

    monkeypatch.setattr(hub, "get_dataset_config_names", offline, raising=False)
    with pytest.raises(ConnectionError, match=naming("nyu-mll/blimp", "no route to host", ".jsonl")):
        pairs.load("blimp")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """JBLiMP and MultiBLiMP as the files on the hub, in two directories that `datasets` reads."""
    jblimp, multiblimp = tmp_path / "jblimp", tmp_path / "multiblimp"
    jblimp.mkdir()
    two = [
        {"ID": 4, "good_sentence": "猫に会う。", "bad_sentence": "猫を会う。", "phenomenon": "arg", "paradigm": "case"},
        {"ID": 9, "good_sentence": "猫しかいない。", "bad_sentence": "猫しか。", "phenomenon": "npi",
         "paradigm": "sika"},
    ]  # fmt: skip
    write_jsonl(jblimp / "validated_minimal_pairs.jsonl", two)
    configs = ["configs:"]
    for language, good, bad in (("deu", "Wir gehen.", "Wir geht."), ("hin", "वह जाता है।", "वह जाते है।")):
        (multiblimp / language).mkdir(parents=True)
        row = {"sen": good, "wrong_sen": bad, "phenomenon": "SV-#", "lang": language}
        pd.DataFrame([row]).to_csv(multiblimp / language / "data.tsv", sep="\t", index=False)
        configs += [f"- config_name: {language}", f"  data_files: {language}/data.tsv"]
    (multiblimp / "README.md").write_text("\n".join(["---", *configs, "---", ""]))
    for name in ("jblimp", "multiblimp"):
        monkeypatch.setitem(HUB_PAIRS, name, str(tmp_path / name))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


def test_jblimp_of_the_hub(hub: Path) -> None:
    found = pairs.load("jblimp")
    assert found[["UID", "pairID", "linguistics_term"]].to_numpy().tolist() == [
        ["case", "4", "arg"],
        ["sika", "9", "npi"],
    ]
    assert pairs.read("jblimp").name == "jblimp"
    assert pairs.load("jblimp", tasks=["sika"])["sentence_good"].tolist() == ["猫しかいない。"]
    with pytest.raises(ValueError, match=naming("sik", "jblimp", "sika")):
        pairs.load("jblimp", tasks=["sik"])
    with pytest.raises(ValueError, match=naming("jblimp", "jblimp/ja", "/ja")):
        pairs.load("jblimp/ja")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # datasets with pandas 2.2
def test_multiblimp_of_the_hub(hub: Path) -> None:
    assert pairs.load("multiblimp/hin")["sentence_bad"].tolist() == ["वह जाते है।"]
    found = pairs.load("multiblimp/deu")
    assert found[["sentence_good", "UID"]].to_numpy().tolist() == [["Wir gehen.", "SV-#"]]
    assert pairs.read("multiblimp/deu").name == "multiblimp/deu"
    with pytest.raises(ValueError, match=naming("multiblimp", "multiblimp/CODE", "deu, hin")):
        pairs.load("multiblimp")
    with pytest.raises(ValueError, match=naming("jpn", "multiblimp/jpn", "multiblimp/CODE", "deu, hin")):
        pairs.load("multiblimp/jpn")


def test_published_pairs_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "hub_answers", lambda: False)
    with pytest.raises(FileNotFoundError, match=naming("jumelet/multiblimp", "bundled")):
        pairs.load("multiblimp/deu")


def test_a_directory_with_the_name_of_published_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jblimp").mkdir()
    write_jsonl(tmp_path / "jblimp" / "own.jsonl", [GOOD])
    assert pairs.load("jblimp")["UID"].tolist() == ["own"]


def test_blimp_as_published(shared: Path) -> None:
    blimp = shared / "data" / "blimp"
    table = pairs.load(blimp)
    assert (table.groupby("UID").size() == 1000).all()
    assert table["UID"].nunique() == 67
    assert (table["sentence_good"] == table["sentence_bad"]).sum() == 7
    assert len(pairs.load(blimp, tasks=["npi_present_1", "causative"], limit=10)) == 20
