"""Everything that only a GPU can show, checked and measured in one call, in stages, the most telling first.

    python -m benchmarks.gpu_check                  # on a machine with a GPU: as many stages as fit into --minutes
    python -m benchmarks.gpu_check --list           # which stages there are
    python -m benchmarks.gpu_check --rehearse       # all of them on tiny models, without a GPU: does the script work?

Each stage runs in a process of its own, ends after its minutes, and leaves what it found in the results at once
(JSON, in $OUT or benchmarks/results). A call with the same results goes on with the stages that are missing there. A
stage consists of parts; one that fails hides no other. Ends with 1 when a part has failed. Nothing is downloaded:
models are made here, with random weights of known shapes.
"""
