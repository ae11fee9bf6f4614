"""Runs the application under uvicorn: the HTTP protocol with its limits, logging, and shutdown."""
