"""HTTP routes. They parse requests and shape responses; the work is done by the floors below."""
