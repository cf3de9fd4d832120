"""Tables in the formats of other programs."""

import importlib.util
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from naming import naming

from interp.results.exports import check_formats, export, written_as

TABLE = pd.DataFrame(
    {"token_id": [3, 4, 5], "token": ["␣the_end", "=1+2", "50 % & more"], "share": [0.123456789, float("nan"), 1e-12]}
)


def test_csv_and_json_are_read_again() -> None:
    csv = pd.read_csv(io.StringIO(written_as(TABLE, "csv")))
    assert csv["token"].tolist() == ["␣the_end", "'=1+2", "50 % & more"]
    pd.testing.assert_frame_equal(csv[["token_id", "share"]], TABLE[["token_id", "share"]])
    found = json.loads(written_as(TABLE, "json"))
    assert [row["token"] for row in found] == TABLE["token"].tolist()
    assert [row["share"] for row in found] == [0.123456789, None, 1e-12]


def test_files(tmp_path: Path) -> None:
    paths = export({"kl": TABLE, "types": TABLE.head(1)}, tmp_path / "new", "frequency", ["csv", "latex"])
    names = ["frequency_kl.csv", "frequency_types.csv", "frequency_kl.tex", "frequency_types.tex"]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(names)
    with pytest.raises(FileExistsError, match=naming("frequency_kl.csv")):
        export({"new": TABLE, "kl": TABLE}, tmp_path / "new", "frequency", ["csv"])
    assert not (tmp_path / "new" / "frequency_new.csv").exists(), "nothing half-written"


@pytest.mark.slow
def test_a_workbook_has_a_sheet_of_each_table(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    controls = TABLE.assign(token=["a\x00b", "@x", "c"])
    [path] = export({"kl": TABLE, "a_table_of_which_the_name_is_long": controls}, tmp_path, "frequency", ["xlsx"])
    found = pd.read_excel(path, sheet_name=None)
    assert [*found] == ["kl", "a_table_of_which_the_name_is_lo"]
    pd.testing.assert_frame_equal(found["kl"].drop(columns="token"), TABLE.drop(columns="token"))
    assert found["kl"]["token"][1] == "'=1+2"
    assert found["a_table_of_which_the_name_is_lo"]["token"].tolist() == ["a�b", "'@x", "c"]


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=naming("'doc'", "csv, xlsx, latex, json")):
        check_formats(["csv", "doc"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=naming("xlsx", "openpyxl", "pip install 'interp[xlsx]'")):
        export({"kl": TABLE}, tmp_path, "frequency", ["xlsx"])
    monkeypatch.undo()
    monkeypatch.setattr("interp.results.exports._SHEET_ROWS", 2)
    if importlib.util.find_spec("openpyxl"):
        with pytest.raises(ValueError, match=naming("kl", 3, 2, "csv")):
            export({"kl": TABLE}, tmp_path, "frequency", ["csv", "xlsx"])
    assert not list(tmp_path.iterdir())
