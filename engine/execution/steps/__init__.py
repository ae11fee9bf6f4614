"""Ways of making a step other than one by one: several in one call, and overlapped with the device."""
