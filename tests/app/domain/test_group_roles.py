"""Which role groups have, and what a mapping must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.auth.oidc.claims import groups_of
from app.domain.group_roles import GroupRoles
from app.domain.roles import UserRole
from app.settings import AppSettings
from tests.app.desk import SECRET


def test_the_strongest_role_counts() -> None:
    roles = GroupRoles.parse(" readers = viewer,chiefs=admin , staff=agent,")
    assert roles.role_of(["readers", "staff"]) is UserRole.AGENT
    assert roles.role_of(["staff", "chiefs", "x"]) is UserRole.ADMIN
    assert roles.role_of(["Chiefs", "x"]) is None
    assert roles.role_of([]) is None


def test_a_default_is_for_those_without_a_group() -> None:
    roles = GroupRoles.parse("*=viewer, staff=agent")
    assert roles.role_of([]) is UserRole.VIEWER
    assert roles.role_of(["*"]) is UserRole.VIEWER
    assert roles.role_of(["staff"]) is UserRole.AGENT


def test_names_may_have_commas_and_equals_signs() -> None:
    roles = GroupRoles.parse("cn=desk admins,dc=example=admin; cn=staff,dc=example=agent")
    assert roles.role_of(["cn=desk admins,dc=example"]) is UserRole.ADMIN


@pytest.mark.parametrize("text", ["", ",", "staff", "staff=", "=agent", "staff=boss", "a=agent,a=admin", "*"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        GroupRoles.parse(text)


@pytest.mark.parametrize(
    ("claims", "groups"),
    [
        ({"groups": ["a", 7, "b"]}, {"a", "b"}),
        ({"groups": "a"}, {"a"}),
        ({"groups": {}}, set()),
        ({}, None),
        ({"groups": None}, None),
    ],
)
def test_groups_are_texts(claims: dict[str, Any], groups: set[str] | None) -> None:
    assert groups_of(claims, "groups") == groups


def test_a_claim_may_be_a_path_or_an_address() -> None:
    assert groups_of({"realm_access": {"roles": ["a"]}}, "realm_access.roles") == frozenset("a")
    assert groups_of({"https://desk.example/groups": ["a"]}, "https://desk.example/groups") == frozenset("a")
    assert groups_of({"realm_access": ["roles"]}, "realm_access.roles") is None


VALID: dict[str, Any] = {
    "accounts": True,
    "secret_key": SECRET,
    "oidc_issuer": "https://a.example",
    "oidc_client_id": "x",
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"oidc_issuer": "http://a.example"}, "https"),
        ({"oidc_issuer": "a.example"}, "https"),
        ({"oidc_roles": None}, "APP_OIDC_ROLES"),
        ({"oidc_client_id": ""}, "APP_OIDC_CLIENT_ID"),
        ({"accounts": False}, "APP_ACCOUNTS"),
        ({"oidc_scopes": "profile"}, "openid"),
        ({"oidc_roles": "staff=boss"}, "staff=boss"),
    ],
)
def test_settings_that_could_not_work_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    given = {**VALID, "oidc_roles": "staff=agent", "data_dir": tmp_path}
    AppSettings(_env_file=None, **given)
    with pytest.raises(ValidationError, match=message):
        AppSettings(_env_file=None, **{**given, **changes})
