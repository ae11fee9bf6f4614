"""The peers, one module per engine, run as separate processes; their protocol and their catalogue."""
