"""Users, their roles, and what they may change. Without sign-in there is one local user, who may do everything."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from engine.settings import Settings
from engine.specs import Refused

EMAIL = re.compile(r"[!-+\--?A-~]{1,64}@[A-Za-z0-9.-]{1,255}")
"""Addresses that can have a role: ASCII only, because other letters can become ASCII letters in lower case."""


class Role(IntEnum):
    """Roles of users, weakest first. Each role may do all that weaker ones may."""

    NONE = 0
    """See nothing."""
    VIEWER = 1
    """See everything."""
    RUNNER = 2
    """Also start runs, upload data, and change what it owns."""
    ADMIN = 3
    """Also change what others own."""

    @property
    def word(self) -> str:
        """Return the name of the role for messages, such as `viewer`."""
        return self.name.lower()


@dataclass(frozen=True)
class User:
    """Somebody who uses the store. The local user of the command line and of pages without sign-in has no e-mail."""

    email: str = ""
    role: Role = Role.ADMIN

    def require(self, role: Role) -> None:
        """Check the role. Errors: Refused when the user's role is weaker."""
        if self.role < role:
            raise Refused(f"your role is {self.role.word}, and this needs the role {role.word}: ask an administrator")

    def may_change(self, owner: str) -> bool:
        """Return whether this user may change what belongs to an owner. Only admins may change things without one."""
        return self.role is Role.ADMIN or (self.role is Role.RUNNER and owner == self.email != "")

    def check_owner(self, owner: str, what: str) -> None:
        """Check that this user may change something. Errors: Refused, with the name of its owner."""
        if not self.may_change(owner):
            raise Refused(f"{what} belongs to {owner or 'no user'}: only its owner and admins may do this")


LOCAL = User()


def user_of(claims: Mapping[str, Any], settings: Settings) -> User:
    """Return the user whom an OpenID provider's claims describe, with the highest role that the settings give.

    Without a verified e-mail there is no role, because anybody could have typed that address.
    """
    email = claims.get("email")
    if claims.get("email_verified") not in (True, "true") or not isinstance(email, str) or not EMAIL.fullmatch(email):
        return User("", Role.NONE)
    email = email.lower()
    names = {email, email[email.index("@") :]}
    granted = {Role.ADMIN: settings.admins, Role.RUNNER: settings.runners, Role.VIEWER: settings.viewers}
    return User(email, next((role for role, listed in granted.items() if names & set(listed.split(","))), Role.NONE))
