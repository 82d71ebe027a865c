# Reconciliation as a job: docker run … --kafka broker:9092 --out /reports
# Nobody has built this in the project's gate, which has no Docker. Build from the project's root, with the wheel in
# dist/ and the four jars of spark/connector-4.0.0.sha256 in jars/ (`outbox-bridge report run` keeps them in its cache).
FROM python:3.13-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless=17.* procps=2:4.* \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home report
COPY dist/*.whl /tmp/
RUN python -m venv /opt/report \
    && for wheel in /tmp/*.whl; do /opt/report/bin/pip install --no-cache-dir "${wheel}[spark]"; done \
    && rm /tmp/*.whl
COPY jars/ /opt/jars/
ENV PYSPARK_PYTHON=/opt/report/bin/python MPLCONFIGDIR=/tmp
USER 10001
WORKDIR /home/report
ENTRYPOINT ["/opt/report/bin/python", "-P", "-m", "outbox.application", "spark.reconcile", "--jars", "/opt/jars/spark-sql-kafka-0-10_2.13-4.0.0.jar,/opt/jars/spark-token-provider-kafka-0-10_2.13-4.0.0.jar,/opt/jars/kafka-clients-3.9.0.jar,/opt/jars/commons-pool2-2.12.0.jar"]
CMD ["--help"]
