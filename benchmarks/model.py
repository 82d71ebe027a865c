"""What larger machines should do: a model fitted to measured costs. Pure.

CPU for a transaction = work of its own + what each Kafka transaction costs, shared by those in it. Under load each
queue writes its Kafka transactions one after the other, about as many a second whatever is in them, so that their part
for one transaction is proportional to queues / rate. The two factors are fitted by least squares.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

PARTS = ("api", "settler", "projector", "broker")
BRIDGE = ("api", "settler", "projector")
AXES = {
    "load": "connections that send batches of 100",
    "pending": "transactions pending",
    "groups": "producer groups",
    "topics": "topics",
    "bytes": "bytes of a message",
    "queues": "queues, and api and settler processes",
    "brokers": "brokers, and replicas",
}


class Sample(NamedTuple):
    """A measured point: queues, transactions a second, and microseconds of CPU for one transaction."""

    queues: int
    per_second: float
    micros: float


class Model(NamedTuple):
    """`own_us`: for each transaction; `queue_cores`: processors that Kafka transactions of one busy queue take."""

    own_us: float
    queue_cores: float

    def predict(self, processors: float, queues: int) -> float:
        """Transactions a second that so many processors settle when all of them are busy."""
        return max(0.0, processors - queues * self.queue_cores) / (self.own_us / 1e6)


def fit(samples: Sequence[Sample]) -> Model:
    """The model nearest to the samples."""
    shares = [sample.queues / sample.per_second for sample in samples]
    slope, intercept = statistics.linear_regression(shares, [sample.micros for sample in samples])
    return Model(intercept, slope / 1e6)


def choose_queues(model: Model, processors: float, settler_us: float) -> int:
    """The fewest queues whose settlers, a process each, keep up with what the processors allow."""
    queues = 1
    while queues * 1e6 / settler_us < model.predict(processors, queues):
        queues += 1
    return queues
