"""What the files in docker/ say, where a schema cannot know whether that is right."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxd_protocol.network.addresses import Address
from jaxd_server.config.options import parse_arguments
from tests.docker.engine import ROOT

DOCKER = ROOT / "docker"
PORT = 18861
_COMPOSE = ("compose.cpu.yaml", "compose.yaml", "compose.monitoring.yaml")
UID = 10001


@cache
def dockerfile() -> str:
    """Without comments, and with continued lines joined."""
    text = (DOCKER / "Dockerfile").read_text()
    return re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))


def last_stage() -> str:
    """What becomes the image."""
    return dockerfile().rpartition("\nFROM ")[2]


def instruction(name: str, text: str) -> str:
    """The argument of an instruction that stands there once."""
    (found,) = re.findall(rf"^{name} (.*)$", text, flags=re.MULTILINE)
    return str(found)


def compose(name: str) -> Mapping[str, Any]:
    """The one service of a compose file."""
    service: Mapping[str, Any] = yaml.safe_load((DOCKER / name).read_text())["services"]["jaxd"]
    return service


@cache
def kubernetes() -> Mapping[str, Mapping[str, Any]]:
    """The objects of the manifest, by kind."""
    text = (DOCKER / "kubernetes.yaml").read_text()
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def pod() -> Mapping[str, Any]:
    """What the deployment runs."""
    spec: Mapping[str, Any] = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    return spec


def unit() -> configparser.ConfigParser:
    """The systemd unit."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DOCKER / "jaxd.service").read_text().replace("\\\n", " "))
    return parser


def test_the_image_runs_the_server_as_nobody_and_as_process_1() -> None:
    """No shell stands between it and SIGTERM."""
    stage = last_stage()
    assert instruction("USER", stage) == f"{UID}:{UID}"
    assert instruction("ENTRYPOINT", stage).startswith('["jaxd", "serve", ')
    assert instruction("STOPSIGNAL", stage) == "SIGTERM"
    assert instruction("EXPOSE", stage) == str(PORT)
    assert '["jaxd", "status", "--ready"]' in instruction("HEALTHCHECK", stage)


def test_the_health_check_asks_the_server_of_the_image() -> None:
    """The address that `jaxd` finds in the environment is one that the server opens."""
    stage = last_stage()
    (address,) = re.findall(r"JAXD_SERVER=(\S+)", instruction("ENV", stage))
    assert address in instruction("ENTRYPOINT", stage)


def test_no_layer_of_the_image_holds_what_only_building_needs() -> None:
    """Everything is installed elsewhere, or without a cache; nothing is compiled."""
    assert dockerfile().count("\nFROM ") == 3
    assert "apt-get" not in dockerfile()
    assert "--no-cache-dir" in last_stage()
    assert "--only-binary :all:" in dockerfile()


def test_the_image_installs_nothing_without_a_hash_but_what_its_builder_asks_for() -> None:
    """Two files of hashes; what was built from this checkout; and PACKAGES, by version."""
    installs = re.findall(r"pip --python \S+ install ([^&;]*)", dockerfile())
    assert len(installs) == 4
    for words in installs:
        assert "--require-hashes" in words or "--no-index" in words or "${PACKAGES}" in words


def test_every_accelerator_of_the_image_is_an_extra() -> None:
    """Those that its first lines promise."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (line,) = re.findall(
        r"^# ACCELERATOR +(.*?):", (DOCKER / "Dockerfile").read_text(), re.MULTILINE
    )
    names = re.split(r", | or ", line)
    assert names[0] == "cpu"
    assert set(names[1:]) <= extras.keys()


@pytest.mark.parametrize(
    "path", ["docker/jaxd.token", ".git/config", ".venv/bin/python", "tests/conftest.py"]
)
def test_nothing_private_is_sent_to_the_builder(path: str) -> None:
    """All is left out but what is named."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line]
    rules = [line for line in lines if not line.startswith("#")]
    assert rules[0] == "*"
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    assert not any(path == each or path.startswith(f"{each}/") for each in kept)
    assert all((ROOT / each).exists() for each in kept)


def test_the_service_may_do_nothing_but_its_work() -> None:
    """It writes to its volume and to memory, and gains no rights."""
    service = compose("compose.cpu.yaml")
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert service["volumes"] == ["state:/var/lib/jaxd"]
    assert f"/run/secrets/{service['secrets'][0]}" in service["command"]


def test_the_service_on_a_gpu_is_the_other_one_with_a_gpu() -> None:
    """All else is written once."""
    service = compose("compose.yaml")
    assert service["extends"] == {"file": "compose.cpu.yaml", "service": "jaxd"}
    assert service["shm_size"] == "1gb"
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    whole = {name: yaml.safe_load((DOCKER / name).read_text()) for name in _COMPOSE[:2]}
    for part in ("secrets", "volumes"):
        assert whole["compose.yaml"][part] == whole["compose.cpu.yaml"][part]


