"""Runs all checks and measurements that need a GPU, in stages, the most informative first.

    python -m benchmarks.gpu_check                  # on a machine with a GPU: as many stages as fit into --minutes
    python -m benchmarks.gpu_check --list           # list the stages
    python -m benchmarks.gpu_check --rehearse       # all stages on tiny models, without a GPU, to test the script

Each stage runs in a process of its own with a time limit, and writes its results at once (JSON, in $OUT or
benchmarks/results). A call with the same results file continues with the missing stages. A stage consists of parts; a
failing part does not stop the others. Exits with 1 if a part failed. Downloads nothing: models are made here, with
random weights of known shapes.
"""
