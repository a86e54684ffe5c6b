"""``DriftlineClient``: the service's methods as Python calls.

Answers are the service's JSON documents as they are, since their shapes are the contract. Reads are tried again when the
service does not answer for a moment; writes never are, because a lost answer does not say that nothing happened. A
submission carries an idempotency key instead, so that its caller may repeat it safely.
"""

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from client.errors import ClientError, NotReachable, from_answer
from client.place import home_behind, service_url
from core.home import read_home_id

Json = dict[str, Any]

_READ_TRIES = 4
_FIRST_PAUSE_S = 0.2
_FOREIGN = "not_driftline"
_OTHER_HOME = "another_home"
_FILE_NAME = re.compile(r'filename="([A-Za-z0-9_][A-Za-z0-9._-]{0,200})"')
_RUN_ID = re.compile("[0-9a-f]{1,12}")
_BUSY = frozenset({502, 503, 504})
_JSON = {"Content-Type": "application/json"}


class DriftlineClient:
    """A client of one service; use it as a context manager or call :meth:`close`.

    ``url`` None means ``DRIFTLINE_URL``, else what :func:`client.place.service_url` finds; ``token`` None means
    ``DRIFTLINE_TOKEN``. ``timeout`` is seconds per request. Every method raises :class:`client.errors.ServiceError` for a
    refusal and :class:`client.errors.NotReachable` when nobody answers, or a service that is not the one of the home folder
    whose ``server.json`` gave the address: such a file may outlive its service, and another home's may take the port.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        read_tries: int = _READ_TRIES,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        token = _sendable(token or os.environ.get("DRIFTLINE_TOKEN", ""))
        self._home = None if url else home_behind()
        self.url = (url or service_url()).rstrip("/")
        self._tries = read_tries
        self._pause = threading.Event()
        try:
            self._http = httpx.Client(
                base_url=self.url,
                timeout=httpx.Timeout(timeout, connect=min(5.0, timeout)),
                headers={"Authorization": f"Bearer {token}"} if token else {},
                transport=transport,
                # A proxy from the environment must not see a service on loopback, nor its tokens.
                trust_env=False,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise NotReachable(f"{self.url} is not an address: {error}", param="DRIFTLINE_URL") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, recipe: Mapping[str, Any] | bytes | str, *, idempotency_key: str | None = None) -> Json:
        """Post a recipe and return the run. Text is sent byte for byte, so that the service judges what was written."""
        headers = _JSON | ({"Idempotency-Key": idempotency_key} if idempotency_key else {})
        return self._write("POST", "/runs", headers=headers, **_body(recipe))

    def probe(self, recipe: Mapping[str, Any] | bytes | str, *, idempotency_key: str | None = None) -> Json:
        """Post a train recipe to be measured for two minutes instead of run; the run's ``probe_report`` is the answer."""
        headers = _JSON | ({"Idempotency-Key": idempotency_key} if idempotency_key else {})
        return self._write("POST", "/runs", params={"probe": "true"}, headers=headers, **_body(recipe))

    def dry_run(self, recipe: Mapping[str, Any] | bytes | str) -> Json:
        """Validate and plan a recipe; nothing is stored."""
        return self._write("POST", "/runs", params={"dry_run": "true"}, headers=_JSON, **_body(recipe))

    def run(self, run_id: str) -> Json:
        """One run by its id or an unambiguous beginning of it."""
        return self._read(_run(run_id))

    def runs(self, *, after: str | None = None, limit: int = 50, **filters: str | None) -> Json:
        """A page of runs, newest first; filters: ``kind``, ``state``, ``tag``, ``model``, ``created_from``, ``created_to``."""
        return self._read("/runs", after=after, limit=limit, **filters)

    def cancel(self, run_id: str) -> Json:
        """Cancel a run; one that runs writes a checkpoint first."""
        return self._write("POST", _run(run_id, "/cancel"))

    def pause(self, run_id: str) -> Json:
        """Pause a running run behind a checkpoint."""
        return self._write("POST", _run(run_id, "/pause"))

    def resume(self, run_id: str) -> Json:
        """Put a paused run back into the queue."""
        return self._write("POST", _run(run_id, "/resume"))

    def curves(
        self,
        run_id: str,
        *,
        keys: list[str] | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
        max_points: int | None = None,
        attempt: str | None = None,
    ) -> Json:
        """Curves of a run; all keys by default."""
        named = ",".join(keys) if keys else None
        return self._read(
            _run(run_id, "/curves"),
            keys=named,
            from_step=from_step,
            to_step=to_step,
            max_points=max_points,
            attempt=attempt,
        )

    def damage_stop(self, run_id: str) -> Json:
        """The damage-stop status of a run."""
        return self._read(_run(run_id, "/damage-stop"))

    def looks(self, run_id: str) -> list[Json]:
        """All looks of a run by step."""
        return list(self._pages(_run(run_id, "/looks")))

    def evaluations(self, run_id: str, *, purpose: str | None = None) -> list[Json]:
        """All evaluations of a run in the order they were started."""
        return list(self._pages(_run(run_id, "/evals"), purpose=purpose))

    def items(self, evaluation_id: str, *, flip: str | None = None, verdict: str | None = None) -> list[Json]:
        """All records of an evaluation, by flip against base or by verdict."""
        return list(self._pages(f"/evals/{_segment(evaluation_id)}/items", flip=flip, verdict=verdict, limit=1000))

    def diff(self, a: str, b: str, *, verdicts: str | None = None, noise: str | None = None) -> Json:
        """What evaluation ``b`` lost and gained against ``a``."""
        return self._read(f"/evals/{_segment(a)}/diff/{_segment(b)}", verdicts=verdicts, noise=noise)

    def regrade(self, evaluation_id: str) -> Json:
        """Post a run that grades an evaluation's stored answers again, and return it."""
        return self._write("POST", f"/evals/{_segment(evaluation_id)}/regrade", headers=_JSON)

    def checkpoints(self, run_id: str) -> list[Json]:
        """All complete checkpoints of a run by step."""
        return list(self._pages(_run(run_id, "/checkpoints")))

    def export(self, checkpoint_id: str, wish: Mapping[str, Any]) -> Json:
        """Post the run that writes a checkpoint in another form, and return it."""
        path = f"/checkpoints/{_segment(checkpoint_id)}/export"
        return self._write("POST", path, headers=_JSON, json=dict(wish))

    def records_path(self, evaluation_id: str) -> str:
        """Where the records of an evaluation can be downloaded."""
        return f"/evals/{_segment(evaluation_id)}/export"

    def rollouts_path(self, run_id: str) -> str:
        """Where the training samples of a run can be downloaded."""
        return _run(run_id, "/rollouts/export")

    @contextmanager
    def download(self, path: str, params: Mapping[str, str]) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the file's plain name and its bytes as they come; never the whole file is held in memory."""
        if self._home is not None:
            self._check_home()
        try:
            with self._http.stream("GET", path, params=dict(params)) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise from_answer(answer.status_code, _decoded(answer))
                yield _file_name(answer), answer.iter_bytes()
        except httpx.ConnectError:
            raise self._absent("nobody answers there") from None
        except httpx.HTTPError as error:
            raise NotReachable(
                f"the file broke off: {error or type(error).__name__}", hint="try again", code="broken_off"
            ) from None

    def analyses(self, run_id: str) -> list[Json]:
        """Analyses over a run's checkpoints."""
        return list(self._pages(_run(run_id, "/analyses")))

    def events(self, run_id: str, *, after: int = 0, limit: int = 100) -> Json:
        """Events with a larger ``seq`` than ``after``, oldest first."""
        return self._read(_run(run_id, "/events"), after=after, limit=limit)

    def logs(
        self,
        run_id: str,
        *,
        after: str | None = None,
        tail: int = 200,
        level: str | None = None,
        search: str | None = None,
        attempt: int | None = None,
    ) -> Json:
        """The last log lines, or what followed the cursor ``after``."""
        path = _run(run_id, "/logs")
        return self._read(path, after=after, tail=tail, level=level, search=search, attempt=attempt)

    def capabilities(self) -> Json:
        """What can be asked for, and the live workers."""
        return self._read("/capabilities")

    def version(self) -> Json:
        """Versions of the service."""
        return self._read("/version")

    def ready(self) -> Json:
        """Readiness part by part; ``status`` is ``ready`` or ``not_ready``. A service that is not ready is no error here."""
        return self._send("GET", "/readyz", passed=frozenset({503}))

    def page_url(self, run_id: str) -> str:
        """Address of the run's page for a browser."""
        return f"{self.url}/#/runs/{run_id}"

    def _pages(self, path: str, **params: str | int | None) -> Iterator[Json]:
        after: str | None = None
        while True:
            page = self._read(path, after=after, **params)
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["next"]

    def _read(self, path: str, **params: str | int | None) -> Json:
        given = {name: value for name, value in params.items() if value is not None}
        pause_s = _FIRST_PAUSE_S
        for left in reversed(range(self._tries)):
            try:
                return self._send("GET", path, retried=_BUSY if left else frozenset(), params=given)
            except NotReachable as error:
                if not left or error.code in {_FOREIGN, _OTHER_HOME}:
                    raise
            except _Busy:  # never on the last try
                pass
            self._pause.wait(pause_s)
            pause_s *= 2
        raise AssertionError("the last try returns or raises")

    def _write(self, method: str, path: str, **options: Any) -> Json:
        return self._send(method, path, **options)

    def _send(
        self,
        method: str,
        path: str,
        *,
        passed: frozenset[int] = frozenset(),
        retried: frozenset[int] = frozenset(),
        **options: Any,
    ) -> Json:
        if self._home is not None:
            self._check_home()
        try:
            answer = self._http.request(method, path, **options)
        except httpx.ConnectError:
            raise self._absent("nobody answers there") from None
        except httpx.TimeoutException:
            raise NotReachable(
                f"the service at {self.url} did not answer in time",
                hint="it may be very busy; try again",
                code="timeout",
            ) from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._absent(str(error) or type(error).__name__) from None
        if answer.status_code in retried:
            raise _Busy
        body = _decoded(answer)
        if answer.status_code >= 400 and answer.status_code not in passed:
            raise from_answer(answer.status_code, body)
        if not isinstance(body, dict):
            raise self._absent("what answers there does not speak JSON, so it is no Driftline", code=_FOREIGN)
        return body

    def _check_home(self) -> None:
        """Ask once whose service this is, before anything is asked of it or sent to it."""
        home, self._home = self._home, None
        try:
            answered = self._send("GET", "/healthz")
        except ClientError:
            self._home = home
            raise
        if home is not None and answered.get("home_id") != read_home_id(home):
            self._home = home
            raise NotReachable(
                f"what answers at {self.url} is the service of another home than {home}",
                hint="start this home's with `driftline up`; DRIFTLINE_URL names another service on purpose",
                code=_OTHER_HOME,
            )

    def _absent(self, why: str, *, code: str = "not_reachable") -> NotReachable:
        return NotReachable(
            f"no Driftline service at {self.url}: {why}",
            hint="start it with `driftline up --background`, or let DRIFTLINE_URL name another one",
            code=code,
        )