def test_what_monitors_a_server_finds_it() -> None:
    """Prometheus scrapes what the server serves, Grafana asks Prometheus; neither gains rights."""
    whole = yaml.safe_load((DOCKER / "compose.monitoring.yaml").read_text())
    services, configs = whole["services"], whole["configs"]
    command = services["jaxd"]["command"]
    served = command[command.index("--metrics") + 1]
    assert services["jaxd"]["extends"] == {"file": "compose.cpu.yaml", "service": "jaxd"}
    assert services["prometheus"]["network_mode"] == "service:jaxd"
    (job,) = yaml.safe_load(configs["prometheus"]["content"])["scrape_configs"]
    assert job["static_configs"] == [{"targets": [served]}]
    (source,) = yaml.safe_load(configs["grafana_datasource"]["content"])["datasources"]
    assert source["url"] == "http://jaxd:9090"
    (mount,) = services["grafana"]["volumes"]
    assert (DOCKER / mount.split(":")[0]).exists()
    assert services["grafana"]["ports"] == ["127.0.0.1:3000:3000"]
    for name in ("prometheus", "grafana"):
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
    pins = dict(line.split("==") for line in _pins())
    packages = services["jaxd"]["build"]["args"]["PACKAGES"]
    assert packages.split()[0] == f"prometheus-client=={pins['prometheus_client']}"


def _pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if "==" in line and not line.startswith("#")]


def test_the_pod_may_do_nothing_but_its_work() -> None:
    """As the restricted profile of Kubernetes asks for, and as the image's user."""
    (container,) = pod()["containers"]
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["securityContext"]["runAsUser"] == UID
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod()["automountServiceAccountToken"] is False


def test_what_the_pod_mounts_is_there() -> None:
    """Every mount has its volume, the claim is the one of the manifest, and the port has a name."""
    (container,) = pod()["containers"]
    volumes = {one["name"]: one for one in pod()["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} == volumes.keys()
    claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
    assert claim == kubernetes()["PersistentVolumeClaim"]["metadata"]["name"]
    (port,) = kubernetes()["Service"]["spec"]["ports"]
    assert port["targetPort"] == container["ports"][0]["name"]
    assert port["port"] == container["ports"][0]["containerPort"] == PORT
    labels = kubernetes()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kubernetes()["Service"]["spec"]["selector"] == labels
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_cache_stays_the_users_own_when_the_volume_is_mounted_again() -> None:
    """Kubernetes would else make it writable by its group each time; the server refuses that."""
    assert pod()["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_a_busy_server_is_not_restarted_by_its_probes() -> None:
    """Only a host that does not answer is; its worker is the host's business."""
    (container,) = pod()["containers"]
    assert container["livenessProbe"]["exec"]["command"] == ["jaxd", "status"]
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"] == ["jaxd", "status", "--ready"]


def test_the_unit_drains_the_server_and_lets_xla_work() -> None:
    """SIGTERM reaches the host alone; code may be written, and GPUs be seen."""
    service = unit()["Service"]
    assert service["KillMode"] == "mixed"
    assert service["Restart"] == "on-failure"
    assert service["NoNewPrivileges"] == "yes"
    assert {"MemoryDenyWriteExecute", "PrivateDevices"} & set(service) == set()
    assert service["ExecStart"].startswith("/opt/jaxd/bin/jaxd serve ")
    assert service["RuntimeDirectoryMode"] == service["StateDirectoryMode"] == "0700"


@pytest.mark.parametrize("where", ["Dockerfile", *_COMPOSE[::2], "kubernetes.yaml", "jaxd.service"])
def test_every_command_line_is_one_of_the_servers(where: str, runtime: Path) -> None:
    """Clients on other machines are spoken to in TLS, and the token is where the file puts it."""
    entry = json.loads(instruction("ENTRYPOINT", last_stage()))
    words = {
        "Dockerfile": entry + json.loads(instruction("CMD", last_stage())),
        "compose.cpu.yaml": entry + compose("compose.cpu.yaml")["command"],
        "compose.monitoring.yaml": entry + compose("compose.monitoring.yaml")["command"],
        "kubernetes.yaml": entry + pod()["containers"][0]["args"],
        "jaxd.service": unit()["Service"]["ExecStart"].split(),
    }[where]
    options = parse_arguments(words[words.index("serve") + 1 :])
    assert [one.kind for one in options.listen] == ["unix", "tls"]
    assert options.listen[1] == Address.tls("0.0.0.0", PORT)
    assert not options.insecure_plaintext
    if where == "kubernetes.yaml":
        mounts = {one["name"]: one["mountPath"] for one in pod()["containers"][0]["volumeMounts"]}
        assert options.token_file == f"{mounts['token']}/token"


def test_no_registry_and_no_secret_is_named() -> None:
    """Images are local names, and the token comes from a file that is not here."""
    for file in DOCKER.iterdir():
        text = file.read_text() if file.is_file() else ""
        images = re.findall(r"(?:image:|^FROM|BASE=)\s*(\S+)", text, re.MULTILINE)
        assert [one for one in images if "/" in one] == []
    assert any(fnmatch("docker/jaxd.token", rule) for rule in _ignored())


def _ignored() -> list[str]:
    return (ROOT / ".gitignore").read_text().splitlines()
