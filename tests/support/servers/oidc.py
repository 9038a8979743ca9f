"""Run a small OpenID Connect provider on a loopback port. It accepts every e-mail without a password."""

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT = "vitals"
FORM = """<form><input name="email" aria-label="E-mail"><button>Continue</button>{hidden}</form>"""


class Provider(ThreadingHTTPServer):
    """Serve discovery, authorisation with S256, tokens and keys. client_secret: the client must send it."""

    def __init__(self, client_secret: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.client_secret = client_secret
        self.key = RSAKey.generate_key(2048, {"kid": "test", "alg": "RS256", "use": "sig"})
        self.codes: dict[str, dict[str, str]] = {}
        """Authorisation requests, by the code that was issued for them."""
        self.issued: list[str] = []
        """All codes and tokens issued so far. None of them may be in any file."""

    @property
    def secrets_toml(self) -> str:
        """Return the text of secrets.toml without the cookie secret."""
        return (
            f'[auth]\nredirect_uri = "http://127.0.0.1:{{port}}/oauth2callback"\nclient_id = "{CLIENT}"\n'
            f'client_secret = "{self.client_secret}"\n'
            f'server_metadata_url = "{self.url}/.well-known/openid-configuration"\n'
        )


class Handler(BaseHTTPRequestHandler):
    server: Provider

    def log_message(self, *_: object) -> None:
        """Print no requests."""

    def _send(self, status: int, content: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _json(self, content: dict[str, Any], status: int = 200) -> None:
        self._send(status, json.dumps(content).encode())

    def do_GET(self) -> None:
        url, provider = urlsplit(self.path), self.server
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match url.path:
            case "/.well-known/openid-configuration":
                ends = {"authorization": "authorize", "token": "token"}
                known = {f"{name}_endpoint": f"{provider.url}/{path}" for name, path in ends.items()}
                known |= {"issuer": provider.url, "jwks_uri": f"{provider.url}/keys"}
                self._json(known | {"code_challenge_methods_supported": ["S256"]})
            case "/keys":
                self._json({"keys": [provider.key.as_dict(private=False)]})
            case "/authorize" if email := query.get("email"):
                code = secrets.token_urlsafe(24)
                provider.issued.append(code)
                provider.codes[code] = query | {"email": email}
                target = f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"
                self._send(302, b"", Location=target)
            case "/authorize":
                hidden = "".join(f'<input type="hidden" name="{name}" value="{query[name]}">' for name in query)
                self._send(200, FORM.format(hidden=hidden).encode(), "text/html")
            case _:
                self._send(404, b"")

    def do_POST(self) -> None:
        provider = self.server
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        expected = base64.b64encode(f"{CLIENT}:{provider.client_secret}".encode()).decode()
        grant = provider.codes.pop(form.get("code", [""])[0], None)
        digest = sha256(form.get("code_verifier", [""])[0].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if self.headers["Authorization"] != f"Basic {expected}" or not grant or grant["code_challenge"] != challenge:
            self._json({"error": "invalid_grant"}, 400)
            return
        now = int(time.time())
        claims = {"iss": provider.url, "sub": grant["email"], "aud": CLIENT, "iat": now, "exp": now + 600}
        claims |= {"nonce": grant["nonce"], "email": grant["email"], "email_verified": True}
        tokens = {"id_token": jwt.encode({"alg": "RS256", "kid": "test"}, claims, provider.key)}
        tokens |= {"access_token": secrets.token_urlsafe(24)}
        provider.issued += tokens.values()
        self._json(tokens | {"token_type": "Bearer", "expires_in": 600})


@contextmanager
def provide(client_secret: str) -> Iterator[Provider]:
    """Run a provider, and stop it afterwards."""
    provider = Provider(client_secret)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    try:
        yield provider
    finally:
        provider.shutdown()
        provider.server_close()
