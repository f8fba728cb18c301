#!/bin/sh
# Writes components/monitoring/rules.yaml, the alert rules of deploy/prometheus/rules as a PrometheusRule. tests/pure/deploy.rs
# fails if the two differ.
set -eu
cd "$(dirname "$0")"
{
    cat <<'HEAD'
# Made by deploy/kubernetes/rules.sh from deploy/prometheus/rules/hourbucket.yml; change that file.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: hourbucket
  namespace: hourbucket
  labels:
    app.kubernetes.io/name: hourbucket
spec:
HEAD
    sed 's/^\(.\)/  \1/' ../prometheus/rules/hourbucket.yml
} >components/monitoring/rules.yaml
