"""Ways to make steps: one by one, several in one call, overlapped with the device, and with draft tokens."""
