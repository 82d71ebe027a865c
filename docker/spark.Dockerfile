# Reconciliation as a job: docker run … --kafka broker:9092 --out /reports
# Nobody has built this in the project's gate, which has no Docker. Build from the project's root, with the wheel in
# dist/.
FROM python:3.13-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless=17.* procps=2:4.* \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home report
COPY dist/*.whl /tmp/
RUN python -m venv /opt/report \
    && for wheel in /tmp/*.whl; do /opt/report/bin/pip install --no-cache-dir "${wheel}[spark]"; done \
    && rm /tmp/*.whl
ENV PYSPARK_PYTHON=/opt/report/bin/python MPLCONFIGDIR=/tmp
USER 10001
WORKDIR /home/report
ENTRYPOINT ["/opt/report/bin/python", "-P", "-m", "outbox.application", "spark.reconcile"]
CMD ["--help"]
