"""Documents that answers rest on: read, searched and cited."""
