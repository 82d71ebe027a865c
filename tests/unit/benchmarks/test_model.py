"""The model that says what larger machines should do."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.model import Model, Sample, choose_queues, fit

_MODELS = st.builds(Model, own_us=st.floats(20, 500), queue_cores=st.floats(0.01, 0.5))


@given(_MODELS)
def test_factors_that_made_the_samples_are_found_again(model: Model) -> None:
    """Without noise there is one answer."""
    samples = [
        Sample(queues, rate, model.own_us + queues * model.queue_cores / rate * 1e6)
        for queues, rate in [(1, 1_500.0), (1, 9_000.0), (2, 12_000.0), (4, 11_000.0)]
    ]
    found = fit(samples)
    assert abs(found.own_us / model.own_us - 1) < 1e-6
    assert abs(found.queue_cores / model.queue_cores - 1) < 1e-6


@given(_MODELS, st.floats(4, 64), st.floats(5, 80))
def test_no_fewer_queues_would_do(model: Model, processors: float, settler_us: float) -> None:
    """With one less, a settler's single processor would be the limit."""
    queues = choose_queues(model, processors, settler_us)
    assert queues * 1e6 / settler_us >= model.predict(processors, queues)
    if queues > 1:
        assert (queues - 1) * 1e6 / settler_us < model.predict(processors, queues - 1)


def test_queues_that_need_more_than_there_is_leave_nothing() -> None:
    """Never a negative rate."""
    assert Model(own_us=100, queue_cores=1).predict(2, queues=3) == 0
