"""Which role a member of a sign-in provider's groups has here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from app.domain.roles import UserRole

ANY_GROUP = "*"
"""Names every user of the provider, members of no group included, in a mapping."""

_STRONGEST_FIRST = (UserRole.ADMIN, UserRole.AGENT, UserRole.VIEWER)


@dataclass(frozen=True, slots=True)
class GroupRoles:
    """The roles of groups, as ``APP_OIDC_ROLES`` maps them."""

    by_group: Mapping[str, UserRole] = field(default_factory=dict)
    default: UserRole | None = None  #: of users without a mapped group; None refuses them

    @classmethod
    def parse(cls, text: str) -> GroupRoles:
        """Reads ``desk-admins=admin, staff=agent, *=viewer``. Semicolons separate groups whose names have commas.

        Raises:
            ValueError: an entry is not ``GROUP=ROLE``, or a group is named twice; the text says which.
        """
        by_group: dict[str, UserRole] = {}
        for entry in filter(None, (part.strip() for part in text.split(";" if ";" in text else ","))):
            group, separator, role = (part.strip() for part in entry.rpartition("="))
            if not separator or not group or role not in set(UserRole):
                raise ValueError(
                    f"must be GROUP=ROLE with the roles {', '.join(UserRole)}, such as desk-admins=admin, and "
                    f"'{entry}' is not"
                )
            if group in by_group:
                raise ValueError(f"must name each group once, and '{group}' is there twice")
            by_group[group] = UserRole(role)
        if not by_group:
            raise ValueError("must map at least one group, such as desk-admins=admin")
        default = by_group.pop(ANY_GROUP, None)
        return cls(by_group, default)

    def role_of(self, groups: Collection[str]) -> UserRole | None:
        """Returns the strongest role of these groups, or the default; None if neither is there."""
        roles = {self.by_group[group] for group in groups if group in self.by_group}
        return next((role for role in _STRONGEST_FIRST if role in roles), self.default)