class _Busy(Exception):  # noqa: N818 - internal: asks the loop for another try
    """The service said that it cannot answer now, and there are tries left."""


def _sendable(token: str) -> str:
    """The token without the newline that reading it from a file leaves. What no header can carry is refused, never shown."""
    token = token.rstrip("\r\n")
    if not all("!" <= character <= "~" for character in token):
        raise ClientError(
            "the token in DRIFTLINE_TOKEN cannot be sent: it has a character that no token has",
            param="DRIFTLINE_TOKEN",
            hint="a token is printable ASCII without spaces; set the secret that `driftline token` printed, and only that",
            code="bad_token",
        )
    return token


def _file_name(answer: httpx.Response) -> str:
    """The last part of the name that the service gives the file; a path in it is never followed."""
    match = _FILE_NAME.search(answer.headers.get("content-disposition", ""))
    return match[1] if match else "records"


def _decoded(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _body(recipe: Mapping[str, Any] | bytes | str) -> dict[str, Any]:
    if isinstance(recipe, str):
        return {"content": recipe.encode()}
    return {"content": recipe} if isinstance(recipe, bytes) else {"json": dict(recipe)}


def _run(run_id: str, below: str = "") -> str:
    """A run's path. Checked here, because a name that is no id must reach no other path, and deserves a better sentence."""
    if not _RUN_ID.fullmatch(run_id):
        raise ClientError(
            f"{run_id!r} is not the id of a run",
            param="RUN",
            hint="an id is up to 12 hexadecimal characters; `driftline list` shows them",
            code="bad_id",
        )
    return f"/runs/{run_id}{below}"


def _segment(name: str) -> str:
    """A name as one path segment."""
    return quote(name, safe="")
