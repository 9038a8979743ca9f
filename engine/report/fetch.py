"""Fetches a file somebody names by its address: over https, from the public internet, within limits."""

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import PurePosixPath
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from engine.specs import Refused

LIMIT_S = 20.0
CHUNK = 65_536
LONGEST_URL = 2000


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet, not of this machine or its network."""
    return ipaddress.ip_address(address).is_global


def fetch(
    url: str,
    largest: int,
    *,
    limit_s: float = LIMIT_S,
    allowed: Callable[[str], bool] = is_public,
    context: ssl.SSLContext | None = None,
) -> tuple[bytes, str]:
    """The content at an https address and its file's name. largest: bytes.

    allowed: which IP addresses may be asked. The address that was looked at is the one that is connected to, so that
    neither a redirect nor a name that resolves anew leads elsewhere. Proxies are not used. Errors: Refused.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.username or len(url) > LONGEST_URL:
        raise Refused(f"{url[:200]!r} is no address to fetch from: it has to begin with https:// and name a host")
    deadline = time.monotonic() + limit_s
    try:
        with _opener(allowed, context or ssl.create_default_context()).open(url, timeout=limit_s) as answer:
            return _read(answer, largest, deadline, url), PurePosixPath(urlsplit(answer.url).path).name
    except HTTPError as error:
        raise Refused(f"{url} answers {error.code} {error.reason}") from error
    except Refused:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Refused(f"{url} cannot be fetched ({reason}): download it yourself and give the file") from error


def _read(answer: http.client.HTTPResponse, largest: int, deadline: float, url: str) -> bytes:
    content = b""
    while chunk := answer.read1(CHUNK):
        content += chunk
        if len(content) > largest:
            raise Refused(f"{url} has more than {largest:,} bytes, the most that is taken")
        if time.monotonic() > deadline:
            raise Refused(f"{url} was not there within the time limit")
    return content


def _opener(allowed: Callable[[str], bool], context: ssl.SSLContext) -> request.OpenerDirector:
    """Speaks https and nothing else, also where a redirect says otherwise."""

    class Connection(http.client.HTTPSConnection):
        def connect(self) -> None:
            address = _checked(self.host, self.port, allowed)
            plain = socket.create_connection((address, self.port), self.timeout)
            self.sock = context.wrap_socket(plain, server_hostname=self.host)

    class Handler(request.HTTPSHandler):
        def https_open(self, req: request.Request) -> http.client.HTTPResponse:
            return self.do_open(Connection, req)

    opener = request.OpenerDirector()
    spoken = (Handler(), request.HTTPRedirectHandler(), request.HTTPErrorProcessor())
    for handler in (*spoken, request.HTTPDefaultErrorHandler(), request.UnknownHandler()):
        opener.add_handler(handler)
    return opener


def _checked(host: str, port: int, allowed: Callable[[str], bool]) -> str:
    """An address of a host all of whose addresses are allowed. Errors: Refused, OSError."""
    addresses = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not all(map(allowed, addresses)):
        raise Refused(f"{host} is not on the public internet: nothing is fetched from there")
    return addresses[0]
