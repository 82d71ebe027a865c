"""Renders and lints docker/helm with Helm's own library, and holds what comes out against Kubernetes' schemas."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from helm_python import Chart, HelmError, lint

CHART = Path(__file__).parents[1] / "docker" / "helm"
NAME, NAMESPACE = "shop", "payments"
OLDEST = "1.30"  # as Chart.yaml says
ERROR = 3
FILES = "/run/secrets/outbox-bridge/files"
CRDS = {"PrometheusRule", "ServiceMonitor"}  # of operators; Kubernetes itself has no schema of them

Values = dict[str, Any]
Manifest = dict[str, Any]

KAFKA = {"bootstrap.servers": "kafka:9092"}
LEAST: Values = {"settings": {"kafka": KAFKA}}
CERTIFICATES = {"DNS:shop.example.com": "shop", "URI:spiffe://example.com/billing": "billing"}
EVERYTHING: Values = {
    "image": {"digest": f"sha256:{'0' * 64}"},
    "imagePullSecrets": [{"name": "pull"}],
    "settings": {
        "kafka": {
            "bootstrap.servers": "kafka:9093",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
        },
        "topics": {"queues": 8},
        "http": {"allowed_hosts": ["bridge.example.com"]},
        "callbacks": {"allow_networks": ["10.0.0.0/8"]},
        "limits": {"in_flight_bytes": 268435456},
        "webhooks": [{"name": "pager", "url_file": f"{FILES}/pager-url", "secret_file": f"{FILES}/pager-secret"}],
    },
    "secret": {
        "adminKey": "admin-key",
        "securityKeys": "security-keys",
        "kafkaPassword": "kafka-password",
        "kafkaCa": "ca.crt",
        "files": ["pager-url", "pager-secret"],
    },
    "tls": {"secret": "bridge-tls", "clientCa": True},
    "roles": {
        role: {
            "settings": {"kafka": {"sasl.username": role}}
            | ({"auth": {"certificates": CERTIFICATES}} if role == "api" else {}),
            "secret": {"name": f"bridge-{role}"},
        }
        for role in ("api", "settler", "projector", "migrate")
    }
    | {
        "remoting": {
            "replicas": 2,
            "settings": {"remoting": {"advertise": "door.example.com:9876"}},
            "secret": {"name": "bridge-api"},
        }
    },
    "remotingService": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
}
SINGLE: Values = {
    **LEAST,
    "roles": {role: {"replicas": 1} for role in ("api", "settler", "projector", "remoting")},
    "networkPolicy": {"enabled": False},
}
DOOR: Values = {**LEAST, "roles": {"remoting": {"replicas": 1}}, "remotingService": {"port": 19876}}
REFUSED: Mapping[str, Values] = {
    "no Kafka": {},
    "a value nobody knows": {**LEAST, "replicas": 3},
    "a password that is no file": {"settings": {"kafka": {"bootstrap.servers": "k", "sasl.password": "x"}}},
    "a database's URL that is no file": {**LEAST, "settings": {**LEAST["settings"], "database_url": "x"}},
    "a first key that is no file": {**LEAST, "settings": {**LEAST["settings"], "auth": {"admin_key": "x"}}},
    "a passphrase that is no file": {
        "settings": {"kafka": {**KAFKA, "sasl.oauthbearer.assertion.private.key.passphrase": "x"}}
    },
    "a key of Kafka's that is no file": {"settings": {"kafka": {**KAFKA, "ssl.key.pem": "x"}}},
    "a webhook's secret that is no file": {
        "settings": {"kafka": KAFKA, "webhooks": [{"name": "pager", "url": "https://p", "secret": "whsec_x"}]}
    },
    "metrics over TLS, which probes do not speak": {
        **LEAST,
        "roles": {"api": {"settings": {"http": {"metrics_tls": True}}}},
        "tls": {"secret": "t"},
    },
    "a door beyond the cluster at a name within it": {**DOOR, "remotingService": {"type": "NodePort"}},
}


def render(values: Values) -> list[Manifest]:
    """What `helm install` would send."""
    with Chart.load(CHART) as chart:
        texts = chart.render(values, name=NAME, namespace=NAMESPACE)
        chart.validate_schema(values)
    return [one for text in texts.values() for one in yaml.safe_load_all(text) if one]


def find_faults(values: Values) -> list[str]:
    """What lint says, and what the oldest and the newest Kubernetes do not take."""
    report = lint(CHART, values, strict=True, namespace=NAMESPACE)
    faults = [one["error"] for one in report["messages"] if one["severity"] == ERROR] + report["errors"]
    for manifest in render(values):
        for version in (OLDEST, kubernetes_validate.latest_version()):
            if manifest["kind"] not in CRDS:
                try:
                    kubernetes_validate.validate(manifest, version, strict=True)
                except kubernetes_validate.ValidationError as fault:
                    faults.append(f"{manifest['kind']} {manifest['metadata']['name']}, {version}: {fault}")
        faults += [f"{manifest['metadata']['name']}: {what}" for what in find_laxness(manifest)]
    return faults


def find_laxness(manifest: Manifest) -> list[str]:
    """What a pod must not be."""
    pod = manifest.get("spec", {}).get("template", {}).get("spec")
    if pod is None:
        return []
    (container,) = pod["containers"]
    own = container["securityContext"]
    wanted = {
        "not as root": pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001,
        "filtered system calls": pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"},
        "a read-only root": own["readOnlyRootFilesystem"],
        "no capability": own["capabilities"] == {"drop": ["ALL"]} and not own["allowPrivilegeEscalation"],
        "no token": pod["automountServiceAccountToken"] is False,
        "bounded memory": "memory" in container["resources"]["limits"],
    }
    return [f"lacks {what}" for what, is_so in wanted.items() if not is_so]


def find_differences() -> list[str]:
    """What Prometheus and Grafana would get that is not what the files say: `{{ }}` in them is theirs."""
    sent = {one["kind"]: one for one in render(EVERYTHING)}
    files = CHART / "files"
    rules, dashboard = sent["PrometheusRule"]["spec"], sent["ConfigMap"]["data"]["outbox-bridge.json"]
    return [
        f"{name} is not sent as it is"
        for name, is_same in (
            ("alerts.yml", rules == yaml.safe_load((files / "alerts.yml").read_text())),
            ("dashboard.json", dashboard == (files / "dashboard.json").read_text()),
        )
        if not is_same
    ]


def find_door_faults() -> list[str]:
    """Where the way of RocketMQ's clients is broken: Service, port, advertised address, policy. None unless wanted."""
    name = f"{NAME}-outbox-bridge-remoting"
    found = {one["kind"]: one for one in render(DOOR) if one["metadata"]["name"] == name}
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    told = {one["name"].removeprefix("OUTBOX_BRIDGE_REMOTING__"): one["value"] for one in container["env"]}
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    (way,) = found["Service"]["spec"]["ports"]
    (listened,) = [port["containerPort"] for port in container["ports"] if port["name"] == way["targetPort"]]
    policy = found["NetworkPolicy"]["spec"]
    let_in = {port["port"]: rule["from"] for rule in policy["ingress"] for port in rule["ports"]}
    let_out = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    held = {
        "listens where its Service leads": (told["HOST"], told["PORT"]) == ("0.0.0.0", str(listened)),
        "is what its Service selects": found["Service"]["spec"]["selector"].items() <= labels.items(),
        "sends clients to its Service": told["ADVERTISE"] == f"{name}.{NAMESPACE}.svc:{way['port']}",
        "is what its policy selects": policy["podSelector"]["matchLabels"].items() <= labels.items(),
        "is open to clients, metrics to others": let_in.keys() == {listened, 8790} and let_in[listened] != let_in[8790],
        "calls no check endpoint": let_out == {53, 9092, 5432},
        "is there only if it is wanted": name not in [one["metadata"]["name"] for one in render(LEAST)],
    }
    return [f"the door: not so that it {what}" for what, is_so in held.items() if not is_so]


