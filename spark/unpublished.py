"""Whether it is proved that nothing of a transaction was ever published. Pure."""

from collections.abc import Iterable, Iterator

from spark.columns import OpState
from spark.scope import Scope
from spark.story import Story


def why_not_unpublished(story: Story, scope: Scope) -> str | None:
    """What speaks against it, or leaves it open; None: nothing was published.

    Without a recorded commit the journal is proof enough: the bridge publishes nothing else.
    """
    if story.half is None:
        return "there is no half message"
    if story.visible or any(op.code == OpState.COMMITTED for op in (*story.ops, *story.astray)):
        return "it was published"
    if not scope.is_provable(story.tx):
        return "an earlier half message may have been removed"
    if story.decision != OpState.COMMITTED:
        return None
    if scope.by_receipts:
        return "records do not name their transactions"
    return next(_unknown_topics({message.topic for message in story.half.messages or ()}, scope), None)


def _unknown_topics(topics: Iterable[str], scope: Scope) -> Iterator[str]:
    for topic in sorted(topics):
        extents = [extent for place, extent in scope.extents.items() if place.topic == topic]
        if not extents:
            yield f"{topic} was not read"
        if not all(extent.is_whole and not extent.is_compacted for extent in extents):
            yield f"records of {topic} were removed, or may have been"
