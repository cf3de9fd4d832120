"""Who may ask the explorer, and what happens when several do, or when something fails."""

import http.client
import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from explored import CONTROLS, answered, ids, request, running, sentences
from naming import naming

import interp
from interp.cli.app import main
from interp.models.identity import Origin
from interp.models.running import active_hooks
from interp.pages.explorer import attention as attention_panel
from interp.pages.explorer.attention import attention
from interp.pages.explorer.server import listening
from interp.pages.explorer.subject import Subject, subject


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return subject("tiny-gpt2", {})


@pytest.fixture(scope="module")
def address(found: Subject) -> Iterator[str]:
    with running(found) as place:
        yield place


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No socket reaches another machine."""
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def checked(self, place):
        assert place[0] == "127.0.0.1", f"a connection to {place}"
        return connect(self, place)

    def local(host, *more, **options):
        assert host in ("127.0.0.1", None), f"the address of {host}"
        return look_up(host, *more, **options)

    monkeypatch.setattr(socket.socket, "connect", checked)
    monkeypatch.setattr(socket, "getaddrinfo", local)


def test_the_page_is_for_this_machine_alone(address):
    place = urlsplit(address)
    assert place.hostname == "127.0.0.1"
    own = f"127.0.0.1:{place.port}"
    status, page = request(address)
    assert status == 200
    assert "interp explore · tiny-gpt2" in page
    body = {"output": "attention-shown.children"}
    for path, sent in (("", None), ("_dash-layout", None), ("_dash-update-component", body)):
        for headers in (
            {"Host": "example.org"}, {"Host": f"example.org:{place.port}"}, {"Host": f"{own}.example.org"},
            {"Origin": "http://example.org"}, {"Origin": "null"}, {"Origin": f"https://{own}"},
            {"Origin": "http://127.0.0.1:1"},
        ):  # fmt: skip
            assert request(address, path, sent, **headers)[0] == 403, headers
        assert request(f"http://{own}/", path, sent)[0] == 403, "the token is missing"
        assert request(f"http://{own}/{'x' * 22}/", path, sent)[0] == 403, "another token"
    assert request(address, Origin=f"http://{own}")[0] == 200
    assert request(address, Host=f"localhost:{place.port}")[0] == 200


def test_the_name_of_a_model_is_shown_literally(found, monkeypatch):
    monkeypatch.setattr(found.model, "interp_origin", Origin("</title><script>alert(1)</script>", None, None))
    with running(found) as place:
        assert "<title>interp explore · script&gt;</title>" in request(place)[1]


def test_the_page_may_load_nothing_from_elsewhere(address):
    place = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", place.port)
    connection.request("GET", place.path)
    answer = connection.getresponse()
    policy, page = answer.headers["Content-Security-Policy"], answer.read().decode()
    connection.close()
    assert policy.startswith("default-src 'none'; connect-src 'self';")
    assert "http" not in policy.replace("https-", "")
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert "://" not in page.replace("http://www.w3.org/", "")


def test_nothing_leaves_the_machine(tmp_path, monkeypatch, no_network):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with running(subject("tiny-bert", {})) as place:
        for panel in CONTROLS:
            changes = {"token": "the"} if panel == "probability" else {}
            assert sentences(answered(place, panel, **changes))
    with pytest.raises(AssertionError, match="the address of"):
        socket.create_connection(("127.0.0.2", 80), timeout=1)


def test_every_component_has_an_id_of_its_own(tmp_path, found):
    pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
    how = {"states": [6], "l0_strengths": [0.2], "methods": ["l0"], "controls": ["none"], "progress": False}
    study = interp.probing.study(found.model, pairs, **how)
    with running(replace(found, probes=study)) as place:
        names = ids(json.loads(request(place, "_dash-layout")[1]))
        assert "grammar-probe" in names
        changes = {"attention": {"removed": "3"}, "grammar": {"probe": "6 reflexive_number"}}
        shown = {panel: answered(place, panel, **changes.get(panel, {})) for panel in CONTROLS}
    names += ids([*shown.values()])
    assert len(set(names)) == len(names)
    assert {"attention-figure-pattern", "attention-figure-dimensions", "grammar-figure-probe"} <= set(names)


def test_two_tabs_get_the_numbers_of_one(address):
    asked = [{"layer": layer, "head": head, "removed": removed} for layer in (0, 3) for head in (1, 4)
             for removed in ("", "3, 14")]  # fmt: skip
    alone = [answered(address, "attention", **one) for one in asked]
    scales = [answered(address, "frequency", scale=scale) for scale in (0, 1.5)]
    with ThreadPoolExecutor(2) as tabs:
        again = [*tabs.map(lambda number: answered(address, "attention", **asked[number % 8]), range(40))]
        mixed = [*tabs.map(lambda number: answered(address, "frequency", scale=(0, 1.5)[number % 2]), range(10))]
    assert all(shown == alone[number % 8] for number, shown in enumerate(again))
    assert all(shown == scales[number % 2] for number, shown in enumerate(mixed))


def test_a_failed_request_leaves_no_hook(address, found, monkeypatch):
    def failing(model, batch, stop):
        assert active_hooks(model)
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(attention_panel, "forward", failing)
        said = sentences(answered(address, "attention", removed="3"))
    assert said == ["RuntimeError: out of luck; this is probably a mistake in interp: please report it."]
    assert not active_hooks(found.model)
    plain = sentences(answered(address, "attention"))
    assert plain[0] == attention(found, CONTROLS["attention"]["text"], layer=1).notes[0]


@pytest.mark.parametrize(
    ("panel", "changes", "said"),
    [
        ("attention", {"layer": None}, "Expected a block in 0 … 5 and a head in 0 … 5."),
        ("attention", {"text": None}, "There is no text to read; type a sentence."),
        (
            "attention",
            {"removed": "4, x"},
            "'x' is not a dimension; write whole numbers with commas between them: 48, 12.",
        ),
        ("probability", {"ratio": None}, "Type a token of the vocabulary, and a factor above 0."),
        ("grammar", {"other": ""}, "There is no text to read; type a sentence."),
    ],
)
def test_bad_input_is_answered_in_words(address, found, panel, changes, said):
    assert sentences(answered(address, panel, **changes)) == [said]
    assert not active_hooks(found.model)


def test_what_is_seen_is_saved_as_a_page(address):
    values = CONTROLS["attention"] | {"text": "<script>alert(1)</script>"}
    body = {
        "output": "attention-saved.data",
        "outputs": {"id": "attention-saved", "property": "data"},
        "inputs": [{"id": "attention-save", "property": "n_clicks", "value": 1}],
        "state": [{"id": f"attention-{name}", "property": "value", "value": value} for name, value in values.items()],
        "changedPropIds": ["attention-save.n_clicks"],
    }
    status, text = request(address, "_dash-update-component", body)
    assert status == 200
    data = json.loads(text)["response"]["attention-saved"]["data"]
    assert data["filename"] == "tiny-gpt2-attention.html"
    page = data["content"]
    assert "Content-Security-Policy" in page
    assert "plotly" in page
    assert "score_contributions_at(model, tokens[0], layer, head, query, key, scaled=True)" in page
    assert "<script>alert(1)" not in page
    assert re.search('<details class="more" open>\n<summary>1 table: Contributions', page)
    shown = sentences(answered(address, "attention", text=values["text"]))
    assert shown[1].split(".")[0] in page


def test_a_port_in_use_is_refused_in_words(capsys):
    with listening(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=naming(f"port {port}", "in use", "--port")):
            listening(port)
        assert main(["explore", "tiny-gpt2", "--port", str(port), "--no-browser"]) == 2
    assert capsys.readouterr().err == (
        f"interp: error: port {port} of this machine is in use; choose another --port, or 0 for any\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere/at/all"], "does not exist"),
        (["tiny-gpt2", "--corpus", "nowhere.txt"], "does not exist"),
        (["tiny-gpt2", "--port", "70000"], "Invalid value for '--port'"),
        (["tiny-gpt2", "--port", "0", "--no-browser", "--probes", "nowhere"], "nowhere"),
    ],
)
def test_bad_arguments_are_refused(capsys, arguments, said):
    assert main(["explore", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_missing_extra_is_refused_in_words(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    assert main(["explore", "tiny-gpt2"]) == 2
    assert "pip install 'interp[explore]'" in capsys.readouterr().err
