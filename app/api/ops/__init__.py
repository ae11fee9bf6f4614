"""Routes for operators: health, readiness, metrics, and the state of the engine."""
