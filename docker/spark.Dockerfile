# Reconciliation as a job: docker run … --kafka broker:9092 --out /reports
# Build from the project's root: docker build -f docker/spark.Dockerfile -t outbox-bridge-report .
# The gate follows these instructions as it does those of Dockerfile; its machine's Java stands in for Debian's.
FROM python:3.13-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements/ requirements/
COPY docker/install docker/install
COPY alembic/ alembic/
COPY api/ api/
COPY bridge/ bridge/
COPY checker/ checker/
COPY outbox/ outbox/
COPY spark/ spark/
COPY examples/shop/ examples/shop/
RUN docker/install /opt/report spark

FROM python:3.13-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless=17.* procps=2:4.* \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 report \
    && useradd --uid 10001 --gid 10001 --no-log-init --shell /usr/sbin/nologin --create-home report
COPY --from=build /opt/report /opt/report
ENV PYSPARK_PYTHON=/opt/report/bin/python MPLCONFIGDIR=/tmp
USER 10001
# where Spark writes what it keeps for a run: on a read-only root mount a volume there
WORKDIR /tmp
ENTRYPOINT ["/opt/report/bin/python", "-P", "-m", "outbox.application", "spark.reconcile"]
CMD ["--help"]
