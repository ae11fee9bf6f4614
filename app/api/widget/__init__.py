"""The API of the widget, by which visitors of websites write to an inbox."""
