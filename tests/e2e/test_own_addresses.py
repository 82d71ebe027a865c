"""Check endpoints at the bridge's own Kafka and at itself, although loopback is allowed."""

import pytest

from tests.support.problems import check_problem, named_places
from tests.support.running_service import RunningService


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_kafka_and_the_bridge_itself_are_no_endpoints(service: RunningService, host: str) -> None:
    """Whatever loopback is called; other ports are taken."""
    group = service.new_group("own")
    kafka = service.bridge.kafka.rpartition(":")[2]
    for port in (kafka, service.api.port):
        body = {"endpoints": [{"url": f"http://{host}:9001/"}, {"url": f"http://{host}:{port}/"}]}
        answer = service.api.http.put(f"/v1/producer-groups/{group}", json=body)
        assert named_places(check_problem(answer, 422, "callback-url-forbidden")) == {"/endpoints/1/url"}
    fine = {"endpoints": [{"url": f"http://{host}:9001/"}]}
    assert service.api.http.put(f"/v1/producer-groups/{group}", json=fine).status_code == 201
