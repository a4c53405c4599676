"""Nothing inside is asked: whatever an address is wrapped in, and whatever a name server says the second
time. On loopback, with name servers and networks of our own."""

import ipaddress
import random
import socket
import subprocess
import threading
import time

import httpcore
import pytest
from helper_site import Site, html

from ragbench.base.errors import ConfigError
from ragbench.ingest import fetch
from ragbench.ingest.addresses import is_public
from ragbench.ingest.loader import Limits
from ragbench.ingest.web import load_url

pytest.importorskip("trafilatura")
PUBLIC = "93.184.215.14"

INSIDE = [
    # NAT64, and its local prefix
    "[64:ff9b::7f00:1]", "[64:ff9b::10.0.0.1]", "[64:ff9b:1::1]", "[64:ff9b:1::8.8.8.8]",
    # 6to4
    "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]",
    # Teredo, of the server and of the client
    "[2001:0:7f00:1::]", "[2001:0:808:808:0:0:80ff:fffe]",
    # compatible, mapped, translated, ISATAP
    "[::127.0.0.1]", "[::ffff:127.0.0.1]", "[::ffff:0:127.0.0.1]", "[2606:2800::5efe:10.0.0.1]", "[2606:2800::200:5efe:7f00:1]",  # noqa: E501
    "[fec0::1]", "[fc00::1]", "[fd00:ec2::254]", "[fe80::1]", "[ff02::1]", "[::]", "[::1]", "[100::1]", "[2001:db8::1]", "[3fff::1]", "[5f00::1]", "[4000::1]",  # noqa: E501
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "0.0.0.0", "0.1.2.3",  # noqa: E501
    "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16",  # noqa: E501
    "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.1", "0", "localhost", "localhost.", "１２７.0.0.1", "①②⑦.0.0.1",  # noqa: E501
]  # fmt: skip


@pytest.fixture
def dialled(monkeypatch):
    """Every connection that is tried, as (address, port); none is made but to a site of this test, under the
    public address that stands for it."""
    tried, sites = [], {}
    real = httpcore.SyncBackend.connect_tcp

    def connect(self, host, port, timeout=None, **options):
        tried.append((host, port))
        if host not in sites:
            raise httpcore.ConnectError("this test goes nowhere else")
        return real(self, "127.0.0.1", port, timeout, **options)

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    monkeypatch.setattr(fetch.Web, "_peer", lambda self, response: None)  # the sites really are on loopback
    tried_and_sites = type("Dialled", (), {"tried": tried, "sites": sites})
    return tried_and_sites


@pytest.mark.parametrize("host", INSIDE)
def test_no_address_leads_inside(dialled, host):
    try:
        (error,) = load_url(f"http://{host}/", delay=0).errors
        reason = error.reason
    except ConfigError as e:  # not even a URL
        reason = e.what
    assert any(
        words in reason
        for words in ("not on the public internet", "there is no such host", "it is not a URL")
    ), reason
    assert dialled.tried == []


def test_no_private_network_is_public_in_any_wrapping():
    rng = random.Random(1)
    networks = [
        ipaddress.ip_network(n)
        for n in ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16", "100.64.0.0/10")
    ]
    for _ in range(300):
        inside = int(rng.choice(networks)[0]) + rng.randrange(1 << 16)
        wrapped = [inside, 0xFFFF << 32 | inside, 0x64FF9B << 96 | inside, 0x2002 << 112 | inside << 80 | rng.getrandbits(80), (0x20010000 << 96) | rng.getrandbits(64) << 32 | (inside ^ 0xFFFFFFFF),  # noqa: E501
                   0x26062800 << 96 | 0x5EFE << 32 | inside]  # fmt: skip
        for address in [ipaddress.IPv4Address(inside), *map(ipaddress.IPv6Address, wrapped)]:
            assert not is_public(str(address)), address
    assert all(
        is_public(a) for a in (PUBLIC, "8.8.8.8", "2606:2800:220:1::1", "64:ff9b::8.8.8.8", "2002:808:808::1")
    )


@pytest.mark.parametrize(
    "answers", [[[PUBLIC], ["127.0.0.1"]], [[PUBLIC, "127.0.0.1"]], [["127.0.0.1"], [PUBLIC]]]
)
def test_a_name_that_changes_its_address_leads_nowhere(site, dialled, monkeypatch, answers):
    """The first question is answered, and that address is the one that is dialled; the name server's second
    answer is never asked for, or is checked too."""
    site.pages["/"] = html("Secret")
    asked = []

    def resolve(host):
        asked.append(host)
        return answers[min(len(asked) - 1, len(answers) - 1)]

    monkeypatch.setattr(fetch, "_addresses", resolve)
    corpus = load_url(site.url.replace("127.0.0.1", "rebind.example"), delay=0)
    assert len(corpus) == 0
    assert site.asked == []
    assert {address for address, _ in dialled.tried} <= {PUBLIC}
    assert len(asked) == 1


