"""A metadata server on loopback that behaves as those of AWS and Google Cloud do."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

ACTION = "/latest/meta-data/spot/instance-action"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"


class MetadataServer:
    """Serves while entered.

    Attributes:
        answers: status and body by path; any other path is not found.
        flavor: value of ``Metadata-Flavor`` in the answers of Google Cloud.
        going_on: while it is not set, no request is answered.
        asked: the requests so far, as ``GET /path``.
    """

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {PREEMPTED: (200, "FALSE"), MAINTENANCE: (200, "NONE")}
        self.flavor = "Google"
        self.going_on = threading.Event()
        self.going_on.set()
        self.asked: list[str] = []
        self._token = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def expire_tokens(self) -> None:
        """From now on the tokens given so far are not valid."""
        self._token += 1

    def __enter__(self) -> MetadataServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        self.going_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer_to(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        if path.startswith("/computeMetadata/"):
            known = headers.get("Metadata-Flavor") == "Google"
            return self.answers.get(path, (404, "")) if known else (403, "")
        if path == "/latest/api/token":
            asks_right = method == "PUT" and 1 <= int(headers.get("X-aws-ec2-metadata-token-ttl-seconds", 0)) <= 21600
            return self.answers.get(path, (200, f"token-{self._token}")) if asks_right else (400, "")
        known = headers.get("X-aws-ec2-metadata-token") == f"token-{self._token}"
        return self.answers.get(path, (404, "")) if known else (401, "")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                server.asked.append(f"{self.command} {self.path}")
                server.going_on.wait()
                status, text = server._answer_to(self.command, self.path, self.headers)
                self.send_response(status)
                self.send_header("Metadata-Flavor", server.flavor)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = _serve  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
