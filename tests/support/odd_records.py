"""Records that Python's client would not write."""

import ctypes
from pathlib import Path

import confluent_kafka


def put_odd_header(kafka: str, topic: str) -> None:
    """A record with the value null and a header whose name is no UTF-8."""
    (library,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka-*")
    client = ctypes.CDLL(str(library))
    client.rd_kafka_conf_new.restype = client.rd_kafka_new.restype = ctypes.c_void_p
    settings, reason = ctypes.c_void_p(client.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
    size = ctypes.c_size_t(512)
    client.rd_kafka_conf_set(settings, b"bootstrap.servers", kafka.encode(), reason, size)
    producer = ctypes.c_void_p(client.rd_kafka_new(0, settings, reason, size))
    to_topic, to_partition = (ctypes.c_int(1), topic.encode()), (ctypes.c_int(3), ctypes.c_int32(0))
    header = (ctypes.c_int(9), b"\xff\xfe", b"v", ctypes.c_ssize_t(1))
    assert client.rd_kafka_producev(producer, *to_topic, *to_partition, *header, ctypes.c_int(0)) == 0
    assert client.rd_kafka_flush(producer, 30_000) == 0
    client.rd_kafka_destroy(producer)
