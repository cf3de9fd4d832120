"""The server of the explorer, which only this machine can reach, and only with the token in the address."""

import errno
import hmac
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any

import flask
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from interp.pages.explorer.app import application
from interp.pages.explorer.subject import Subject

__all__ = ["listening", "served"]

_HOST = "127.0.0.1"
_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data: blob:; font-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; script-src 'self' {}; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


class _Quiet(WSGIRequestHandler):
    """Prints no line for each request."""

    def log_request(self, *_: Any) -> None:
        pass


def served(subject: Subject, listener: socket.socket) -> tuple[BaseWSGIServer, str]:
    """A server that is ready to run (`serve_forever`), and the address of the page.

    Args:
        listener: the socket of `listening`, which the server takes over.
    """
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(16)
    app = application(subject, f"/{token}/")
    flask_app: flask.Flask = app.server
    flask_app.before_request(_refusing(token, port))
    flask_app.after_request(_policy(app.csp_hashes()))
    server = make_server(_HOST, port, flask_app, threaded=True, request_handler=_Quiet, fd=listener.fileno())
    return server, f"http://{_HOST}:{port}/{token}/"


def listening(port: int) -> socket.socket:
    """A socket of this machine.

    Args:
        port: 0 for any port that is free.

    Raises ValueError for a port that is in use, or that one may not use.
    """
    try:
        return socket.create_server((_HOST, port))
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        problem = "is in use" if is_taken else f"cannot be used ({os.strerror(error.errno or 0)})"
        raise ValueError(f"port {port} of this machine {problem}; choose another --port, or 0 for any") from None


def _refusing(token: str, port: int) -> Callable[[], Any]:
    """Refuse requests that a page of another site could have caused, and those without the token."""
    hosts = {f"{_HOST}:{port}", f"localhost:{port}"}

    def refuse() -> Any:
        headers = flask.request.headers
        origin = headers.get("Origin")
        is_own = origin is None or origin.removeprefix("http://") in hosts
        first = flask.request.path.split("/")[1]
        if headers.get("Host") in hosts and is_own and hmac.compare_digest(first.encode(), token.encode()):
            return None
        return "Refused: open the address that interp explore printed.", 403

    return refuse


def _policy(hashes: Sequence[str]) -> Callable[[flask.Response], flask.Response]:
    """Let the page load nothing from elsewhere, and tell nobody its address."""

    def add(response: flask.Response) -> flask.Response:
        response.headers["Content-Security-Policy"] = _POLICY.format(" ".join(hashes))
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return add
