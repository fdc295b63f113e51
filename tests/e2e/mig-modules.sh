# Sourced: the modules of tests/e2e/tests/cluster that need the cluster of tests/e2e/mig.yaml.
# shellcheck shell=bash disable=SC2034 # for whoever sources it
on_mig="from_mig_manager:: mig_drain:: mig_layout:: monitoring::"
