"""Open-loop load generator: requests are sent on schedule, whether or not the server has answered earlier ones."""
