# The simulated fleet of deploy/compose.yaml (profile "fleet").
FROM python:3.12.11-slim-bookworm
RUN pip install --no-cache-dir paho-mqtt==2.2.0
COPY deploy/compose/fleet.py deploy/compose/simulate.py /fleet/
USER 10002:10002
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["python3", "/fleet/simulate.py"]
