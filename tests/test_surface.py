"""What a user of Python meets: names, signatures, and a report in one call."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pandas as pd
import pytest
from naming import naming

import interp
from interp.analyses.registry import analyses
from interp.testing import toy_decoder

TEXT = ["w0 w1 w2 w3 w4 w5 " * 10] * 30
PAIRS = pd.DataFrame(
    {"sentence_good": [f"w{i} w1 w2" for i in range(10)], "sentence_bad": [f"w{i} w2 w1" for i in range(10)]}
)
QUICK = {
    "attention": {"key_classes": {"first": [7, 8]}},
    "encoding": {"orders": ["random"]},
    "probing": {"methods": ["dense"], "controls": ["none"]},
}


def modules() -> list[str]:
    """All modules that can be reached from `interp` by the names they offer."""
    found = [interp]
    for module in found:
        offered = [getattr(module, name) for name in module.__all__]
        found += [other for other in offered if isinstance(other, ModuleType) and other not in found]
    return [module.__name__ for module in found]


@pytest.mark.parametrize("name", modules())
def test_completion_shows_what_is_public(name):
    module = importlib.import_module(name)
    assert dir(module) == sorted(module.__all__)


def test_importing_interp_imports_nothing_heavy():
    code = (
        "import sys, interp; assert {'testing', 'findings', 'report'} <= {*dir(interp)}; print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


@pytest.mark.parametrize("place", [analysis.answer for analysis in analyses().values()])
def test_questions_show_types_and_defaults(place):
    signature = inspect.signature(resolve_name(place))
    assert all(parameter.annotation is not parameter.empty for parameter in signature.parameters.values())
    assert issubclass(signature.return_annotation, interp.results.Result)
    lines = str(signature).splitlines()
    assert "    progress: bool = True," in lines
    assert len(lines) == len(signature.parameters) + 3  # one each, the star and both brackets


def test_functions_of_the_questions_return_results_not_generators():
    for question in interp.analyses.registry.OWN:
        module = getattr(interp, question)
        for name in module.__all__:
            if callable(function := getattr(module, name)) and not inspect.isclass(function):
                assert "Generator" not in str(inspect.signature(function)), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_report_is_written_to_a_directory(tmp_path):
    model = toy_decoder(n_positions=64, n_layer=1)
    counts = interp.corpora.count_unigrams(model, TEXT)
    text = tmp_path / "my.txt"
    text.write_text("\n".join(TEXT), encoding="utf-8")
    pairs = tmp_path / "pairs.csv"
    PAIRS.to_csv(pairs, index=False)
    asked = {"pairs": pairs, "unigram": counts, "settings": QUICK, "progress": False}
    results = interp.report(model, text, out=tmp_path / "run", **asked)
    assert list(results) == ["frequency", "attention", "encoding", "probing"]
    for name, result in results.items():
        saved = interp.load_result(tmp_path / "run", name)
        for table, rows in result.tables.items():
            pd.testing.assert_frame_equal(saved.tables[table], rows)
    assert "my.txt" in Path(tmp_path / "run" / "index.html").read_text(encoding="utf-8")
    with pytest.raises(FileExistsError, match=naming(tmp_path / "run", "frequency, attention", "overwrite=True")):
        interp.report(model, text, out=tmp_path / "run", **asked)
    again = interp.report(model, str(text), out=tmp_path / "run", overwrite=True, **asked)
    assert again["frequency"].kl.equals(results["frequency"].kl)
