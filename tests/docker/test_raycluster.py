"""The manifest of a pool for KubeRay: its structure, what it may do, and that its parts fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from jaxd_server.pool.ray_cluster import HEALTH
from jaxd_server.pool.settings import PoolSettings, read_settings
from tests.docker.engine import ROOT

MANIFEST = ROOT / "docker" / "raycluster.yaml"
UID = 10001
KUBERNETES = "1.33"

_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_COUNT = {"type": "integer", "minimum": 0}
_TEMPLATE = {"type": "object", "required": ["spec"]}
"""Checked by the schemas of Kubernetes itself."""

CLUSTER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayCluster"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["headGroupSpec"],
            "properties": {
                "rayVersion": {"type": "string"},
                "enableInTreeAutoscaling": {"type": "boolean"},
                "authOptions": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "mode": {"enum": ["disabled", "token"]},
                        "secretName": {"type": "string"},
                    },
                },
                "tlsOptions": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"enabled": {"type": "boolean"}},
                },
                "headGroupSpec": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["rayStartParams", "template"],
                    "properties": {"rayStartParams": _TEXTS, "template": _TEMPLATE},
                },
                "workerGroupSpecs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": [
                            "groupName",
                            "minReplicas",
                            "maxReplicas",
                            "rayStartParams",
                            "template",
                        ],
                        "properties": {
                            "groupName": {"type": "string"},
                            "replicas": _COUNT,
                            "minReplicas": _COUNT,
                            "maxReplicas": _COUNT,
                            "rayStartParams": _TEXTS,
                            "template": _TEMPLATE,
                        },
                    },
                },
            },
        },
    },
}
"""The fields that the manifest uses, as the API of KubeRay 1.7 has them."""


@cache
def objects() -> Mapping[str, Mapping[str, Any]]:
    """The objects of the manifest, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


def cluster() -> Mapping[str, Any]:
    """What KubeRay is asked for."""
    spec: Mapping[str, Any] = objects()["RayCluster"]["spec"]
    return spec


def members() -> Mapping[str, Any]:
    """The group of nodes that members are placed on."""
    (group,) = cluster()["workerGroupSpecs"]
    found: Mapping[str, Any] = group
    return found


def pods() -> Mapping[str, Mapping[str, Any]]:
    """What the two kinds of pods run."""
    groups = {"head": cluster()["headGroupSpec"], "members": members()}
    return {name: group["template"]["spec"] for name, group in groups.items()}


def containers(kind: str) -> Mapping[str, Mapping[str, Any]]:
    """Those of a pod, by name."""
    spec = pods()[kind]
    return {one["name"]: one for one in (*spec.get("initContainers", ()), *spec["containers"])}


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """The variables that a container gets."""
    return {one["name"]: one["value"] for one in container["env"]}


@pytest.fixture
def settings(tmp_path: Path) -> PoolSettings:
    """Those of the pool, as the director reads them."""
    file = tmp_path / "pool.toml"
    file.write_text(objects()["ConfigMap"]["data"]["pool.toml"])
    return read_settings(str(file))


def test_the_cluster_is_one_that_kuberay_knows() -> None:
    """No field is misspelt, and all are there that have to be."""
    errors = Draft202012Validator(CLUSTER).iter_errors(objects()["RayCluster"])
    assert [f"{error.json_path}: {error.message}" for error in errors] == []


def test_a_misspelt_field_would_be_found() -> None:
    """In the cluster and in its pods."""
    wrong = yaml.safe_load(
        MANIFEST.read_text().replace("rayStartParams", "rayStartParam").split("---")[-1]
    )
    assert list(Draft202012Validator(CLUSTER).iter_errors(wrong))
    with pytest.raises(kubernetes_validate.ValidationError):
        _validate({"spec": {**pods()["head"], "automountServiceAccountTokens": False}})


def _validate(template: Mapping[str, Any]) -> None:
    whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
    kubernetes_validate.validate({**whole, "template": template}, KUBERNETES, strict=True)


@pytest.mark.parametrize("kind", ["head", "members"])
def test_a_pod_is_one_that_kubernetes_knows(kind: str) -> None:
    """By the schemas of Kubernetes, in which no unknown field passes."""
    _validate({"spec": pods()[kind]})


@pytest.mark.parametrize("kind", ["PersistentVolumeClaim", "ConfigMap", "Service", "NetworkPolicy"])
def test_what_stands_beside_the_cluster_is_known_to_kubernetes(kind: str) -> None:
    """As above."""
    kubernetes_validate.validate(objects()[kind], KUBERNETES, strict=True)


@pytest.mark.parametrize("kind", ["head", "members"])
def test_no_pod_may_do_more_than_its_work(kind: str) -> None:
    """As the restricted profile of Kubernetes asks for, and as the image's user."""
    spec = pods()[kind]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == UID
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(kind).values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("kind", ["head", "members"])
def test_what_is_mounted_is_there(kind: str) -> None:
    """Every mount has its volume, but for the one that KubeRay adds."""
    volumes = {one["name"] for one in pods()[kind]["volumes"]}
    mounts = {one["name"] for each in containers(kind).values() for one in each["volumeMounts"]}
    assert mounts - volumes == ({"ray-tls"} if kind == "head" else set())
    assert volumes <= mounts