def find_sent() -> dict[tuple[str, str], Manifest]:
    """What comes out with every value, by kind and name."""
    start = f"{NAME}-outbox-bridge"
    return {(one["kind"], one["metadata"]["name"].removeprefix(start)): one for one in render(EVERYTHING)}


def find_unsaid() -> list[str]:
    """Where a pod is not told, not given or not let do what the values say."""
    sent = find_sent()
    faults = []
    for role in ("api", "settler", "projector", "remoting", "migrate"):
        pod = sent["Job" if role == "migrate" else "Deployment", f"-{role}"]["spec"]["template"]["spec"]
        (secret,) = [one["secret"] for one in pod["volumes"] if one["name"] == "secrets"]
        if not {"files/pager-url", "files/pager-secret"} <= {item["path"] for item in secret["items"]}:
            faults.append(f"{role} lacks files that settings name")
        told = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
        if (role == "api") != (json.loads(told.get("OUTBOX_BRIDGE_AUTH__CERTIFICATES", "{}")) == CERTIFICATES):
            faults.append(f"{role} is not told whose certificates it takes, or is and should not")
        if strange := [name for name in told if not re.fullmatch("[A-Z_]+", name)]:
            faults.append(f"{role} has variables that no setting has: {strange}")
        ways = sent["NetworkPolicy", f"-{role}"]["spec"]["egress"]
        if (443 in [port["port"] for way in ways for port in way["ports"]]) != (role in {"api", "settler", "remoting"}):
            faults.append(f"{role} cannot send to webhooks or check endpoints, or can and should not")
    job, policy = (sent[kind, "-migrate"]["metadata"]["annotations"] for kind in ("Job", "NetworkPolicy"))
    if policy.get("helm.sh/hook") != job["helm.sh/hook"] or int(policy["helm.sh/hook-weight"]) >= 0:
        faults.append("migrate runs before its NetworkPolicy is there")
    return faults


def is_refused(values: Values) -> bool:
    try:
        render(values)
    except HelmError:
        return True
    return False


def main() -> int:
    faults = [fault for values in (LEAST, EVERYTHING, SINGLE) for fault in find_faults(values)]
    faults += find_differences() + find_door_faults() + find_unsaid()
    faults += [f"takes {what}" for what, values in REFUSED.items() if not is_refused(values)]
    print(*(faults or ["chart: ok"]), sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
