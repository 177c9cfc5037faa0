"""Checks of a request before its handler: the host that it names, the page that it comes from, and the token.

A page of another site can make a browser send requests to this server, under the name of that site if its DNS answers
with this machine's address (DNS rebinding). So `Host` must be a name of this machine, and `Origin`, which a page cannot
forge, must be the same as `Host` where it is sent. What a page of another site can request without an origin, it cannot
read (`Cross-Origin-Resource-Policy`).
"""

import hmac
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from tornado.httputil import HTTPServerRequest

_METHODS = ("GET", "HEAD")


class RequestPolicy:
    """The rules for requests: host names, origin of the page, token."""

    def __init__(self, address: str, token: str | None, allowed_hosts: Iterable[str] = ()) -> None:
        """Accept the names of this machine and `allowed_hosts`; `token`, if any, must be the first part of the path.

        On a loopback address only its own names are accepted. On other addresses any IP address is accepted, too: a
        browser that follows a name of another site never sends one.
        """
        self._token = token
        self._is_local = is_loopback(address)
        machine_names = {"localhost", "127.0.0.1", "::1"} | ({address} if self._is_local else set())
        if not self._is_local:
            machine_names |= {address, socket.gethostname(), socket.getfqdn()}
        self._hosts = {name.lower().rstrip(".") for name in (*machine_names, *allowed_hosts)}

    def refusal(self, request: HTTPServerRequest) -> int | None:
        """Return the status with which a request is refused; None if it may pass."""
        hosts, origins = request.headers.get_list("Host"), request.headers.get_list("Origin")
        if request.method not in _METHODS:
            return 405
        name = _host_name(hosts[0]) if len(hosts) == 1 else None
        is_own = name is not None and (name in self._hosts or (not self._is_local and _is_ip_address(name)))
        if not is_own or len(origins) > 1:
            return 403
        # the page's origin is this server
        own_origins = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
        if any(origin.lower() not in own_origins for origin in origins):
            return 403
        first = request.path.removeprefix("/").partition("/")[0].encode("utf-8", "replace")
        if self._token is not None and not hmac.compare_digest(first, self._token.encode()):
            return 404
        return None


def is_loopback(address: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    return address in ("localhost", "::1") or address.startswith("127.")


def _host_name(host: str) -> str | None:
    """Return the name in `name:port`, lower case and without brackets; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018  # raises ValueError for a port that is no number
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
