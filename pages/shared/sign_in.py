"""Sign in with Streamlit's OpenID Connect: check the configuration, return the user, draw the sign-in page."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.auth_util import validate_auth_credentials
from streamlit.errors import StreamlitAuthError, StreamlitSecretNotFoundError
from streamlit.runtime.scriptrunner import get_script_run_ctx

from engine.roots import stat_within
from engine.settings import Settings
from engine.specs import Refused
from engine.store import Role, User
from engine.store.access import LOCAL, user_of
from pages.shared import browser_history
from pages.shared.text import plain

NOBODY = User("", Role.NONE)
SHORTEST_SECRET = 32
"""Fewest characters of the secret that signs cookies: 128 bits in hexadecimal. Streamlit only warns of a short one."""


@cache
def configured() -> bool:
    """Return whether the secrets have an [auth] section. Errors: StreamlitSecretNotFoundError for an unreadable file.

    The first answer is cached, so that deleting the file later does not open the pages to everybody.
    """
    return any(path.exists() for path in _files()) and "auth" in st.secrets


def check(settings: Settings) -> None:
    """Refuse to start if nobody can sign in or if runs could read the secrets. Errors: Refused."""
    try:
        if not configured():
            return
        for provider in _providers():
            validate_auth_credentials(provider)
    except (StreamlitAuthError, StreamlitSecretNotFoundError) as error:
        raise Refused(f"the sign-in settings in secrets.toml are not valid: {' '.join(str(error).split())}") from None
    if len(str(st.secrets["auth"]["cookie_secret"])) < SHORTEST_SECRET:
        raise Refused(
            f"auth.cookie_secret has fewer than {SHORTEST_SECRET} characters, so cookies could be forged: take "
            "one from `python -c 'import secrets; print(secrets.token_hex(32))'`"
        )
    if not (settings.admins or settings.runners or settings.viewers):
        raise Refused("sign-in is configured, but nobody has a role: name yourself in VITALS_ADMINS")
    for path in _files():
        if stat_within(path.resolve(), settings.roots):
            raise Refused(
                f"runs may read the secrets in {path}, because it is in a data folder: move it, or set "
                "VITALS_DATA_ROOTS to other folders"
            )


def user(settings: Settings, claims: Mapping[str, Any] | None = None) -> User:
    """Return the user with these claims: the local user without sign-in, else the signed-in user or NOBODY.

    claims: None for the user of this page.
    """
    if not configured():
        return LOCAL
    if claims is None:
        claims = st.user.to_dict() if get_script_run_ctx(suppress_warning=True) else {}
    return user_of(claims, settings) if claims.get("is_logged_in") is True else NOBODY


def draw(settings: Settings) -> None:
    """Draw the signed-in user in the sidebar. Without a role, draw a page to sign in or out, and stop the script."""
    if not configured():
        return
    visitor = user(settings)
    if visitor.role > Role.NONE:
        st.sidebar.text(f"{visitor.email} ({visitor.role.word})")
        st.sidebar.button("Sign out", icon=":material/logout:", key="sign_out", on_click=st.logout, type="tertiary")
        return
    st.title("Model Vitals", anchor=False)
    if st.user.get("is_logged_in"):
        name = st.user.get("email") or "This account"
        reason = "has no role here" if visitor.email else "has no verified e-mail from its provider"
        st.error(plain(f"{name} {reason}. Ask an administrator of this server."), icon=":material/block:")
        st.button("Sign out", icon=":material/logout:", key="sign_out", on_click=st.logout)
    else:
        for provider in _providers():
            label = "Sign in" if provider == "default" else f"Sign in with {provider}"
            key = f"sign_in_{provider}"
            st.button(label, icon=":material/login:", type="primary", key=key, on_click=st.login, args=(provider,))
        browser_history.keep_address()
    st.stop()


def _files() -> list[Path]:
    return [Path(file) for file in st.get_option("secrets.files")]


def _providers() -> list[str]:
    """Return the names of the configured providers; `default` for one without a section of its own."""
    auth = st.secrets["auth"]
    named = [name for name, value in auth.items() if isinstance(value, Mapping) and "client_id" in value]
    return ["default", *named] if "client_id" in auth or not named else named