def test_a_public_page_cannot_send_us_inside(site, dialled, monkeypatch):
    inside = Site()
    inside.pages["/"] = html("Secret")
    port = site.server.server_port
    dialled.sites[PUBLIC] = True
    monkeypatch.setattr(
        fetch, "_addresses", lambda host: [PUBLIC] if host == "docs.example" else ["127.0.0.1"]
    )
    for target in (
        inside.url.replace("127.0.0.1", "localhost") + "/",
        f"http://intranet.example:{inside.server.server_port}/",
        "http://[::ffff:127.0.0.1]/",
    ):
        site.pages["/"] = (302, {"Location": target}, b"")
        corpus = load_url(f"http://docs.example:{port}/", delay=0)
        assert len(corpus) == 0
        assert "is not on the public internet" in corpus.errors[0].reason
    inside.server.shutdown()
    inside.server.server_close()
    assert inside.asked == []
    assert {address for address, _ in dialled.tried} == {PUBLIC}


def test_host_and_robots_are_those_of_the_name(site, dialled, monkeypatch):
    hosts = []

    def page(handler):
        hosts.append(handler.headers["Host"])
        body = html("Docs")
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    site.pages["/"] = page
    dialled.sites[PUBLIC] = True
    monkeypatch.setattr(fetch, "_addresses", lambda host: [PUBLIC])
    (doc,) = load_url(f"http://docs.example:{site.server.server_port}/", delay=0)
    assert doc.id == f"http://docs.example:{site.server.server_port}/"
    assert hosts == [f"docs.example:{site.server.server_port}"]


def test_the_certificate_is_asked_for_and_checked_by_name(tmp_path, dialled, monkeypatch):
    import shutil
    import ssl

    if shutil.which("openssl") is None:
        pytest.skip("makes its certificates with openssl")
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=docs.example",
            # fmt: skip
            "-addext",
            "subjectAltName=DNS:docs.example",
            "-keyout",
            key,
            "-out",
            cert,
        ],
        check=True,
        capture_output=True,
    )
    server_context, names = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), []
    server_context.load_cert_chain(cert, key)
    server_context.sni_callback = lambda sock, name, context: names.append(name)
    site = Site()
    site.pages["/"] = html("Docs")
    site.server.socket = server_context.wrap_socket(site.server.socket, server_side=True)
    trusted = ssl.create_default_context(cafile=cert)
    monkeypatch.setattr(fetch.httpx_module(), "create_ssl_context", lambda **options: trusted)
    dialled.sites[PUBLIC] = True
    monkeypatch.setattr(fetch, "_addresses", lambda host: [PUBLIC])
    good, other = (
        load_url(f"https://{name}:{site.server.server_port}/", delay=0)
        for name in ("docs.example", "other.example")
    )
    site.server.shutdown()
    site.server.server_close()
    assert [d.metadata["title"] for d in good] == ["Docs"]
    assert "could not be fetched" in other.errors[0].reason
    assert set(names) == {"docs.example", "other.example"}


def test_of_several_addresses_the_next_is_tried(site, dialled, monkeypatch):
    site.pages["/"] = html("Docs")
    dialled.sites[PUBLIC] = True
    monkeypatch.setattr(fetch, "_addresses", lambda host: ["8.8.4.4", PUBLIC])
    assert len(load_url(f"http://docs.example:{site.server.server_port}/", delay=0)) == 1
    assert [address for address, _ in dialled.tried][:2] == ["8.8.4.4", PUBLIC]


def test_a_slow_name_server_counts_against_the_time_of_a_page(dialled, monkeypatch):
    monkeypatch.setattr(fetch, "_addresses", lambda host: time.sleep(60))
    (error,) = load_url("http://docs.example/", delay=0, limits=Limits(seconds=1)).errors
    assert "it took longer than 1 seconds" in error.reason
    assert dialled.tried == []


def test_proxies_of_the_environment_are_not_asked(site, dialled, monkeypatch):
    """A proxy looks up names itself, where nobody can check what they lead to."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.2)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        stop = threading.Event()

        def listen():
            while not stop.is_set():
                try:
                    proxy.accept()[0].close()
                    asked.append(1)
                except TimeoutError:
                    continue

        thread = threading.Thread(target=listen)
        thread.start()
        site.pages["/"] = html("Docs")
        dialled.sites[PUBLIC] = True
        monkeypatch.setattr(fetch, "_addresses", lambda host: [PUBLIC])
        corpus = load_url(f"http://docs.example:{site.server.server_port}/", delay=0)
        stop.set()
        thread.join()
    assert len(corpus) == 1
    assert asked == []
