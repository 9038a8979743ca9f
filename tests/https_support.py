"""A server on this machine that speaks https, with a certificate of its own that only tests trust."""

import http.server
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CERTIFICATE = """
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgB4kNCCcqSu0Y/VYP
e73NP11rrqugwavQadJntHJpAeShRANCAASYuB47PqfXvZkkzYdgbE7AUQpKYb44
zzGVY1thpsO3azve8ex1GiODmgf9w/ak6EcRazoS9hYOYuRBtGCzyMy8
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUfeY1NFZMYa27mvVpH16hzs9Fq/UwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTIzMzkxMFoYDzIxMjYxMDI4
MjMzOTEwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASYuB47PqfXvZkkzYdgbE7AUQpKYb44zzGVY1thpsO3azve8ex1GiOD
mgf9w/ak6EcRazoS9hYOYuRBtGCzyMy8o2kwZzAdBgNVHQ4EFgQU54m3cigsFAi7
IUHDHOy09ANvZucwHwYDVR0jBBgwFoAU54m3cigsFAi7IUHDHOy09ANvZucwDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIgN1LRxnhS1zgoRFFFLIYU1B6hmjfoVU1DN/soFuU08zMCIQDjXKwrTIMQ
uVQS0hbJDK5vFQ5SaB5taOD1Cl2FmmrI9g==
-----END CERTIFICATE-----
"""
"""For `localhost`, until 2126; it protects nothing."""


@contextmanager
def serve(
    folder: Path, answers: Mapping[str, tuple[int, dict[str, str], bytes]]
) -> Iterator[tuple[str, ssl.SSLContext]]:
    """The server's address and what trusts it. answers: by path, status, headers and content; else 404."""
    pem = folder / "localhost.pem"
    pem.write_text(CERTIFICATE.strip() + "\n")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, content = answers.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    here.load_cert_chain(pem)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = here.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}", ssl.create_default_context(cafile=str(pem))
        finally:
            server.shutdown()
            thread.join()
