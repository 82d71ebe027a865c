"""What the log forgets: retention moves the minimum offset, compaction keeps the last value of each key."""

from bridge.store.memory.log import MemoryLog
from bridge.store.memory.partition import Partition, Record


def clean(log: MemoryLog) -> None:
    """One run of retention and cleaner over all topics, at the log's present time."""
    now_ms = log.agenda.now_ms()
    for partition in log.each_partition():
        if partition.cleaning.is_deleted:
            retain(partition, now_ms)
        if partition.cleaning.is_compacted:
            compact(partition, now_ms)


def retain(partition: Partition, now_ms: int) -> None:
    """Drops whole segments from the front: those too old, then those above the size. Ages are record timestamps."""
    rules = partition.cleaning
    if partition.segments and 0 <= rules.retention_ms < now_ms - partition.segments[-1].newest_ms:
        partition.roll(now_ms)  # even the active segment goes when everything in it is too old
    kept = 0
    while kept < len(partition.segments) - 1 and _is_expired(partition, kept, now_ms):
        kept += 1
    if kept:
        partition.drop_below(partition.segments[kept].base_offset)


def _is_expired(partition: Partition, index: int, now_ms: int) -> bool:
    rules = partition.cleaning
    segments = partition.segments[index:]
    if rules.retention_ms >= 0 and now_ms - segments[0].newest_ms > rules.retention_ms:
        return True
    return rules.retention_bytes >= 0 and sum(s.size for s in segments[1:]) >= rules.retention_bytes


def compact(partition: Partition, now_ms: int) -> None:
    """Keeps the last record of each key, its offset and the order.

    Never touches the active segment, anything from the last stable offset on, or a segment with a
    record younger than the compaction lag. A tombstone goes when it has been the last one for the
    topic's delete retention.
    """
    end = _find_cleanable_end(partition, now_ms)
    last = {
        record.stored.key: record.stored.queue_offset
        for record in partition.records
        if record.stored.queue_offset < end and partition.is_visible(record)
    }
    kept = []
    for record in partition.records:
        if record.stored.queue_offset >= end or _is_kept(partition, record, last, now_ms):
            kept.append(record)
        else:
            partition.forget(record.stored.queue_offset)
    partition.records = kept


def _find_cleanable_end(partition: Partition, now_ms: int) -> int:
    lag_ms = partition.cleaning.min_compaction_lag_ms
    for segment in partition.segments[:-1]:
        if now_ms - segment.newest_ms < lag_ms:
            return min(segment.base_offset, partition.stable)
    if not partition.segments:
        return 0
    return min(partition.segments[-1].base_offset, partition.stable)


def _is_kept(partition: Partition, record: Record, last: dict[bytes | None, int], now_ms: int) -> bool:
    offset = record.stored.queue_offset
    if not partition.is_visible(record) or last[record.stored.key] != offset:
        return False
    if record.stored.value is not None:
        return True
    seen_ms = partition.tombstones_seen_ms.setdefault(offset, now_ms)
    return now_ms - seen_ms <= partition.cleaning.delete_retention_ms
