"""Whether a server answers at all: MLflow itself would go on asking for minutes."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from paceline.errors import UsageError

PORTS = {"http": 80, "https": 443}
SECONDS = 5.0


def check_answers(uri: str) -> None:
    """Refuse a web address where nobody listens; other places are not looked at.

    >>> check_answers("http://localhost:1")
    Traceback (most recent call last):
    paceline.errors.UsageError: cannot write runs to http://localhost:1: nobody answers there (connection refused)
    """
    scheme = uri.partition(":")[0].lower()
    if scheme not in PORTS:
        return
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port or PORTS[scheme]
    except ValueError as error:
        raise UsageError(f"cannot write runs to {uri}: {str(error).lower()}") from None
    if not host:
        raise UsageError(f"cannot write runs to {uri}: it names no server")
    if scheme in getproxies() and not proxy_bypass(host):
        return  # the proxy may reach what this machine cannot
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot write runs to {uri}: nobody answers there ({why})") from None
