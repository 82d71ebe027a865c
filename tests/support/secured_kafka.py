"""A real Kafka with two doors: SASL_SSL with SCRAM for clients that have rights, and a plain one for the administrator.

with secured_kafka(folder) as kafka:
    options = kafka.add_user("api")      # librdkafka's options of somebody who may do nothing yet
    kafka.allow([...])                   # rights, as `outbox-bridge acl` names them
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from bridge.broker.dev_broker import DevBroker
from bridge.broker.ports import choose_free_port
from bridge.core.topics import KafkaRight

_HOST = "127.0.0.1"
_ANSWER_S = 30.0
_MECHANISM = "SCRAM-SHA-512"


@dataclass(slots=True)
class SecuredKafka:
    """A broker on which whoever comes by SASL_SSL may do what was allowed, and nothing else."""

    broker: DevBroker
    port: int
    ca_file: Path
    admin: AdminClient  # must outlive its futures

    @property
    def admin_bootstrap(self) -> str:
        """The administrator's door: plain, on loopback."""
        return self.broker.bootstrap

    @property
    def bootstrap(self) -> str:
        """Everybody else's."""
        return f"{_HOST}:{self.port}"

    def add_user(self, name: str) -> dict[str, str]:
        """Options of a client of this name, who has no rights yet."""
        password = secrets.token_hex()
        made = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(name, made, password.encode())
        self.admin.alter_user_scram_credentials([wanted])[name].result(_ANSWER_S)
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": _MECHANISM,
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.location": str(self.ca_file),
        }

    def allow(self, user: str, rights: Iterable[KafkaRight]) -> None:
        """From now on; what is there already stays."""
        if bindings := [_bind(user, right) for right in rights]:
            for future in self.admin.create_acls(bindings).values():
                future.result(_ANSWER_S)

    def take(self, user: str, right: KafkaRight) -> None:
        """As if it had never been allowed."""
        bound = _bind(user, right)
        wanted = AclBindingFilter(
            bound.restype, bound.name, bound.resource_pattern_type, bound.principal, bound.host, bound.operation,
            bound.permission_type,
        )  # fmt: skip
        (future,) = self.admin.delete_acls([wanted]).values()
        assert len(future.result(_ANSWER_S)) == 1, f"{user} had no {right}"


def _bind(user: str, right: KafkaRight) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if right.is_prefix else ResourcePatternType.LITERAL
    return AclBinding(
        ResourceType[right.resource.name], right.name, pattern, f"User:{user}", "*",
        AclOperation[right.operation.name], AclPermissionType.ALLOW,
    )  # fmt: skip


@contextmanager
def secured_kafka(folder: Path) -> Iterator[SecuredKafka]:
    """A started broker with empty data in `folder`; it is gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    plain, secured = choose_free_port(), choose_free_port()
    controller = choose_free_port()
    ca_file = _make_certificates(folder)
    broker = DevBroker(
        folder / "kafka", port=plain, controller_port=controller, settings=_settings(folder, plain, secured, controller)
    )
    broker.start()
    try:
        yield SecuredKafka(broker, secured, ca_file, AdminClient({"bootstrap.servers": broker.bootstrap}))
    finally:
        broker.kill()


def _settings(folder: Path, plain: int, secured: int, controller: int) -> Mapping[str, str]:
    return {
        "listeners": f"P://{_HOST}:{plain},S://{_HOST}:{secured},C://{_HOST}:{controller}",
        "advertised.listeners": f"P://{_HOST}:{plain},S://{_HOST}:{secured}",
        "listener.security.protocol.map": "P:PLAINTEXT,S:SASL_SSL,C:PLAINTEXT",
        "sasl.enabled.mechanisms": _MECHANISM,
        f"listener.name.s.{_MECHANISM.lower()}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.s.ssl.keystore.type": "PEM",
        "listener.name.s.ssl.keystore.location": str(folder / "broker.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:ANONYMOUS",
    }


def _make_certificates(folder: Path) -> Path:
    """The broker's, and the authority's that clients trust."""
    authority = trustme.CA()
    issued = authority.issue_cert(_HOST, "localhost")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    shown = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # the one form that Kafka reads
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    (folder / "broker.pem").write_bytes(shown + chain)
    ca_file = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    return ca_file