@pytest.mark.parametrize("kind", ["head", "members"])
def test_every_container_that_stays_has_probes_of_its_own(kind: str) -> None:
    """Those that KubeRay would add ask Ray's dashboard, which is not there."""
    for container in pods()[kind]["containers"]:
        ports = {one["name"] for one in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["tcpSocket"]["port"] in ports
    assert members()["rayStartParams"]["node-manager-port"] == str(
        containers("members")["ray-worker"]["ports"][0]["containerPort"]
    )


def test_ray_shows_nothing_and_lets_nobody_in_without_its_token() -> None:
    """No dashboard, no reports of use, a token, TLS between nodes, and closed ports."""
    head = cluster()["headGroupSpec"]["rayStartParams"]
    assert head["include-dashboard"] == "false"
    assert head["num-cpus"] == "0"
    assert cluster()["authOptions"]["mode"] == "token"
    assert cluster()["tlsOptions"] == {"enabled": True}
    assert all(environment(one)["RAY_USAGE_STATS_ENABLED"] == "0" for one in _of_ray())
    pool, others = objects()["NetworkPolicy"]["spec"]["ingress"]
    assert pool == {"from": [{"podSelector": {"matchLabels": {"ray.io/cluster": "jaxd"}}}]}
    assert {6379, 6380}.isdisjoint(one["port"] for one in others["ports"])
    assert objects()["RayCluster"]["metadata"]["name"] == "jaxd"


def _of_ray() -> Iterator[Mapping[str, Any]]:
    yield from (one for kind in pods() for one in pods()[kind]["containers"])


def test_the_death_of_a_node_is_noticed_as_in_a_cluster_of_our_own() -> None:
    """What `jaxd pool up` gives a cluster that it starts, the head gets from its environment."""
    given = environment(containers("head")["ray-head"])
    assert {f"RAY_{name}": str(value) for name, value in HEALTH.items()}.items() <= given.items()


def test_the_pool_is_what_the_cluster_has_room_for(settings: PoolSettings) -> None:
    """As many members as nodes, on the devices of a node, at ports that clients reach."""
    assert settings.members.count == members()["replicas"]
    assert settings.members.most == members()["maxReplicas"]
    limits = containers("members")["ray-worker"]["resources"]["limits"]
    assert settings.members.platform == "gpu"
    assert settings.members.devices == limits["nvidia.com/gpu"]
    director, servers = objects()["NetworkPolicy"]["spec"]["ingress"][1]["ports"]
    assert settings.listen.port == director["port"]
    assert settings.members.ports == (servers["port"], servers["endPort"])
    (port,) = objects()["Service"]["spec"]["ports"]
    assert port["port"] == settings.listen.port
    assert settings.advertise == objects()["Service"]["metadata"]["name"]
    named = {one["name"]: one["containerPort"] for one in containers("head")["director"]["ports"]}
    assert named[port["targetPort"]] == settings.listen.port


def test_what_the_settings_name_is_mounted(settings: PoolSettings) -> None:
    """Ray's token and the pool's secrets for the director, the shared store for members."""
    director, member = containers("head")["director"], containers("members")["ray-worker"]
    assert settings.ray.token_file == f"{_mounted(director, 'ray-token')}/auth_token"
    assert settings.ray.address == "127.0.0.1:6379"
    assert settings.members.store.startswith(f"{_mounted(member, 'store')}/")
    for container in (director, member):
        folder, given = _mounted(container, "secrets"), environment(container)
        assert given["JAXD_TOKEN_FILE"] == f"{folder}/token"
        assert given["JAXD_POOL_KEY_FILE"] == f"{folder}/pool-key"
    volumes = {one["name"]: one for one in pods()["members"]["volumes"]}
    claim = volumes["store"]["persistentVolumeClaim"]["claimName"]
    assert claim == objects()["PersistentVolumeClaim"]["metadata"]["name"]


def _mounted(container: Mapping[str, Any], volume: str) -> str:
    (path,) = [one["mountPath"] for one in container["volumeMounts"] if one["name"] == volume]
    return str(path)


def test_the_director_has_its_own_certificate_and_members_have_not() -> None:
    """So that its pin is the same after a restart; where the server looks for it."""
    start = containers("head")["certificate"]
    home = _mounted(containers("head")["director"], "home")
    assert start["args"][1] == f"{home}/.config/jaxd/tls.pem"
    assert start["args"][0].startswith(_mounted(start, "secrets"))
    volumes = {one["name"]: one for one in pods()["members"]["volumes"]}
    assert "tls.pem" not in str(volumes["secrets"])


def test_the_director_is_what_jaxd_pool_up_starts() -> None:
    """With the settings that are mounted; the same files are in both containers of its pod."""
    director, ray = containers("head")["director"], containers("head")["ray-head"]
    assert director["command"] == [
        "python",
        "-P",
        "-m",
        "jaxd_server.pool",
        f"{_mounted(director, 'pool')}/pool.toml",
    ]
    for volume in ("tmp", "shm", "home"):
        assert _mounted(director, volume) == _mounted(ray, volume)
    images = {one["image"] for kind in pods() for one in containers(kind).values()}
    assert len(images) == 1
