"""Which addresses are public: every form in which a private one can be written."""

import ipaddress

import pytest

from clawmode.addresses import find_target, is_public
from clawmode.exceptions import ToolProblem

pytestmark = pytest.mark.anyio

PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255"),
    *("127.0.0.1", "127.255.255.254", "169.254.0.1", "169.254.169.254", "172.16.0.1"),
    *("172.31.255.255", "192.0.0.1", "192.0.0.170", "192.0.2.1", "192.88.99.1", "192.168.0.1"),
    *("198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1"),
    *("239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::2", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    *("::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "::ffff:8.8.8.8"),
    *("64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254"),
    *("64:ff9b:1::127.0.0.1", "64:ff9b:1::8.8.8.8", "100::1", "2001::1", "2001:0:7f00:1::"),
    *("2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "3fff::1"),
    *("2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::", "2002:c0a8:101::1"),
    *("2620:4f:8000::1", "2a00:1450::5efe:10.0.0.1", "2a00:1450::200:5efe:127.0.0.1"),
    *("5f00::1", "fc00::1", "fd00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1"),
    *("ff02::1", "ff0e::1", "4000::1"),
]
PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.15.255.255"),
    *("172.32.0.1", "2606:4700:4700::1111", "2a00:1450:4001::1", "64:ff9b::8.8.8.8"),
    *("2002:808:808::1",),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_not_public_in_any_form(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


async def code_of(host: str, *answers: str) -> str:
    async def resolve(host: str, port: int) -> list[str]:
        if not answers:
            raise OSError("no such host")
        return list(answers)

    with pytest.raises(ToolProblem) as caught:
        await find_target(host, 80, resolve=resolve)
    return caught.value.code


@pytest.mark.parametrize(
    "host",
    [
        *("0x7f000001", "2130706433", "0177.0.0.1", "0x7f.0.0.1", "127.1", "127.0.1", "0", "0x"),
        *("127.0.0.1.0x1", "1.2.3.4.5", "256.256.256.256", "0127.0.0.1", "example.1", "1e3.0x7f"),
        *("", ".", "a" * 300, "fe80::1%eth0", "1::2::3", "::ffff:127.0.0.256", "[::1]"),
    ],
)
async def test_odd_forms_of_numbers_are_no_hosts(host: str) -> None:
    assert await code_of(host, "93.184.216.34") == "bad_url"


@pytest.mark.parametrize(
    "answers",
    [
        ("127.0.0.1",),
        ("93.184.216.34", "10.0.0.1"),
        ("::ffff:127.0.0.1", "93.184.216.34"),
        ("fe80::1%eth0",),
    ],
)
async def test_a_host_with_any_private_address_is_refused(answers: tuple[str, ...]) -> None:
    assert await code_of("evil.example", *answers) == "private_address"


@pytest.mark.parametrize("answers", [(), ("nonsense",), ("93.184.216.34", "0x7f000001")])
async def test_an_unknown_host_is_reported_as_not_found(answers: tuple[str, ...]) -> None:
    assert await code_of("none.example", *answers) == "not_found"


@pytest.mark.parametrize("host", ["localhost", "localhost.", "LOCALHOST"])
async def test_the_systems_own_name_is_refused(host: str) -> None:
    with pytest.raises(ToolProblem) as caught:
        await find_target(host, 80)
    assert caught.value.code == "private_address"


async def test_what_the_operator_allows_is_one_host_and_one_port() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    allowed = ("wiki.local:8080", "[::1]:80", "10.0.0.2:80")
    target = await find_target("Wiki.Local", 8080, resolve=resolve, allowed=allowed)
    assert target.addresses == ("10.0.0.1",)
    assert (await find_target("::1", 80, allowed=allowed)).addresses == ("::1",)
    for host, port in (("wiki.local", 80), ("other.local", 8080), ("::1", 81), ("10.0.0.3", 80)):
        with pytest.raises(ToolProblem):
            await find_target(host, port, resolve=resolve, allowed=allowed)
