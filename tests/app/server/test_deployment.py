"""The files that a server is run from: what they name exists, what they promise about safety is written in each."""

from __future__ import annotations

import json
import re
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.api.request_middleware import HttpMetrics
from app.cli.flags import variable_name
from app.settings import AppSettings
from engine import EngineSettings, EngineState, EngineStats
from engine.remote.metrics import RemoteMetrics

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "docker-compose.yml"
ENVIRONMENT = (ROOT / ".env.example").read_text(encoding="utf-8")
DASHBOARD = ROOT / "deploy/grafana/dashboards/deskmate.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
SECRETS = ("POSTGRES_PASSWORD", "APP_SECRET_KEY", "APP_METRICS_TOKEN")
SERIES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def services() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]


def dashboard_queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return queries + [variable["query"]["query"] for variable in board["templating"]["list"]]


def alert_queries() -> list[str]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def exported() -> dict[str, set[str]]:
    """Every metric and the names of its series."""
    remote = RemoteMetrics(EngineStats.nothing, lambda: [])
    metrics = [metric for registry in (remote.registry, HttpMetrics().registry) for metric in registry.collect()]
    return {metric.name: {metric.name + ending for ending in SERIES[metric.type]} for metric in metrics}


def named_metrics(queries: list[str]) -> set[str]:
    return {name for query in queries for name in re.findall(r"\bdeskmate_\w+", query)}


def test_dashboard_and_alerts_ask_for_metrics_that_exist() -> None:
    series = set().union(*exported().values())
    assert named_metrics(dashboard_queries()) <= series
    assert named_metrics(alert_queries()) <= series


def test_dashboard_shows_every_metric() -> None:
    shown = named_metrics(dashboard_queries())
    assert [name for name, series in exported().items() if not series & shown] == []


def test_queries_use_labels_and_states_that_exist() -> None:
    labels = {"finished_reason", "state", "method", "status", "le", "instance", "job", "server"}
    for query in dashboard_queries() + alert_queries():
        grouped = {label for listed in re.findall(r"by \(([^)]*)\)", query) for label in listed.split(", ")}
        matched = set(re.findall(r'(\w+)=~?"', query))
        assert grouped | matched <= labels, query
        for states in re.findall(r'state=~?"([^"]*)"', query):
            assert set(states.split("|")) <= {state.value for state in EngineState}, query


def compose_variables() -> dict[str, list[str]]:
    """Every ``${VARIABLE...}`` and how it is written each time; those passed on as they are count too."""
    found: dict[str, list[str]] = {}
    for name, rest in re.findall(r"\$\{(\w+)((?::?[-?]|\}).{0,6})", COMPOSE.read_text(encoding="utf-8")):
        found.setdefault(name, []).append(rest)
    for service in services().values():
        for name, value in (service.get("environment") or {}).items():
            if value is None:
                found.setdefault(name, []).append("")
    return found


def test_every_variable_is_explained_and_every_explained_one_exists() -> None:
    explained = re.findall(r"^#?([A-Z_]+)=", ENVIRONMENT, re.MULTILINE)
    assert len(explained) == len(set(explained)), "once each"
    settings = {variable_name(cls, name) for cls in (AppSettings, EngineSettings) for name in cls.model_fields}
    assert set(explained) <= settings | set(compose_variables()) | {"COMPOSE_PROFILES"}
    assert set(compose_variables()) <= set(explained) | settings


def test_no_secret_has_a_default() -> None:
    variables = compose_variables()
    for secret in SECRETS:
        assert variables[secret]
        assert all(use.startswith(":?") for use in variables[secret]), secret
    assert variables["GRAFANA_PASSWORD"] == [":-${APP_"], "another secret, not a default"
    given = dict(re.findall(r"^([A-Z_]+)=(.*)$", ENVIRONMENT, re.MULTILINE))
    assert given == dict.fromkeys(SECRETS, ""), "three lines to fill in, nothing filled in already"


@pytest.mark.parametrize("name", services())
def test_every_service_is_confined(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "proxy" else [])
    assert service["restart"] == ("no" if name == "model-check" else "unless-stopped")
    assert {"memory", "pids"} <= set(service["deploy"]["resources"]["limits"])
    assert "privileged" not in service
    assert "network_mode" not in service
    assert "healthcheck" in service or "deskmate:" in service["image"], "our image has its own"
    for port in service.get("ports", []):
        assert re.match(r"127\.0\.0\.1:|\$\{\w+_BIND:-127\.0\.0\.1\}:", port), port


def test_profiles_only_add() -> None:
    profiles = {name: service.get("profiles") for name, service in services().items()}
    assert profiles == {
        "app": None,
        "model-check": None,
        "db": None,
        "app-gpu": ["gpu"],
        "vllm": ["cluster"],
        "proxy": ["proxy"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }


def test_docker_waits_longer_than_the_application_takes_to_end() -> None:
    service = services()["app"]
    shutdown = service["environment"]["APP_SHUTDOWN_SECONDS"]
    assert service["stop_grace_period"] == f"15s{shutdown}s", "Docker adds durations up"


def test_the_fixed_network_is_none_that_docker_gives_to_others() -> None:
    """Docker makes all networks at once: one without an address may be given the range that another one names."""
    given = [ip_network("172.16.0.0/12"), ip_network("192.168.0.0/16")]  # the default address pools
    defaults = dict(re.findall(r"\$\{(FRONT_SUBNET|FRONT_RANGE):-([^}]+)\}", COMPOSE.read_text(encoding="utf-8")))
    subnet, addresses = ip_network(defaults["FRONT_SUBNET"]), ip_network(defaults["FRONT_RANGE"])
    assert not any(subnet.overlaps(pool) for pool in given)
    assert addresses.subnet_of(subnet)  # type: ignore[arg-type]
    proxies = set(re.findall(r"\$\{PROXY_ADDRESS:-([^}]+)\}", COMPOSE.read_text(encoding="utf-8")))
    assert len(proxies) == 1
    proxy = ip_address(proxies.pop())
    assert proxy in subnet
    assert proxy not in addresses


def test_mounted_files_are_there() -> None:
    mounts = [volume for service in services().values() for volume in service.get("volumes", [])]
    folders = [mount.partition(":")[0] for mount in mounts if mount.startswith("./")]
    assert len(folders) == 6
    assert all((ROOT / folder).is_dir() for folder in folders)
