"""The engine core, the thread that owns the device, its supervisor, and request and output processing."""
