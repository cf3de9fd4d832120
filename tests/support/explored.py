"""A running explorer, and requests to it as its page makes them."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from interp.pages.explorer.server import listening, served
from interp.pages.explorer.subject import Subject

CONTROLS: dict[str, dict[str, Any]] = {
    "attention": {
        "text": "The boy hurt himself.", "layer": 1, "head": 0, "query": None, "key": None, "removed": "",
        "where": "keys",
    },
    "frequency": {"text": "The boy walked to the", "scale": 0.5},
    "probability": {"token": "␣himself", "ratio": 2, "weights": "least_norm"},
    "grammar": {"one": "The boy hurt himself.", "other": "The boy hurt herself."},
}  # fmt: skip
"""The names of the controls of each panel in order, with values."""


@contextmanager
def running(found: Subject) -> Iterator[str]:
    """The address of an explorer that runs in a thread."""
    with listening(0) as taken:
        server, address = served(found, taken)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield address
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def request(address: str, path: str = "", body: Any = None, **headers: str) -> tuple[int, str]:
    """The status and the text of the answer to a request; one with a body is a POST of JSON."""
    place = urlsplit(address)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
    method, sent = ("GET", None) if body is None else ("POST", json.dumps(body))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, f"{place.path}{path}", sent, {"Content-Type": "application/json"} | named)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def answered(address: str, panel: str, **changes: Any) -> Any:
    """What a panel shows (the components as JSON) with some of its controls changed."""
    values = {**CONTROLS[panel], **changes}
    inputs = [{"id": f"{panel}-{name}", "property": "value", "value": value} for name, value in values.items()]
    body = {
        "output": f"{panel}-shown.children",
        "outputs": {"id": f"{panel}-shown", "property": "children"},
        "inputs": [*inputs, {"id": "dark", "property": "data", "value": False}],
        "changedPropIds": [f"{inputs[0]['id']}.value"],
    }
    status, text = request(address, "_dash-update-component", body)
    if status != 200:
        raise RuntimeError(f"{panel}: {status} {text[:300]}")
    return json.loads(text)["response"][f"{panel}-shown"]["children"]


def sentences(shown: Any) -> list[str]:
    """The paragraphs of what a panel shows."""
    return [part["props"]["children"] for part in shown if part["type"] == "P"]


def ids(part: Any) -> list[str]:
    """The ids of components, and of those in them."""
    if isinstance(part, list):
        return [name for one in part for name in ids(one)]
    if not isinstance(part, dict):
        return []
    own = [part["props"]["id"]] if "namespace" in part and "id" in part["props"] else []
    return own + [name for one in part.values() for name in ids(one)]
