"""Run Debian's nginx with deploy/nginx.conf, in front of a server on a loopback port."""

import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from engine.settings import ROOT

NAME = "vitals.example.org"
"""The name in the configuration. Clients that use it must find it at 127.0.0.1."""
MAIN = """
daemon off;
user root;
pid nginx.pid;
error_log error.log;
events {}
http {
    access_log access.log;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include site.conf;
}
"""
"""Main configuration instead of Debian's nginx.conf, which names folders that only root may write to."""
MISSING = "there is no {}: install nginx and openssl (on Debian: apt-get install nginx-light openssl)"


@dataclass(frozen=True)
class Proxy:
    """A running nginx. Its clients trust only `certificate`."""

    port: int
    plain_port: int
    certificate: Path

    def ask(self, path: str, *, tls: bool = True, name: str = NAME, **options: Any) -> httpx.Response:
        """Send a request with NAME as TLS server name and `name` in the Host header, and return the response."""
        scheme, port = ("https", self.port) if tls else ("http", self.plain_port)
        headers = {"Host": f"{name}:{port}"} | options.pop("headers", {})
        trusted = ssl.create_default_context(cafile=self.certificate)
        with httpx.Client(verify=trusted, timeout=60, trust_env=False) as client:
            url, extensions = f"{scheme}://127.0.0.1:{port}{path}", {"sni_hostname": NAME}
            method = options.pop("method", "GET")
            return client.request(method, url, headers=headers, extensions=extensions, **options)


def program(name: str) -> str:
    """Return the path of a program. Debian installs servers in a folder that only root's PATH contains."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, MISSING.format(name)
    return found


def configuration(upstream: str, port: int, plain_port: int, certificate: Path, key: Path) -> str:
    """Return deploy/nginx.conf with only its ports and the paths of its certificate replaced."""
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    files = f"/etc/letsencrypt/live/{NAME}"
    for old, new in {
        "listen 80": f"listen 127.0.0.1:{plain_port}",
        "listen 443": f"listen 127.0.0.1:{port}",
        "https://$host$request_uri": f"https://$host:{port}$request_uri",
        "127.0.0.1:8501": upstream,
        f"{files}/fullchain.pem": str(certificate),
        f"{files}/privkey.pem": str(key),
    }.items():
        assert old in text, f"{old} is not in deploy/nginx.conf"
        text = text.replace(old, new)
    return text


@contextmanager
def proxy(folder: Path, upstream: str, port: int, plain_port: int) -> Iterator[Proxy]:
    """Run nginx with a throwaway certificate in front of `upstream` (address:port), and end it afterwards."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    arguments = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={NAME}".split()
    arguments += ["-addext", f"subjectAltName=DNS:{NAME}", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([program("openssl"), *arguments], check=True, capture_output=True)
    (folder / "site.conf").write_text(configuration(upstream, port, plain_port, certificate, key))
    (folder / "nginx.conf").write_text(MAIN if os.getuid() == 0 else MAIN.replace("user root;\n", ""))
    command = [program("nginx"), "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]
    nginx = subprocess.Popen(command)
    try:
        running, deadline = Proxy(port, plain_port, certificate), time.monotonic() + 30
        while True:
            try:
                running.ask("/health")
                break
            except httpx.ConnectError:
                assert nginx.poll() is None, (folder / "error.log").read_text()
                assert time.monotonic() < deadline, (folder / "error.log").read_text()
                time.sleep(0.05)
        yield running
    finally:
        nginx.terminate()
        nginx.wait(30)
