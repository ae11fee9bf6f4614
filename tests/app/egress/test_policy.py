"""Where connections to other servers may go."""

from __future__ import annotations

import ipaddress

import httpcore2
import httpx2
import pytest

from app.egress.client import CheckedBackend, checked_client
from app.egress.policy import EgressPolicy, EgressRefusedError, is_public


def answering(*addresses: str) -> EgressPolicy:
    async def resolve(_host: str, _port: int) -> list[str]:
        return list(addresses)

    return EgressPolicy.allowing((), resolve)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("::1", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1"),
        *("2002:7f00:1::", "2001:0:4136:e378:8000:63bf:80ff:fffe"),
    ],
)
def test_a_private_address_is_not_public_however_it_is_wrapped(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_a_public_address_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("1.1.1.1", "10.0.0.1"), ("fe80::1%eth0",), ()])
async def test_a_host_with_any_private_address_is_refused(addresses: tuple[str, ...]) -> None:
    with pytest.raises(EgressRefusedError, match="tools"):
        await answering(*addresses).addresses("tools.example", 443)


async def test_names_and_networks_that_the_operator_lists_are_allowed() -> None:
    async def resolve(host: str, _port: int) -> list[str]:
        return ["10.0.0.7"] if host.startswith("intranet") else ["192.168.3.3"]

    policy = EgressPolicy.allowing(["Intranet.example", "192.168.3.0/24"], resolve)
    assert await policy.addresses("intranet.EXAMPLE.", 80) == ["10.0.0.7"]
    assert await policy.addresses("printer.example", 80) == ["192.168.3.3"]
    with pytest.raises(EgressRefusedError, match="APP_EGRESS_ALLOW"):
        await policy.addresses("intranet.example.org", 80)


async def test_numbers_that_spell_an_address_are_resolved_before_they_are_checked() -> None:
    with pytest.raises(EgressRefusedError, match=r"127\.0\.0\.1"):
        await EgressPolicy().addresses("2130706433", 80)


class _Backend(httpcore2.AsyncNetworkBackend):
    def __init__(self) -> None:
        self.connected: list[str] = []

    async def connect_tcp(self, host: str, *_args: object, **_options: object) -> httpcore2.AsyncNetworkStream:
        self.connected.append(host)
        if len(self.connected) == 1:
            raise httpcore2.ConnectError("refused")
        return httpcore2.AsyncMockStream([])


async def test_the_connection_goes_to_a_checked_address_and_the_name_is_resolved_once() -> None:
    answers = [["1.1.1.1", "1.0.0.1"], ["127.0.0.1"]]  # a name server that changes its mind

    async def resolve(_host: str, _port: int) -> list[str]:
        return answers.pop(0)

    backend = _Backend()
    await CheckedBackend(EgressPolicy.allowing((), resolve), backend).connect_tcp("tools.example", 443)
    assert backend.connected == ["1.1.1.1", "1.0.0.1"]


async def test_the_client_checks_and_ignores_the_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:8080")
    async with checked_client(answering("127.0.0.1")) as client:
        with pytest.raises(EgressRefusedError, match="tools"):
            await client.get("http://tools.example/")


async def test_the_client_follows_no_redirect() -> None:
    async with checked_client(answering("1.1.1.1")) as client:
        assert not client.follow_redirects
        client._transport = httpx2.MockTransport(lambda _request: httpx2.Response(302, headers={"location": "/x"}))
        assert (await client.get("http://tools.example/")).status_code == 302
